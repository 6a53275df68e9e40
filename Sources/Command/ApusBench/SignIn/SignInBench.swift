import ApusClient
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOCore
import NIOPosix

/// `apus-bench signin`: measures how many clients per second can sign in at a node, and how long the viewers of a dead
/// node have no pictures. Optionally measures another build of `apus` in the same run.
struct BenchSignInCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "signin",
        abstract: "Measure the rate of sign-ins at a node, and the recovery of viewers after a node's death.")

    @Option(help: "Also measure this build of apus, in turn with the current one.")
    var beside: String?
    @Option(help: "Run this number of rounds of each kind of sign-in and report medians.") var rounds = 5
    @Option(help: "Set the length of a round of sign-ins, in seconds.") var seconds = 3.0
    @Option(help: "Use this number of concurrent clients.") var clients = 32
    @Option(help: "Kill a node in this number of rounds.") var kills = 3
    @Option(help: "Use this number of viewers at the killed node.") var viewers = 1000
    @Option(help: "Use this number of channels.") var channels = 8
    @Option(help: "Set the first port of the clusters.") var basePort = 28_800
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// A build that is measured.
    struct Side {
        let name: String
        let executable: String
        let basePort: Int
        let directory: String
    }

    private func sides() throws -> [Side] {
        let directory = "\(NSTemporaryDirectory())/apus-signin-\(getpid())"
        let this = Side(
            name: "this", executable: try BenchPrograms.apus(), basePort: basePort, directory: "\(directory)-this")
        guard let beside else { return [this] }
        return [
            this, Side(name: "beside", executable: beside, basePort: basePort + 100, directory: "\(directory)-beside"),
        ]
    }

    func run() async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        var result = SignInResult()
        if rounds > 0 { try await measureRates(on: group, into: &result) }
        for round in 0..<kills {
            for side in try sides() { try await killNode(of: side, round: round, on: group, into: &result) }
        }
        try await group.shutdownGracefully()
        print(result.table)
        if json { print(try result.json()) }
        if result.failed > 0 || result.missing > 0 { throw ExitCode.failure }
    }

    // MARK: - Rates

    private func measureRates(on group: MultiThreadedEventLoopGroup, into result: inout SignInResult) async throws {
        var stages: [(side: Side, stage: SignInStage)] = []
        defer {
            for entry in stages { entry.stage.down() }
        }
        for side in try sides() {
            let stage = try SignInStage(
                executable: side.executable, nodes: 1, directory: side.directory, basePort: side.basePort, group: group)
            stages.append((side, stage))
        }
        var probes: [String: [SignInProbe]] = [:]
        for (side, stage) in stages {
            for kind in SignInResult.Kind.allCases {
                for number in 0..<clients {
                    probes["\(side.name) \(kind.rawValue)", default: []]
                        .append(try await stage.probe(number, resumes: kind == .resumed))
                }
            }
        }
        for round in 0..<rounds {
            for kind in SignInResult.Kind.allCases {
                for (side, stage) in round % 2 == 0 ? stages : stages.reversed() {
                    let probes = probes["\(side.name) \(kind.rawValue)"] ?? []
                    try await measure(kind, probes, side: side.name, on: stage, into: &result)
                }
            }
            say("sign-ins \(round + 1)/\(rounds): \(result.rateLine)")
        }
    }

    private func measure(
        _ kind: SignInResult.Kind, _ probes: [SignInProbe], side: String, on stage: SignInStage,
        into result: inout SignInResult
    ) async throws {
        let node = stage.local.mark.nodes[0].name
        let (start, busy) = (MonotonicTime.now(), try stage.busySeconds(of: node))
        let counts = try await withThrowingTaskGroup(of: SignInProbe.Result.self) { tasks in
            for probe in probes { tasks.addTask { try await probe.run(for: .seconds(seconds)) } }
            return try await tasks.reduce(into: []) { $0.append($1) }
        }
        let (passed, used) = (MonotonicTime.now() - start, try stage.busySeconds(of: node) - busy)
        result.add(side: side, kind: kind, counts: counts, seconds: passed.milliseconds / 1000, nodeSeconds: used)
    }

    // MARK: - A node's death

    private func killNode(
        of side: Side, round: Int, on group: MultiThreadedEventLoopGroup, into result: inout SignInResult
    ) async throws {
        let stage = try SignInStage(
            executable: side.executable, nodes: 3, directory: side.directory, basePort: side.basePort, group: group)
        defer { stage.down() }
        let names = stage.local.mark.nodes.map(\.name)
        let victim = names[round % names.count]
        let others = names.filter { $0 != victim }
        let cast = try await stage.startCameras(channels, at: others)
        defer { cast.leave() }
        try await enter(cast, at: victim, of: stage)
        try await cast.waitUntilWatched(frames: 25)
        let killedAt = MonotonicTime.now()
        try stage.kill(victim)
        let times = try await cast.waitUntilBack(from: killedAt, within: .seconds(15))
        result.add(side: side.name, times: times, viewerCount: viewers, cast: cast)
        say("kill \(round + 1)/\(kills) \(side.name): \(result.killLine(side.name))")
    }

    /// Viewers are started a few at a time, because their recovery is measured, not their start. A viewer without a
    /// picture after two seconds is replaced.
    private func enter(_ cast: FailoverCast, at victim: String, of stage: SignInStage) async throws {
        var number = 0
        while cast.viewers.count < viewers {
            guard number < 2 * viewers else { throw ApusError(.deadlineExceeded, "viewers receive no pictures") }
            var batch: [(channel: Int, viewer: BenchViewer)] = []
            for _ in 0..<min(Self.batchSize, viewers - cast.viewers.count) {
                let index = number % channels
                batch.append((index, try await stage.viewer(cast.publishers[index].device, number, at: victim)))
                batch.last?.viewer.start()
                number += 1
            }
            let deadline = MonotonicTime.now() + .seconds(2)
            while !batch.allSatisfy({ $0.viewer.newest != nil }), MonotonicTime.now() < deadline {
                try await Task.sleep(for: .milliseconds(10))
            }
            for entry in batch {
                if entry.viewer.newest != nil {
                    cast.keep(entry.viewer, of: entry.channel)
                } else {
                    entry.viewer.stop()
                }
            }
        }
    }
    private static let batchSize = 20

    private func say(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }
}

extension FailoverCast {
    /// The time from a moment to the end of each viewer's longest gap after it; viewers without pictures at the time
    /// limit are omitted. A viewer has recovered once it has received frames for half a second without another long
    /// gap.
    fileprivate func waitUntilBack(from start: MonotonicTime, within limit: Duration) async throws -> [Duration] {
        while MonotonicTime.now() - start < limit {
            try await Task.sleep(for: .milliseconds(250))
            let now = MonotonicTime.now()
            let isOver = viewers.allSatisfy { entry in
                guard let back = entry.viewer.back(from: start) else { return false }
                return now - back > .milliseconds(500)
            }
            if isOver { break }
        }
        return viewers.compactMap { entry in entry.viewer.back(from: start).map { $0 - start } }
    }
}

extension BenchViewer {
    /// The end of the longest time between two arrivals that ends after a moment; nil if nothing arrived after it.
    fileprivate func back(from start: MonotonicTime) -> MonotonicTime? {
        let records = records
        var longest = (gap: Duration.zero, end: MonotonicTime?.none)
        for (previous, next) in zip(records, records.dropFirst()) where next.at > start {
            let gap = next.at - previous.at
            if gap > longest.gap { longest = (gap, next.at) }
        }
        // Frames that were in transit when the node died do not show a recovery.
        guard longest.gap > .milliseconds(100) || (records.last.map { $0.at - start > .seconds(1) } ?? false) else {
            return nil
        }
        return longest.end
    }
}

import ApusCluster
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Foundation

/// `apus-bench failover`: kills and pauses nodes of a local cluster under channels and viewers. It counts for each
/// viewer the lost frames, the duplicate frames, and the longest gap between two arrivals.
struct BenchFailoverCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "failover",
        abstract: "Kill, pause, drain and add nodes under channels and viewers, and report the gaps.")

    /// The role of the failing node for the channels.
    enum Kind: String, CaseIterable {
        case primaryAndEndpoint = "primary-endpoint"
        case primary = "primary"
        case viewersEndpoint = "viewers-endpoint"
        case standby = "standby"
        case pausedPrimary = "paused-primary"
        case pausedEndpoint = "paused-endpoint"
        case drained = "drained"
        case joined = "joined"

        var isPause: Bool { self == .pausedPrimary || self == .pausedEndpoint }
        /// A planned operation: no client may be disturbed.
        var isPlanned: Bool { self == .drained || self == .joined }
        var says: String {
            switch self {
            case .primaryAndEndpoint: "kill -9 the primary, publisher's node"
            case .primary: "kill -9 the primary"
            case .viewersEndpoint: "kill -9 the viewers' node"
            case .standby: "kill -9 the standby"
            case .pausedPrimary: "SIGSTOP the primary"
            case .pausedEndpoint: "SIGSTOP the primary, all clients' node"
            case .drained: "drain the primary, all clients' node"
            case .joined: "a node joins, becomes primary"
            }
        }
    }

    @Option(help: "Use this number of channels in each round.") var channels = 8
    @Option(help: "Use this number of viewers per channel.") var viewers = 10
    @Option(help: "Run this number of rounds of each kind.") var repeats = 20
    @Option(help: "Run these kinds, separated by commas: \(Kind.allCases.map(\.rawValue).joined(separator: ", ")).")
    var kinds = Kind.allCases.map(\.rawValue).joined(separator: ",")
    @Option(help: "Set the first port of the cluster.") var basePort = 27_800
    @Flag(help: "Keep the ownership in three members of etcd.") var etcd = false
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func run() async throws {
        let kinds = try kinds.split(separator: ",").map { text in
            guard let kind = Kind(rawValue: String(text)) else { throw ValidationError("'\(text)' is not a kind.") }
            return kind
        }
        var results: [FailoverResult] = []
        for kind in kinds { results.append(try await play(kind)) }
        print(FailoverResult.table(results))
        if json { print(try FailoverResult.json(results)) }
        if results.contains(where: { !$0.isClean }) { throw ExitCode.failure }
    }

    private func play(_ kind: Kind) async throws -> FailoverResult {
        var result = FailoverResult(kind: kind)
        let apus = try BenchPrograms.apus()
        for first in stride(from: 0, to: repeats, by: Self.roundsOfStage) {
            let directory = "\(NSTemporaryDirectory())/apus-failover-\(getpid())"
            var options = FailoverStage.Options()
            options.hasEtcd = etcd
            let stage = try await FailoverStage(
                directory: directory, executable: apus, basePort: basePort, options: options)
            do {
                for round in first..<min(repeats, first + Self.roundsOfStage) {
                    try await stage.heal()
                    try await play(kind, round: round, on: stage, into: &result)
                    let line = "\(kind.rawValue) \(round + 1)/\(repeats): \(result.line)\n"
                    FileHandle.standardError.write(Data(line.utf8))
                }
            } catch {
                await stage.down()
                throw error
            }
            await stage.down()
            try? FileManager.default.removeItem(atPath: directory)
        }
        return result
    }
    /// A cluster keeps a channel for a minute after its last use. Each round has its own channels, and with more rounds
    /// per cluster, those of all rounds would be copied to each new standby besides the measured ones.
    private static let roundsOfStage = 3

    private func play(
        _ kind: Kind, round: Int, on stage: FailoverStage, into result: inout FailoverResult
    ) async throws {
        let names = stage.local.mark.nodes.map { NodeName(unchecked: $0.name) }
        let victim = names[round % names.count]
        let others = names.filter { $0 != victim }
        let devices = try await stage.devices(channels, prefix: "r\(round)\(kind.rawValue)") { owner, standby in
            switch kind {
            case .primaryAndEndpoint, .primary, .pausedPrimary, .pausedEndpoint, .drained, .joined: owner == victim
            case .viewersEndpoint: owner != victim && standby != victim || owner != victim
            case .standby: standby == victim
            }
        }
        if kind == .joined { try await stage.drain(victim) }
        let cast = try await enter(devices, kind: kind, victim: victim, others: others, on: stage)
        defer { cast.leave() }
        try await cast.waitUntilWatched(frames: 40)

        let failedAt = MonotonicTime.now()
        var standbyDelay: Duration?
        if kind.isPlanned {
            if kind == .drained { try await stage.drain(victim) } else { try await stage.heal() }
            standbyDelay = MonotonicTime.now() - failedAt
        } else {
            try stage.signal(victim, kind.isPause ? SIGSTOP : SIGKILL)
            standbyDelay = try await self.standbyDelay(devices, victim: victim, since: failedAt, on: stage)
        }
        try await Task.sleep(for: .milliseconds(1500))
        result.add(first: cast, from: failedAt, to: .now(), standbyDelay: standbyDelay)
        if kind.isPause {
            try stage.signal(victim, SIGCONT)
            try await Task.sleep(for: .seconds(2))
        } else if !kind.isPlanned {
            // The new primary of most channels is killed too; one node is left.
            let map = try await stage.map()
            guard let second = map.owner(of: ShardID(of: devices[0]))?.id.name else { return }
            let secondAt = MonotonicTime.now()
            try stage.signal(second, SIGKILL)
            try await Task.sleep(for: .milliseconds(1500))
            result.add(second: cast, from: secondAt, to: .now())
        }
        for publisher in cast.publishers { publisher.pause() }
        try await cast.waitUntilCaughtUp()
        result.count(cast)
    }

    private func enter(
        _ devices: [DeviceID], kind: Kind, victim: NodeName, others: [NodeName], on stage: FailoverStage
    ) async throws -> FailoverCast {
        let cast = FailoverCast()
        let isPublisherAtVictim = kind == .primaryAndEndpoint || kind == .pausedEndpoint || kind == .drained
        let areViewersAtVictim = kind == .viewersEndpoint || kind == .pausedEndpoint || kind == .drained
        for (index, device) in devices.enumerated() {
            let endpoint = isPublisherAtVictim ? victim : others[index % others.count]
            cast.publishers.append(try await stage.publisher(device, endpoint: endpoint))
        }
        for publisher in cast.publishers { publisher.start() }
        try await Task.sleep(for: .milliseconds(300))
        for (index, device) in devices.enumerated() {
            for number in 0..<viewers {
                let endpoint = areViewersAtVictim ? victim : others[(index + number) % others.count]
                cast.add(try await stage.viewer(device, number: number, endpoint: endpoint), of: index)
            }
        }
        return cast
    }

    /// The time until every channel has a live standby again; nil after 5 s.
    private func standbyDelay(
        _ devices: [DeviceID], victim: NodeName, since: MonotonicTime, on stage: FailoverStage
    ) async throws -> Duration? {
        while MonotonicTime.now() - since < .seconds(5) {
            let map = try await stage.map()
            let isReplaced = devices.allSatisfy { device in
                let shard = ShardID(of: device)
                guard let owner = map.owner(of: shard), let standby = map.standby(of: shard) else { return false }
                return owner.id.name != victim && standby.id.name != victim && owner.state.isAlive
                    && standby.state.isAlive
            }
            if isReplaced { return MonotonicTime.now() - since }
            try await Task.sleep(for: .milliseconds(5))
        }
        return nil
    }
}

/// The publishers and viewers of one round.
final class FailoverCast {
    var publishers: [BenchPublisher] = []
    private(set) var viewers: [(channel: Int, viewer: BenchViewer)] = []

    func add(_ viewer: BenchViewer, of channel: Int) {
        keep(viewer, of: channel)
        viewer.start()
    }

    /// Adds a viewer that is already watching.
    func keep(_ viewer: BenchViewer, of channel: Int) { viewers.append((channel, viewer)) }

    func leave() {
        for entry in viewers { entry.viewer.stop() }
        for publisher in publishers { publisher.stop() }
    }

    func waitUntilWatched(frames: Int) async throws {
        let deadline = MonotonicTime.now() + .seconds(20)
        while !viewers.allSatisfy({ $0.viewer.records.count >= frames }) {
            guard MonotonicTime.now() < deadline else {
                throw ApusError(.deadlineExceeded, "not every viewer got its first frames")
            }
            try await Task.sleep(for: .milliseconds(50))
        }
    }

    /// Waits until every viewer has the publisher's last frame, for at most five seconds.
    func waitUntilCaughtUp() async throws {
        let deadline = MonotonicTime.now() + .seconds(5)
        while MonotonicTime.now() < deadline {
            try await Task.sleep(for: .milliseconds(50))
            if viewers.allSatisfy({ Int($0.viewer.newest ?? 0) + 1 >= publishers[$0.channel].sent }) { return }
        }
    }
}

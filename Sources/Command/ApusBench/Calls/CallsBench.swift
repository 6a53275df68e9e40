import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOPosix

/// `apus-bench calls`: the signaling of calls across three nodes at a fixed rate, forked calls, calls with media, the
/// highest rate, and the memory of calls in progress; in the same run kamailio with sipp.
struct BenchCallsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "calls", abstract: "Place calls across three nodes, beside kamailio with sipp.")

    enum Part: String, ExpressibleByArgument, CaseIterable {
        case steady, forks, media, highest, memory
    }

    @Option(help: "Place this number of calls a second.") var rate = 200.0
    @Option(help: "Set the length of a round, in seconds.") var seconds = 30.0
    @Option(help: "Place calls for this number of seconds before the first round.") var warmUp = 5.0
    @Option(help: "Run this number of rounds, and report all their calls together.") var rounds = 1
    @Option(parsing: .upToNextOption, help: "Measure these parts.") var parts = Part.allCases
    @Option(help: "Use this number of accounts with an app and a device.") var pairs = 1200
    @Option(help: "Use this number of accounts whose device calls three apps.") var families = 100
    @Option(help: "Place this number of forked calls a second.") var forkRate = 25.0
    @Option(help: "Place this number of calls with media a second.") var mediaRate = 25.0
    @Option(help: "For the highest rate, keep p99 of start → ring within this, in milliseconds.") var bound = 25.0
    @Option(help: "Set the length of a step to the highest rate, in seconds.") var stepSeconds = 8.0
    @Option(help: "Keep this number of calls in progress for their memory.") var calls = 2000
    @Flag(inversion: .prefixedNo, help: "Both sides of a call report that they have media.") var media = true
    @Flag(help: "Measure without kamailio.") var alone = false
    @Option(help: "Set the first port of the cluster.") var basePort = 29_500
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// Steps of the search for the highest rate.
    private static let stepsMax = 7
    private static let bisections = 2

    func validate() throws {
        guard (1...10_000).contains(rate), (1...3600).contains(seconds), (0...600).contains(warmUp),
            (1...100).contains(rounds), (1...100_000).contains(pairs), (1...10_000).contains(families),
            (1...10_000).contains(forkRate), (1...10_000).contains(mediaRate), (1...600).contains(stepSeconds),
            (1...100_000).contains(calls)
        else { throw ValidationError("a number is out of range") }
        guard (1_024...32_500).contains(basePort) else { throw ValidationError("--base-port must be 1024 to 32500") }
    }

    func run() async throws {
        let options = self
        let result = try await BenchScope.run { scope in
            let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
            var result = CallBenchResult()
            if options.parts.contains(where: { $0 != .memory }) {
                result = try await options.withStage(scope, group) { stage in
                    let load = try await CallLoad(
                        stage, pairs: options.pairs, families: options.parts.contains(.forks) ? options.families : 0,
                        hasMedia: options.media)
                    return try await load.run { try await options.measure(load, stage, scope) }
                }
            }
            if options.parts.contains(.memory) {
                result.memory = try await options.withStage(scope, group) { stage in
                    let load = try await CallLoad(stage, pairs: options.calls, families: 0, hasMedia: true)
                    return try await load.run { try await load.memory() }
                }
            }
            return result
        }
        print(result.table)
        if json { print(try result.json()) }
        guard result.isClean else { throw ExitCode.failure }
    }

    /// Runs the body with a cluster of its own.
    private func withStage<Result>(
        _ scope: BenchScope, _ group: MultiThreadedEventLoopGroup, _ body: (SignInStage) async throws -> Result
    ) async throws -> Result {
        let stage = try SignInStage(
            executable: try BenchPrograms.apus(), nodes: 3,
            directory: "\(NSTemporaryDirectory())/apus-calls-\(getpid())", basePort: basePort, group: group)
        let end = scope.onEnd { stage.down() }
        defer { scope.end(end) }
        return try await body(stage)
    }

    private func measure(_ load: CallLoad, _ stage: SignInStage, _ scope: BenchScope) async throws -> CallBenchResult {
        var result = CallBenchResult()
        result.idle = load.idleShare
        if warmUp > 0 { say("warm-up", try await load.steady(rate: rate, seconds: warmUp)) }
        if parts.contains(.steady) {
            let kamailio =
                alone
                ? nil
                : try await Kamailio(
                    directory: stage.local.directory.path, port: basePort + 90, users: pairs, scope: scope)
            for round in 0..<rounds {
                for isOurs in round.isMultiple(of: 2) ? [true, false] : [false, true] {
                    if isOurs {
                        let part = try await load.steady(rate: rate, seconds: seconds)
                        say("apus \(round + 1)/\(rounds)", part)
                        result.apus.add(part)
                    } else if let part = try await kamailio?.steady(rate: rate, seconds: seconds) {
                        say("kamailio \(round + 1)/\(rounds)", part)
                        result.kamailio = result.kamailio ?? CallPart()
                        result.kamailio?.add(part)
                    }
                }
            }
        }
        if parts.contains(.forks) {
            let part = try await load.forks(rate: forkRate, seconds: seconds / 2)
            say("forked", part)
            result.forks = part
        }
        if parts.contains(.media) {
            let part = try await load.media(rate: mediaRate, seconds: seconds / 2)
            say("with media", part)
            result.media = part
        }
        if parts.contains(.highest) {
            (result.highest, result.steps) = try await highest(load)
        }
        return result
    }

    /// Doubles or halves the rate until the bound is crossed, then takes the middle a few times.
    private func highest(_ load: CallLoad) async throws -> (Double?, [(rate: Double, p99: Double, failed: Int)]) {
        var steps: [(rate: Double, p99: Double, failed: Int)] = []
        var (good, bad) = (Double?.none, Double?.none)
        var (next, middles) = (rate, 0)
        while steps.count < Self.stepsMax, middles <= Self.bisections {
            _ = try await load.steady(rate: next, seconds: 1)
            let part = try await load.steady(rate: next, seconds: stepSeconds)
            let p99 = part.quantile(.ring, 0.99) ?? .infinity
            steps.append((next, p99, part.failed))
            say(String(format: "%.0f/s", next), part)
            if p99 <= bound, part.failed == 0 { good = next } else { bad = next }
            switch (good, bad) {
            case (let good?, let bad?):
                next = ((good + bad) / 2).rounded()
                middles += 1
            case (let good?, nil): next = good * 1.5
            case (nil, let bad?): next = (bad / 2).rounded()
            case (nil, nil): break
            }
            guard next >= 1 else { break }
            // What is still on its way arrives.
            try await Task.sleep(for: .seconds(3))
        }
        return (good ?? 0, steps)
    }

    private func say(_ name: String, _ part: CallPart) { BenchScope.say("\(name): \(part.line)") }
}

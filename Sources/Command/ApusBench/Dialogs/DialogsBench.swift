import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOPosix

/// `apus-bench dialogs`: sentences that apps say to many devices, across three nodes. With `--kills`, nodes are killed
/// while other dialogs are in each of their states, and what the devices were asked to do is compared with the replies.
struct BenchDialogsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "dialogs", abstract: "Say sentences to many devices, also while nodes are killed.",
        discussion: """
            With --kills, exits with 1 if a dialog has no answer and no error with a number, if an action, a directive \
            or a ring comes twice or not at all, if p99 of the added delay is over 700 ms, or if p99 of how late \
            timers ring is over 500 ms.
            """)

    @Option(help: "Use this number of devices.") var devices = 64
    @Option(help: "Say this number of sentences a second.") var rate = 20.0
    @Option(help: "Set the length of a round, in seconds.") var seconds = 8.0
    @Option(help: "Run this number of rounds and report medians.") var rounds = 3
    @Option(help: "Kill a node this number of times, each node in turn, and check every dialog.") var kills = 0
    @Option(help: "With kills: keep this number of further dialogs in all states at each kill.") var dialogs = 36
    @Option(help: "Start the node again this number of milliseconds after the kill.") var downMilliseconds = 1000
    @Option(help: "Set the first port of the cluster.") var basePort = 29_450
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1...256).contains(devices) else { throw ValidationError("--devices must be 1 to 256") }
        guard (0...10_000).contains(kills), (0...60_000).contains(downMilliseconds) else {
            throw ValidationError("--kills must be 0 to 10000, and --down-milliseconds 0 to 60000")
        }
        guard (DialogKillKind.allCases.count...240).contains(dialogs) else {
            throw ValidationError("--dialogs must be \(DialogKillKind.allCases.count) to 240")
        }
    }

    func run() async throws {
        let options = self
        let isClean = try await BenchScope.run { scope in
            let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
            let directory = "\(NSTemporaryDirectory())/apus-dialogs-\(getpid())"
            let stage = try SignInStage(
                executable: try BenchPrograms.apus(), nodes: 3, directory: directory, basePort: options.basePort,
                group: group)
            scope.onEnd { stage.down() }
            let load = try await DialogLoad(stage, devices: options.devices)
            defer { load.close() }
            return options.kills > 0 ? try await options.kill(stage, load) : try await options.measure(load)
        }
        guard isClean else { throw ExitCode.failure }
    }

    private func measure(_ load: DialogLoad) async throws -> Bool {
        var (p50, p99, cpu, failed) = ([Double](), [Double](), [Double](), 0)
        for round in 0..<rounds {
            let before = try load.busySeconds()
            let outcomes = await load.run(rate: rate, seconds: seconds)
            let times = outcomes.filter(\.isDone).map(\.milliseconds)
            if let outcome = outcomes.first(where: { !$0.isDone }) { BenchScope.say("a sentence failed: \(outcome)") }
            failed += outcomes.count - times.count
            cpu.append((try load.busySeconds() - before) * 1e3 / Double(max(1, times.count)))
            p50.append(FailoverResult.quantile(times, 0.5) ?? 0)
            p99.append(FailoverResult.quantile(times, 0.99) ?? 0)
            BenchScope.say("round \(round + 1)/\(rounds)")
        }
        func median(_ values: [Double]) -> Double { FailoverResult.quantile(values, 0.5) ?? 0 }
        try report([
            ("sentences a second", "per_s", rate), ("p50, ms", "p50_ms", median(p50)),
            ("p99, ms", "p99_ms", median(p99)), ("nodes' CPU for a sentence, ms", "cpu_ms", median(cpu)),
            ("failed", "failed", Double(failed)),
        ])
        return failed == 0
    }

    private func kill(_ stage: SignInStage, _ load: DialogLoad) async throws -> Bool {
        let killed = try await DialogKillLoad(stage, dialogs: dialogs)
        defer { killed.close() }
        let isOver = AtomicFlag()
        // Sentences go on all the time.
        async let saying = load.run(rate: rate, until: isOver)
        let result: DialogKillResult
        do {
            result = try await killed.run(kills: kills, down: .milliseconds(Int64(downMilliseconds)))
            _ = isOver.set()
        } catch {
            _ = isOver.set()
            throw error
        }
        let values = await load.check(await saying)
        print(result.table)
        try report(result.values + values.map { ($0.0, "continuous_\($0.1)", $0.2) })
        return result.isClean
            && values.allSatisfy { $0.1.hasSuffix("_ms") || $0.1 == "sentences" || $0.1 == "polite" || $0.2 == 0 }
    }

    private func report(_ values: [(String, String, Double)]) throws {
        let rows = [["MEASURE", "VALUE"]] + values.map { [$0.0, String(format: "%.2f", $0.2)] }
        print(TextTable.lines(rows).joined(separator: "\n"))
        guard json else { return }
        let object = Dictionary(uniqueKeysWithValues: values.map { ($0.1, $0.2) })
        print(String(decoding: try JSONSerialization.data(withJSONObject: object), as: UTF8.self))
    }
}

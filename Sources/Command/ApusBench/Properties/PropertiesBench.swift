import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOPosix

/// `apus-bench properties`: writes of properties of many devices, across three nodes, with a subscriber to each
/// device's changes, also beside alarms and changes of rights. With `--kills`, nodes are killed, and what subscribers
/// received is compared with what was acknowledged.
struct BenchPropertiesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "properties", abstract: "Write properties of many devices, also while nodes are killed.")

    @Option(help: "Use this number of devices.") var devices = 200
    @Option(help: "Use this number of apps.") var apps = 24
    @Option(help: "Make this number of writes a second.") var rate = 500.0
    @Option(help: "Set the length of a round, in seconds.") var seconds = 8.0
    @Option(help: "Run this number of rounds and report medians.") var rounds = 3
    @Option(help: "Let one of this number of writes be an alarm of the device; 0: none.") var alarmEach = 0
    @Option(help: "Let one of this number of writes be a change of who may use the device; 0: none.") var rightEach = 0
    @Option(help: "Kill a node this number of times, each node in turn, and check every event.") var kills = 0
    @Option(help: "Upgrade the nodes to this program during the writes, and check every event.") var upgrade: String?
    @Option(help: "Set the first port of the cluster.") var basePort = 29_400
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func run() async throws {
        let options = self
        let isClean = try await BenchScope.run { scope in
            let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
            let directory = "\(NSTemporaryDirectory())/apus-properties-\(getpid())"
            let stage = try SignInStage(
                executable: try BenchPrograms.apus(), nodes: 3, directory: directory, basePort: options.basePort,
                group: group)
            scope.onEnd { stage.down() }
            let load = try await PropertyLoad(stage, devices: options.devices, apps: options.apps)
            defer { load.close() }
            if let program = options.upgrade { return try await options.upgrade(stage, to: program, load) }
            return options.kills > 0 ? try await options.kill(stage, load) : try await options.measure(load)
        }
        guard isClean else { throw ExitCode.failure }
    }

    private var mix: PropertyLoad.Mix { PropertyLoad.Mix(alarmEach: alarmEach, rightEach: rightEach) }

    private func measure(_ load: PropertyLoad) async throws -> Bool {
        var (p50, p99, cpu, failed) = ([Double](), [Double](), [Double](), 0)
        for round in 0..<rounds {
            let before = try load.busySeconds()
            let outcomes = await load.run(rate: rate, seconds: seconds, mix)
            let times = outcomes.filter { $0.error == nil }.map(\.milliseconds)
            if let error = outcomes.compactMap(\.error).first { BenchScope.say("a write failed: \(error)") }
            failed += outcomes.count - times.count
            cpu.append((try load.busySeconds() - before) * 1e6 / Double(max(1, times.count)))
            p50.append(FailoverResult.quantile(times, 0.5) ?? 0)
            p99.append(FailoverResult.quantile(times, 0.99) ?? 0)
            BenchScope.say("round \(round + 1)/\(rounds)")
        }
        func median(_ values: [Double]) -> Double { FailoverResult.quantile(values, 0.5) ?? 0 }
        try report([
            ("writes a second", "per_s", rate), ("p50, ms", "p50_ms", median(p50)), ("p99, ms", "p99_ms", median(p99)),
            ("nodes' CPU for a write, µs", "cpu_us", median(cpu)), ("failed", "failed", Double(failed)),
        ])
        return failed == 0
    }

    private func kill(_ stage: SignInStage, _ load: PropertyLoad) async throws -> Bool {
        let names = stage.local.mark.nodes.map(\.name)
        // From a kill to the next one: the others take over, and the node is back.
        let interval = 4.0
        async let outcomes = load.run(rate: rate, seconds: interval * Double(kills + 1), mix)
        for number in 0..<kills {
            try await Task.sleep(for: .seconds(interval - 1))
            try stage.kill(names[number % names.count])
            try await Task.sleep(for: .seconds(1))
            try stage.restart()
            BenchScope.say("killed \(names[number % names.count]) (\(number + 1)/\(kills))")
        }
        return try await check(await outcomes, load)
    }

    /// The nodes were started with the program of `APUS`, such as that of the release before.
    private func upgrade(_ stage: SignInStage, to program: String, _ load: PropertyLoad) async throws -> Bool {
        async let outcomes = load.run(rate: rate, seconds: seconds, mix)
        try await Task.sleep(for: .seconds(2))
        let began = MonotonicTime.now()
        try await BenchPrograms.run(
            program, ["cluster", "upgrade", "--binary", program, "--dir", stage.local.directory.path])
        BenchScope.say("the nodes were upgraded in \((MonotonicTime.now() - began).milliseconds / 1000) s")
        return try await check(await outcomes, load)
    }

    private func check(_ outcomes: [PropertyLoad.Outcome], _ load: PropertyLoad) async throws -> Bool {
        let values = try await load.check(outcomes)
        try report(values)
        let counts: Set = ["writes", "alarms", "rights"]
        return values.allSatisfy { $0.1.hasSuffix("_ms") || counts.contains($0.1) || $0.2 == 0 }
    }

    private func report(_ values: [(String, String, Double)]) throws {
        let rows = [["MEASURE", "VALUE"]] + values.map { [$0.0, String(format: "%.2f", $0.2)] }
        print(TextTable.lines(rows).joined(separator: "\n"))
        guard json else { return }
        let object = Dictionary(uniqueKeysWithValues: values.map { ($0.1, $0.2) })
        print(String(decoding: try JSONSerialization.data(withJSONObject: object), as: UTF8.self))
    }
}

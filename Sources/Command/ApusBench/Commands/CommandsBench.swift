import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOPosix

/// `apus-bench commands`: actions of many devices, across three nodes, with their answers; in the same run the same
/// work over mosquitto. With `--kills`, nodes are killed meanwhile, and the devices' journals are compared with the
/// answers.
struct BenchCommandsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "commands",
        abstract: "Send commands to many devices, beside mosquitto, or while nodes are killed.")

    @Option(help: "Use this number of devices.") var devices = 200
    @Option(help: "Use this number of apps.") var apps = 24
    @Option(help: "Send this number of commands a second.") var rate = 2000.0
    @Option(help: "For the highest rate, keep this number of commands in progress.") var concurrency = 128
    @Option(help: "Set the length of a part, in seconds.") var seconds = 5.0
    @Option(help: "Run this number of rounds and report medians.") var rounds = 3
    @Flag(help: "Measure without mosquitto.") var alone = false
    @Flag(help: "Give each device a journal on the disk, also without --kills.") var journals = false
    @Option(help: "Kill a node this number of times, each node in turn, and check every command.") var kills = 0
    @Option(help: "With --kills: send this number of commands.") var commands = 100_000
    @Flag(help: "With --kills: send commands that end with their requests, instead of those that are kept.")
    var live = false
    @Option(help: "Set the first port of the cluster.") var basePort = 29_200
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// What one part measured: times in milliseconds.
    struct Part {
        var rate: Double
        var p50: Double
        var p99: Double
        var failed: Int
        /// Of the servers' processes, in microseconds for each command.
        var cpu: Double
    }

    func run() async throws {
        let options = self
        let isClean = try await BenchScope.run { scope in
            let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
            let directory = "\(NSTemporaryDirectory())/apus-commands-\(getpid())"
            let stage = try SignInStage(
                executable: try BenchPrograms.apus(), nodes: 3, directory: directory, basePort: options.basePort,
                group: group)
            scope.onEnd { stage.down() }
            let isKilling = options.kills > 0
            let load = try await CommandLoad(
                stage, devices: options.devices, apps: options.apps,
                journals: isKilling || options.journals ? "\(directory)/journals" : nil)
            defer { load.close() }
            if isKilling { return try await options.kill(stage, load) }
            return try await options.measure(stage, load, scope, directory: directory)
        }
        guard isClean else { throw ExitCode.failure }
    }

    // MARK: - Rates

    private func measure(
        _ stage: SignInStage, _ load: CommandLoad, _ scope: BenchScope, directory: String
    ) async throws -> Bool {
        let broker = alone ? nil : try Mosquitto(stage.local, directory: directory, port: basePort + 90, scope: scope)
        var parts: [String: [Part]] = [:]
        for round in 0..<rounds {
            let sides =
                broker == nil ? ["apus"] : round.isMultiple(of: 2) ? ["apus", "mosquitto"] : ["mosquitto", "apus"]
            for side in sides {
                let isOurs = side == "apus"
                let steady =
                    isOurs
                    ? try await load.steady(rate: rate, seconds: seconds)
                    : try broker?.run(devices, apps, rate: rate, concurrency: 0, seconds: seconds)
                let highest =
                    isOurs
                    ? try await load.highest(concurrency: concurrency, seconds: seconds)
                    : try broker?.run(devices, apps, rate: 0, concurrency: concurrency, seconds: seconds)
                if let steady { parts["\(side) steady", default: []].append(steady) }
                if let highest { parts["\(side) highest", default: []].append(highest) }
            }
            BenchScope.say("round \(round + 1)/\(rounds)")
        }
        var rows = [["LOAD", "COMMANDS/S", "P50 MS", "P99 MS", "FAILED", "SERVER CPU US"]]
        var values: [String: Double] = [:]
        for name in ["apus steady", "mosquitto steady", "apus highest", "mosquitto highest"] {
            guard let found = parts[name] else { continue }
            func median(_ value: (Part) -> Double) -> Double { FailoverResult.quantile(found.map(value), 0.5) ?? 0 }
            let numbers = [median(\.rate), median(\.p50), median(\.p99), Double(found.reduce(0) { $0 + $1.failed })]
            rows.append(
                [name] + zip(numbers, ["%.0f", "%.2f", "%.2f", "%.0f"]).map { String(format: $1, $0) }
                    + [String(format: "%.0f", median(\.cpu))])
            let key = name.replacing(" ", with: "_")
            values["\(key)_per_s"] = numbers[0]
            values["\(key)_p50_ms"] = numbers[1]
            values["\(key)_p99_ms"] = numbers[2]
            values["\(key)_cpu_us"] = median(\.cpu)
            values["\(key)_failed"] = numbers[3]
        }
        print(TextTable.lines(rows).joined(separator: "\n"))
        if json { print(String(decoding: try JSONSerialization.data(withJSONObject: values), as: UTF8.self)) }
        return parts.filter { $0.key.hasPrefix("apus") }.values.allSatisfy { $0.allSatisfy { $0.failed == 0 } }
    }

    // MARK: - Kills

    private func kill(_ stage: SignInStage, _ load: CommandLoad) async throws -> Bool {
        let names = stage.local.mark.nodes.map(\.name)
        let progress = CommandProgress()
        async let outcomes = load.send(commands, concurrency: 32, isLive: live, progress)
        var killed = 0
        while killed < kills {
            // Spread over the commands.
            let next = commands * (killed + 1) / (kills + 1)
            while progress.count < next { try await Task.sleep(for: .milliseconds(50)) }
            let name = names[killed % names.count]
            try stage.kill(name)
            killed += 1
            try await Task.sleep(for: .seconds(1))
            try stage.restart()
            BenchScope.say("killed \(name) (\(killed)/\(kills)) at \(progress.count) commands")
        }
        let check = try await load.check(await outcomes)
        print(TextTable.lines(check.rows).joined(separator: "\n"))
        if json { print(String(decoding: try JSONSerialization.data(withJSONObject: check.values), as: UTF8.self)) }
        return check.isClean
    }
}

import ApusCluster
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus-bench upgrade`: upgrades three nodes under load, and reports what clients saw of it.
///
/// Three loads run beside each other, all against `apus-doors`: changes of replicated entities at a fixed rate, cameras
/// with viewers, and allocations at the relays. `apus-doors cluster upgrade` then restarts every node with another
/// build of the same program.
struct BenchUpgradeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "upgrade", abstract: "Upgrade three nodes under load, and report what clients saw of it.")

    @Option(help: "Change this number of entities a second.") var rate = 2_000
    @Option(help: "Use this number of clients that change entities.") var clients = 40
    @Option(help: "Use this number of channels.") var channels = 20
    @Option(help: "Use this number of viewers for each channel.") var viewers = 1
    @Option(help: "Use this number of allocations at the relays.") var allocations = 500
    @Option(help: "Run this number of rounds, each with a new cluster.") var repeats = 1
    @Option(help: "Set the first port of the cluster.") var basePort = 27_400
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1...100_000).contains(rate), (1...1000).contains(clients) else {
            throw ValidationError("--rate must be 1 to 100000, and --clients 1 to 1000")
        }
    }

    func run() async throws {
        let options = self
        let results = try await BenchScope.run { scope in
            var results: [UpgradeResult] = []
            for round in 1...max(1, options.repeats) {
                let result = try await options.play(scope)
                BenchScope.say("round \(round)/\(options.repeats): \(result.line)")
                results.append(result)
            }
            return results
        }
        print(TextTable.lines(UpgradeResult.rows(results)).joined(separator: "\n"))
        if json { print(UpgradeResult.json(results)) }
        guard results.allSatisfy(\.isClean) else { throw ExitCode.failure }
    }

    private func play(_ scope: BenchScope) async throws -> UpgradeResult {
        let program = try BenchPrograms.doors()
        var stageOptions = FailoverStage.Options()
        stageOptions.executable = program
        return try await scope.withStage(basePort: basePort, name: "upgrade", options: stageOptions) { stage in
            let next = "\(stage.local.directory.path)/apus-doors-next"
            try Self.copy(program, to: next)
            let cast = try await enter(stage)
            defer { cast.leave() }
            let echo = try EchoPeer()
            defer { echo.stop() }
            let relays = try AllocationLoad(stage.local, count: allocations, peer: echo.address)
            let changes = try await ChangeLoad(stage.local, clients: clients, rate: rate)
            async let work: Void = changes.run()
            let start = MonotonicTime.now()
            try await Task.sleep(for: .seconds(5))
            BenchScope.say("the loads run; the upgrade begins")
            let begin = MonotonicTime.now()
            try await BenchPrograms.run(
                program, ["cluster", "upgrade", "--binary", next, "--dir", stage.local.directory.path])
            let end = MonotonicTime.now()
            try await Task.sleep(for: .seconds(3))
            changes.stop()
            await work
            for publisher in cast.publishers { publisher.pause() }
            try await cast.waitUntilCaughtUp()
            return UpgradeResult(
                start: start, begin: begin, end: end, changes: changes.result, relays: relays.stop(), cast: cast)
        }
    }

    private func enter(_ stage: FailoverStage) async throws -> FailoverCast {
        let names = stage.local.mark.nodes.map { NodeName(unchecked: $0.name) }
        let devices = try await stage.devices(channels, prefix: "u") { _, _ in true }
        let cast = FailoverCast()
        for (index, device) in devices.enumerated() {
            let publisher = try await stage.publisher(device, endpoint: names[index % names.count], frames: .light)
            cast.publishers.append(publisher)
            publisher.start()
        }
        try await Task.sleep(for: .seconds(1))
        for (index, device) in devices.enumerated() {
            for number in 0..<viewers {
                let viewer = try await stage.viewer(
                    device, number: number, endpoint: names[(index + number + 1) % names.count])
                cast.add(viewer, of: index)
            }
        }
        try await cast.waitUntilWatched(frames: 25)
        return cast
    }

    /// Another build of the same program: a byte after its end changes nothing in it.
    private static func copy(_ program: String, to path: String) throws {
        try? FileManager.default.removeItem(atPath: path)
        try FileManager.default.copyItem(atPath: program, toPath: path)
        let file = try FileHandle(forWritingTo: URL(fileURLWithPath: path))
        try file.seekToEnd()
        try file.write(contentsOf: Data([0]))
        try file.close()
    }
}

/// What clients saw of one upgrade.
struct UpgradeResult: Sendable {
    /// The goal for changes during the upgrade, in milliseconds.
    private static let p99Max = 50.0
    /// The goal for the gap between two frames: two frame intervals.
    private static let gapMax = BenchFrames.interval.milliseconds * 2

    private let seconds: Double
    private let before: [Double]
    private let during: [Double]
    private let failures: [String]
    private let repeatedCount: Int
    /// The longest gap of each viewer in the seconds before, and meanwhile.
    private let gapsBefore: [Double]
    private let gaps: [Double]
    private let lostFrames: Int
    private let relays: AllocationLoad.Seen

    init(
        start: MonotonicTime, begin: MonotonicTime, end: MonotonicTime, changes: ChangeLoad.Seen,
        relays: AllocationLoad.Seen, cast: FailoverCast
    ) {
        seconds = (end - begin).milliseconds / 1000
        before = changes.changes.filter { $0.due < begin }.map(\.milliseconds)
        during = changes.changes.filter { $0.due >= begin && $0.due < end }.map(\.milliseconds)
        (failures, repeatedCount) = (changes.failures, changes.repeatedCount)
        gapsBefore = cast.viewers.map { $0.viewer.gap(from: start, to: begin).milliseconds }
        gaps = cast.viewers.map { $0.viewer.gap(from: begin, to: end).milliseconds }
        lostFrames = cast.viewers.reduce(0) { sum, entry in
            sum + entry.viewer.lostCount
                + max(0, cast.publishers[entry.channel].sent - 1 - Int(entry.viewer.newest ?? 0))
        }
        self.relays = relays
    }

    /// True if nothing failed and no frame was lost.
    var isClean: Bool { failures.isEmpty && relays.failures.isEmpty && lostFrames == 0 }

    private func quantile(_ values: [Double], _ share: Double) -> Double {
        FailoverResult.quantile(values, share) ?? 0
    }

    /// Each measure with its value and goal.
    private var measures: [(name: String, key: String, value: Double, goal: String)] {
        [
            ("upgrade of three nodes, s", "seconds", seconds, ""),
            ("changes a second meanwhile", "changes_per_s", Double(during.count) / max(seconds, 1), ""),
            ("changes failed", "changes_failed", Double(failures.count), "0"),
            ("attempts repeated by clients", "attempts_repeated", Double(repeatedCount), ""),
            ("change p50 before, ms", "change_p50_before_ms", quantile(before, 0.5), ""),
            ("change p99 before, ms", "change_p99_before_ms", quantile(before, 0.99), ""),
            ("change p50 meanwhile, ms", "change_p50_ms", quantile(during, 0.5), ""),
            ("change p99 meanwhile, ms", "change_p99_ms", quantile(during, 0.99), "\(Int(Self.p99Max))"),
            ("change max meanwhile, ms", "change_max_ms", quantile(during, 1), ""),
            ("frame gap max before, ms", "gap_max_before_ms", quantile(gapsBefore, 1), ""),
            ("frame gap p50 of viewers, ms", "gap_p50_ms", quantile(gaps, 0.5), ""),
            ("frame gap max, ms", "gap_max_ms", quantile(gaps, 1), "\(Int(Self.gapMax))"),
            ("frames lost or doubled", "frames_lost", Double(lostFrames), "0"),
            ("allocations lost", "allocations_lost", Double(relays.failures.count), "0"),
            ("allocations moved", "allocations_moved", Double(relays.movedCount), ""),
            ("relay silence p99, ms", "relay_silence_p99_ms", quantile(relays.silences, 0.99), ""),
        ]
    }

    var line: String {
        measures.map { "\($0.key) \(String(format: "%.1f", $0.value))" }.joined(separator: ", ")
            + (failures + relays.failures).prefix(3).map { "; \($0)" }.joined()
    }

    /// A row for each measure, with a column for each round.
    static func rows(_ results: [UpgradeResult]) -> [[String]] {
        guard let first = results.first else { return [] }
        let head = ["MEASURE"] + results.indices.map { "ROUND \($0 + 1)" } + ["GOAL"]
        return [head]
            + first.measures.indices.map { index in
                [first.measures[index].name] + results.map { String(format: "%.1f", $0.measures[index].value) }
                    + [first.measures[index].goal]
            }
    }

    /// The worst value of each measure over the rounds, as one JSON object.
    static func json(_ results: [UpgradeResult]) -> String {
        guard let first = results.first else { return "{}" }
        let fields = first.measures.indices.map { index in
            let worst = results.map { $0.measures[index].value }.max() ?? 0
            return "\"\(first.measures[index].key)\":\(String(format: "%.3f", worst))"
        }
        return "{\(fields.joined(separator: ","))}"
    }
}

import ApusCore
import ArgumentParser
import Foundation

/// `apus-bench faults`: realistic faults under cameras and viewers, and their effects on each client.
/// Each row of the table is a fault with its own limits (``FaultBound``). A row that exceeds one fails the run.
struct BenchFaultsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "faults",
        abstract: "Cause realistic faults under cameras and viewers, and report their effects on each client.")

    /// The selectable groups of rows.
    enum Kind: String, CaseIterable {
        case ways, crowd, cpu
        case stoppedStore = "stopped-store"
        case damagedStore = "damaged-store"
        case clocks, crashes, descriptors, thousand, rejoin, twins

        /// The default number of rounds of each row.
        var repeats: Int {
            switch self {
            case .ways, .clocks, .damagedStore, .descriptors: 2
            case .crowd, .thousand, .rejoin: 3
            case .cpu, .crashes, .twins: 5
            case .stoppedStore: 10
            }
        }
    }

    @Option(help: "Run these kinds, separated by commas: \(Kind.allCases.map(\.rawValue).joined(separator: ", ")).")
    var kinds = Kind.allCases.map(\.rawValue).joined(separator: ",")
    @Option(help: "Run only these rows, by their names in JSON, separated by commas.")
    var rows: String?
    @Option(help: "Run this number of rounds of each row. Default: 2 to 10, by kind.") var repeats: Int?
    @Option(help: "Use this number of channels in cpu, stopped-store, damaged-store, crashes and descriptors.")
    var channels = 4
    @Option(help: "Use this number of viewers per channel.") var viewers = 5
    @Option(help: "Use this number of viewers in ways, and a quarter as many cameras.") var wayViewers = 20
    @Option(help: "Use these round trips in ways, in ms, with commas.") var roundTrips = "0,150,300,600,1000"
    @Option(help: "Refuse this percentage of connection attempts in ways.") var refused = 5
    @Option(help: "Use this number of viewers in crowd, which start at once.") var crowd = 500
    @Option(help: "Use this number of viewers in thousand, all at the killed node.") var thousand = 1_000
    @Option(help: "Run this number of CPU hogs in cpu.") var hogs = 8
    @Option(help: "Use 600 ports from this one on.") var basePort = 27_000
    @Option(help: "Compare with this output of an earlier run with --json.")
    var before: String?
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1_024...64_000).contains(basePort) else { throw ValidationError("--base-port must be 1024 to 64000") }
        guard (0...100).contains(refused) else { throw ValidationError("--refused must be a percentage") }
        _ = try chosenKinds()
        _ = try chosenRoundTrips()
        _ = try earlierRows()
    }

    private func earlierRows() throws -> [String: [String: Any]] {
        guard let before else { return [:] }
        let text = try String(contentsOfFile: before, encoding: .utf8)
        // The file may contain several runs. The last one counts for each row.
        let runs = text.split(separator: "\n").compactMap {
            try? JSONSerialization.jsonObject(with: Data($0.utf8)) as? [String: [String: Any]]
        }
        guard !runs.isEmpty else { throw ValidationError("\(before) has no line of JSON") }
        return runs.reduce(into: [:]) { rows, run in rows.merge(run) { $1 } }
    }

    private func chosenKinds() throws -> [Kind] {
        try kinds.split(separator: ",").map { text in
            guard let kind = Kind(rawValue: String(text)) else { throw ValidationError("'\(text)' is not a kind.") }
            return kind
        }
    }

    private func chosenRoundTrips() throws -> [Int] {
        try roundTrips.split(separator: ",").map { text in
            guard let value = Int(text), (0...10_000).contains(value) else {
                throw ValidationError("'\(text)' is not a round trip of 0 to 10000 ms.")
            }
            return value
        }
    }

    func run() async throws {
        let kinds = try chosenKinds()
        let options = FaultRounds.Options(
            channels: channels, viewers: viewers, wayViewers: wayViewers, roundTrips: try chosenRoundTrips(),
            refusedShare: Double(refused) / 100, crowd: crowd, thousand: thousand, hogs: hogs, basePort: basePort,
            rows: rows.map { Set($0.split(separator: ",").map(String.init)) }, repeats: repeats)
        let results = try await BenchScope.run { scope in
            let rounds = FaultRounds(options: options, scope: scope)
            var results: [FaultResult] = []
            for kind in kinds { results += try await rounds.play(kind) }
            return results
        }
        guard !results.isEmpty else { throw ValidationError("no row of these kinds has a name of --rows") }
        print(FaultResult.table(results, before: try earlierRows()))
        for result in results {
            for miss in result.misses { print("MISSED  \(result.row.key): \(miss)") }
        }
        if json { print(try FaultResult.json(results)) }
        if results.contains(where: { !$0.misses.isEmpty }) { throw ExitCode.failure }
    }
}

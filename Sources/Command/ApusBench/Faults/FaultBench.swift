import ApusCore
import ArgumentParser
import Foundation

/// `apus-bench faults`: faults of real life under cameras and viewers, and what each client saw of them.
///
/// Each row of the table is a fault with bounds of its own (``FaultBound``); a row that misses one fails the run.
struct BenchFaultsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "faults",
        abstract: "Make the faults of real life under cameras and viewers, and report what each client saw.")

    /// The groups of rows that can be chosen.
    enum Kind: String, CaseIterable {
        case ways, crowd, cpu
        case stoppedStore = "stopped-store"
        case damagedStore = "damaged-store"
        case clocks, crashes, descriptors, thousand, rejoin, twins

        /// Rounds of each row where the command names no number.
        var repeats: Int {
            switch self {
            case .ways, .clocks, .damagedStore, .descriptors: 2
            case .crowd, .thousand, .rejoin: 3
            case .cpu, .crashes, .twins: 5
            case .stoppedStore: 10
            }
        }
    }

    @Option(help: "Kinds, separated by commas: \(Kind.allCases.map(\.rawValue).joined(separator: ", ")).")
    var kinds = Kind.allCases.map(\.rawValue).joined(separator: ",")
    @Option(help: "Rows of these kinds, by their names in JSON, separated by commas; default: all.")
    var rows: String?
    @Option(help: "Rounds of each row; default: 2 to 10, as the kind needs.") var repeats: Int?
    @Option(help: "Channels of a round of cpu, stopped-store, damaged-store, crashes and descriptors.")
    var channels = 4
    @Option(help: "Viewers of each channel.") var viewers = 5
    @Option(help: "Viewers of ways, and a quarter as many cameras.") var wayViewers = 20
    @Option(help: "Round trips of ways in milliseconds, separated by commas.") var roundTrips = "0,150,300,600,1000"
    @Option(help: "The share of connects that ways refuses, in percent.") var refused = 5
    @Option(help: "Viewers of crowd, which start at once.") var crowd = 500
    @Option(help: "Viewers of thousand, all at the node that is killed.") var thousand = 1_000
    @Option(help: "CPU hogs of cpu.") var hogs = 8
    @Option(help: "First port of the cluster; 600 from here on are used.") var basePort = 27_000
    @Option(help: "What an earlier run with --json printed: its rows stand below those of this run.")
    var before: String?
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1_024...64_000).contains(basePort) else { throw ValidationError("--base-port must be 1024 to 64000") }
        guard (0...100).contains(refused) else { throw ValidationError("--refused is a percentage") }
        _ = try chosenKinds()
        _ = try chosenRoundTrips()
        _ = try earlierRows()
    }

    private func earlierRows() throws -> [String: [String: Any]] {
        guard let before else { return [:] }
        let text = try String(contentsOfFile: before, encoding: .utf8)
        // Several runs may stand in one file; a later one of the same row counts.
        let runs = text.split(separator: "\n").compactMap {
            try? JSONSerialization.jsonObject(with: Data($0.utf8)) as? [String: [String: Any]]
        }
        guard !runs.isEmpty else { throw ValidationError("\(before) has no line of JSON") }
        return runs.reduce(into: [:]) { rows, run in rows.merge(run) { $1 } }
    }

    private func chosenKinds() throws -> [Kind] {
        try kinds.split(separator: ",").map { text in
            guard let kind = Kind(rawValue: String(text)) else { throw ValidationError("'\(text)' is no kind.") }
            return kind
        }
    }

    private func chosenRoundTrips() throws -> [Int] {
        try roundTrips.split(separator: ",").map { text in
            guard let value = Int(text), (0...10_000).contains(value) else {
                throw ValidationError("'\(text)' is no round trip of 0 to 10000 ms.")
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

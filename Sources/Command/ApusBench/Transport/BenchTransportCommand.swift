import ApusCore
import ArgumentParser
import Foundation

/// Measures calls between two nodes over mutual TLS, and those of Erlang/OTP in the same run (D3).
/// Each round measures both systems at each load, one after the other, so that both see the same machine state; the
/// medians of the rounds are reported. This node's callers run once on the link's event loop, as the handlers of a
/// node's own requests do, and once on the shared thread pool.
struct BenchTransportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport", abstract: "Measure calls between two nodes over TLS, and those of Erlang/OTP.")

    @Option(help: "Run this number of rounds and report the medians.") var rounds = 3
    @Option(help: "Measure for this number of seconds.") var seconds = 3.0
    @Option(help: "Use the apus_bench.erl of this directory.") var erlang = "Benchmarks/transport"
    @Option(help: "Also measure this build of apus-bench, or of an apus with the command bench.")
    var before: String?
    @Flag(help: "Skip Erlang/OTP.") var alone = false
    @Flag(help: "Print one JSON object as the last line.") var json = false

    private static let loads = [1, 64, 1024]

    func run() async throws {
        let directory = FileManager.default.temporaryDirectory.appendingPathComponent("apus-bench-\(UUID().uuidString)")
            .path
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        try BenchNode.mint(into: directory)

        let ours = try ApusPair(directory: directory)
        defer { ours.stop() }
        let older = try before.map { try ApusPair(directory: directory, executable: $0) }
        defer { older?.stop() }
        let theirs = alone ? nil : try ErlangPair(directory: directory, source: erlang)
        defer { theirs?.stop() }

        var results = Results()
        for round in 1...max(1, rounds) {
            for callers in Self.loads {
                say("round \(round), \(callers) callers")
                for onPool in [false, true] {
                    results.add(
                        onPool ? "apus, pool" : "apus", callers,
                        try ours.measure(callers: callers, seconds: seconds, onPool: onPool))
                }
                if let older {
                    results.add("before", callers, try older.measure(callers: callers, seconds: seconds, onPool: false))
                }
                if let theirs { results.add("erlang", callers, try theirs.measure(callers: callers, seconds: seconds)) }
            }
            say("round \(round), tells")
            results.add("apus", Results.tells, try ours.checkOrder())
            if let older { results.add("before", Results.tells, try older.checkOrder()) }
            if let theirs { results.add("erlang", Results.tells, try theirs.cast(count: 1_000_000)) }
        }
        report(results)
    }

    /// The results, by system and number of callers.
    private struct Results {
        /// Stands for one sender of tells, in place of a number of callers.
        static let tells = 0
        private var runs: [String: [Int: [BenchCallResult]]] = [:]

        mutating func add(_ system: String, _ load: Int, _ result: BenchCallResult) {
            runs[system, default: [:]][load, default: []].append(result)
        }

        func median(_ system: String, _ load: Int, _ value: (BenchCallResult) -> Double) -> Double? {
            guard let results = runs[system]?[load] else { return nil }
            let sorted = results.map(value).sorted()
            return sorted[sorted.count / 2]
        }

        func sum(_ system: String, _ load: Int, _ value: (BenchCallResult) -> Int) -> Int {
            (runs[system]?[load] ?? []).reduce(0) { $0 + value($1) }
        }
    }

    private static let systems = [("apus", ""), ("apus, pool", "pool_"), ("before", "before_"), ("erlang", "erlang_")]

    private func report(_ results: Results) {
        var values: [String: Double] = [:]
        print("calls of 64 bytes between two nodes, mutual TLS 1.3, medians of \(rounds) rounds")
        print(row(["callers", "system", "calls/s", "p50 µs", "p99 µs"]))
        for callers in Self.loads {
            for (system, prefix) in Self.systems {
                guard let rate = results.median(system, callers, { $0.callsPerSecond }),
                    let p50 = results.median(system, callers, { $0.p50Microseconds }),
                    let p99 = results.median(system, callers, { $0.p99Microseconds })
                else { continue }
                print(row(["\(callers)", system, fixed(rate, 0), fixed(p50, 1), fixed(p99, 1)]))
                if callers == 1 {
                    values["\(prefix)sequential_p50_us"] = p50
                    values["\(prefix)sequential_p99_us"] = p99
                } else {
                    values["\(prefix)calls_per_s_\(callers)"] = rate
                }
            }
        }
        for (system, key) in [("apus", "tells_per_s"), ("before", "before_tells_per_s"), ("erlang", "casts_per_s")] {
            guard let rate = results.median(system, Results.tells, { $0.callsPerSecond }) else { continue }
            values[key] = rate
            print(row(["1", system, fixed(rate, 0)]) + "  tells/s")
        }
        compare("calls_per_s_64", &values)
        compare("calls_per_s_1024", &values)
        compare("sequential_p50_us", &values, name: "sequential_p50")
        if let tells = values["tells_per_s"], let casts = values["casts_per_s"] {
            values["ratio_tells"] = tells / casts
            print("tells of one sender: \(fixed(tells / casts, 2)) times Erlang/OTP's casts")
        }
        let tells = results.sum("apus", Results.tells) { $0.calls }
        let outOfOrder = results.sum("apus", Results.tells) { $0.outOfOrder ?? 1 }
        values["tells"] = Double(tells)
        values["tells_out_of_order"] = Double(outOfOrder)
        print("\(tells) tells: \(outOfOrder) out of order")
        if json {
            let pairs = values.sorted { $0.key < $1.key }.map { "\"\($0.key)\":\(fixed($0.value, 3))" }
            print("{\(pairs.joined(separator: ","))}")
        }
    }

    /// Adds the ratios of a value to those of the other systems.
    private func compare(_ key: String, _ values: inout [String: Double], name: String? = nil) {
        guard let ours = values[key] else { return }
        let name = name ?? key
        if let theirs = values["erlang_\(key)"] {
            values["ratio_" + name.replacing("calls_per_s_", with: "")] = ours / theirs
            print("\(name): \(fixed(ours / theirs, 2)) of Erlang/OTP's")
        }
        if let theirs = values["before_\(key)"] {
            values["\(name)_ratio_before"] = ours / theirs
            print("\(name): \(fixed(ours / theirs, 2)) of the build before")
        }
    }

    private func row(_ cells: [String]) -> String {
        cells.enumerated().map { index, cell in
            let width = index < 2 ? 10 : 12
            let padding = String(repeating: " ", count: max(0, width - cell.count))
            return index < 2 ? cell + padding : padding + cell
        }.joined(separator: " ")
    }

    private func fixed(_ value: Double, _ digits: Int) -> String { String(format: "%.\(digits)f", value) }

    private func say(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }
}

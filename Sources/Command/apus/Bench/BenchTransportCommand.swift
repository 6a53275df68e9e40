import ApusCore
import ArgumentParser
import Foundation

/// Calls between two nodes over mutual TLS, beside Erlang/OTP's in the same run (D3).
///
/// Each round measures both systems at each load, one after the other, so that both see the same
/// machine; the medians of the rounds are reported. This node's callers run once on the link's event
/// loop, as the handlers of a node's own requests do, and once on the shared pool of threads.
struct BenchTransportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport", abstract: "Calls between two nodes over TLS, beside Erlang/OTP.")

    @Option(help: "Rounds; their medians are reported.") var rounds = 3
    @Option(help: "Seconds per measurement.") var seconds = 3.0
    @Option(help: "The directory of apus_bench.erl.") var erlang = "Benchmarks/transport"
    @Flag(help: "Leave Erlang/OTP out.") var alone = false
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
        let theirs = alone ? nil : try ErlangPair(directory: directory, source: erlang)
        defer { theirs?.stop() }

        var results: [String: [Int: [BenchCallResult]]] = [:]
        for round in 1...max(1, rounds) {
            for callers in Self.loads {
                say("round \(round), \(callers) callers")
                for onPool in [false, true] {
                    results[onPool ? "apus, pool" : "apus", default: [:]][callers, default: []].append(
                        try ours.measure(callers: callers, seconds: seconds, onPool: onPool))
                }
                if let theirs {
                    results["erlang", default: [:]][callers, default: []].append(
                        try theirs.measure(callers: callers, seconds: seconds))
                }
            }
        }
        let order = try ours.checkOrder()
        report(results, order)
    }

    private func report(_ results: [String: [Int: [BenchCallResult]]], _ order: BenchCallResult) {
        var values: [String: Double] = [:]
        print("calls of 64 bytes between two nodes, mutual TLS 1.3, medians of \(rounds) rounds")
        print(row(["callers", "system", "calls/s", "p50 µs", "p99 µs"]))
        for callers in Self.loads {
            for (system, prefix) in [("apus", ""), ("apus, pool", "pool_"), ("erlang", "erlang_")] {
                guard let runs = results[system]?[callers] else { continue }
                let rate = median(runs.map(\.callsPerSecond))
                let p50 = median(runs.map(\.p50Microseconds))
                let p99 = median(runs.map(\.p99Microseconds))
                print(row(["\(callers)", system, fixed(rate, 0), fixed(p50, 1), fixed(p99, 1)]))
                if callers == 1 {
                    values["\(prefix)sequential_p50_us"] = p50
                    values["\(prefix)sequential_p99_us"] = p99
                } else {
                    values["\(prefix)calls_per_s_\(callers)"] = rate
                }
            }
        }
        for callers in [64, 1024] {
            guard let ours = values["calls_per_s_\(callers)"], let theirs = values["erlang_calls_per_s_\(callers)"]
            else { continue }
            values["ratio_\(callers)"] = ours / theirs
            print("\(callers) callers: \(fixed(ours / theirs, 2)) times Erlang/OTP")
        }
        if let ours = values["sequential_p50_us"], let theirs = values["erlang_sequential_p50_us"] {
            values["ratio_sequential_p50"] = ours / theirs
            print("sequential p50: \(fixed(ours / theirs, 2)) of Erlang/OTP's time")
        }
        values["tells"] = Double(order.calls)
        values["tells_out_of_order"] = Double(order.outOfOrder ?? -1)
        print("\(order.calls) tells: \(order.outOfOrder ?? -1) out of order")
        if json {
            let pairs = values.sorted { $0.key < $1.key }.map { "\"\($0.key)\":\(fixed($0.value, 3))" }
            print("{\(pairs.joined(separator: ","))}")
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

    private func median(_ values: [Double]) -> Double {
        let sorted = values.sorted()
        return sorted.isEmpty ? 0 : sorted[sorted.count / 2]
    }

    private func say(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }
}

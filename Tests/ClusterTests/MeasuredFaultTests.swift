import Foundation
import Testing

/// Small rounds of `apus bench faults` and `apus bench endurance` with real nodes: what has to hold on every machine.
@Suite(.serialized, .timeLimit(.minutes(5)))
struct MeasuredFaultTests {
    /// One round of one kind, smaller than the benchmark's.
    ///
    /// - Returns: The rows by their names.
    private func play(_ kind: String, _ arguments: String...) throws -> [String: [String: Any]] {
        let outcome = try Cluster.run(
            ["bench", "faults", "--kinds", kind, "--repeats", "1", "--json", "--base-port", "29000"] + arguments)
        let last = outcome.output.split(separator: "\n").last.map(String.init) ?? ""
        let rows = try JSONSerialization.jsonObject(with: Data(last.utf8)) as? [String: [String: Any]]
        return try #require(rows, "\(outcome.all)")
    }

    /// No client of a row ended or missed a picture, and no frame was lost, doubled, wrong or stale.
    private func expectWhole(_ row: [String: Any], _ key: String) {
        for name in ["ended", "no_picture", "lost", "doubled", "wrong", "stale", "false_deaths"] {
            #expect(row[name] as? Int == 0, "\(key): \(name) in \(row)")
        }
        #expect(row["rounds"] as? Int == 1, "\(key): \(row)")
    }

    @Test("Without a delay no client ends, with 5 % of connects refused (IV-A7)")
    func shortWay() throws {
        let rows = try play("ways", "--round-trips", "0", "--way-viewers", "8")
        #expect(rows.count == 1)
        for (key, row) in rows { expectWhole(row, key) }
    }

    @Test("CPU hogs kill no member, and a killed one is in the map within a second (D4)")
    func cpu() throws {
        let rows = try play("cpu", "--channels", "2", "--viewers", "2", "--hogs", "4")
        #expect(rows.count == 1)
        for (key, row) in rows {
            for name in ["lost", "doubled", "wrong", "stale", "false_deaths"] {
                #expect(row[name] as? Int == 0, "\(key): \(name) in \(row)")
            }
            #expect(row["seen_max_ms"] as? Double ?? .infinity < 1_000, "\(row)")
        }
    }

    @Test("An ownership store that is overwritten with garbage is said by every node in /healthz (D4)")
    func garbage() throws {
        let rows = try play("damaged-store", "--rows", "store-garbage", "--channels", "1", "--viewers", "2")
        let row = try #require(rows["store-garbage"])
        #expect(row["unsaid"] as? Int == 0 && row["said_max_ms"] as? Double ?? .infinity < 5_000, "\(row)")
    }

    @Test("Rolling kills under cameras and viewers lose nothing (D7)")
    func rolling() throws {
        let outcome = try Cluster.run([
            "bench", "endurance", "--kind", "rolling", "--minutes", "0.1", "--hogs", "1", "--channels", "2",
            "--viewers", "2", "--json", "--base-port", "29400",
        ])
        let last = outcome.output.split(separator: "\n").last.map(String.init) ?? ""
        let values = try JSONSerialization.jsonObject(with: Data(last.utf8)) as? [String: Any]
        let run = try #require(values, "\(outcome.all)")
        for name in ["ended", "lost", "doubled", "wrong", "stale", "unprotected"] {
            #expect(run[name] as? Int == 0, "\(name) in \(run)")
        }
        #expect(run["kills"] as? Int ?? 0 >= 1, "\(run)")
    }
}

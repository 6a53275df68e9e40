import ApusCore
import ApusLocal
import Foundation

/// The results of `apus-bench calls-kills`.
struct CallKillResult {
    struct Row: Sendable {
        var calls = 0
        var misses: [CallKillMiss.Kind: Int] = [:]
        /// How calls have failed, and how often.
        var texts: [String: Int] = [:]
    }

    /// The longest pauses of media around the kills, in milliseconds.
    struct Gaps: Sendable {
        /// Of streams whose sender or receiver was at the node.
        var moved: [Double] = []
        var others: [Double] = []
    }

    var rows: [CallKillKind: Row] = [:]
    var kills = 0
    /// The calls in progress at each kill.
    var inProgress: [Int] = []
    /// The clients at the node, at each kill.
    var clientsAtNode: [Int] = []
    var ledger = CallKillLedger.Values()
    var faults = CallBenchClient.Faults()
    /// Rings of calls that nobody has placed.
    var unknownRings = 0
    /// Parties that could not call or be called afterwards.
    var busyAfterwards: [String: Int] = [:]
    var gaps = Gaps()
    var frames = 0
    var lost = 0
    var doubled = 0
    var wrong = 0
    var kamailio: KamailioKillResult?

    /// For p99 of the pauses of media, in milliseconds (`apus-bench failover`).
    static let gapBound = 120.0

    mutating func add(_ kind: CallKillKind, _ miss: CallKillMiss?) {
        rows[kind, default: Row()].calls += kind.callCount
        guard let miss else { return }
        rows[kind]?.misses[miss.kind, default: 0] += 1
        rows[kind]?.texts[miss.text, default: 0] += 1
    }

    private func count(_ kind: CallKillMiss.Kind) -> Int { rows.values.reduce(0) { $0 + ($1.misses[kind] ?? 0) } }

    private var gapP99: Double { FailoverResult.quantile(gaps.moved + gaps.others, 0.99) ?? 0 }

    private var ghostRings: Int {
        faults.ghostRings + unknownRings
            + ledger.lateRings.count { $0 > CallKillLedger.lateRingMax.milliseconds }
    }

    /// No call has failed, and the media kept their bound.
    var isClean: Bool {
        CallKillMiss.Kind.allCases.allSatisfy { count($0) == 0 } && ghostRings == 0 && busyAfterwards.isEmpty
            && lost == 0 && doubled == 0 && wrong == 0 && gapP99 <= Self.gapBound
    }

    private var values: [(key: String, says: String, value: Double)] {
        var values: [(key: String, says: String, value: Double)] = [
            ("kills", "nodes killed", Double(kills)),
            ("in_progress", "calls in progress at a kill, the fewest", Double(inProgress.min() ?? 0)),
            ("clients_at_node", "clients at the killed node, the most", Double(clientsAtNode.max() ?? 0)),
            ("calls", "calls", Double(rows.values.reduce(0) { $0 + $1.calls })),
        ]
        for kind in CallKillMiss.Kind.allCases {
            values.append((kind.rawValue, kind.rawValue.replacing("_", with: " "), Double(count(kind))))
        }
        values += [
            ("ghost_rings", "ghost rings", Double(ghostRings)),
            ("busy_afterwards", "parties busy afterwards", Double(busyAfterwards.values.reduce(0, +))),
            ("late_notices", "notices after the end of a call", Double(faults.lateNotices)),
            ("refused", "starts refused with 8000 until the callee was back", Double(ledger.refused)),
            ("late_rings", "rings while a cancel was on its way", Double(ledger.lateRings.count)),
            ("frames", "frames received", Double(frames)), ("frames_lost", "frames lost", Double(lost)),
            ("frames_doubled", "frames doubled", Double(doubled)), ("frames_wrong", "frames changed", Double(wrong)),
        ]
        return values
    }

    private var times: [(key: String, says: String, values: [Double])] {
        [
            ("ring", "start → ring, placed meanwhile", ledger.rings),
            ("end", "request → end at the other side", ledger.ends),
            ("timeout", "time-out later than due", ledger.timeouts),
            ("gap", "longest pause of media", gaps.moved + gaps.others),
            ("gap_moved", "the same, a side was at the node", gaps.moved),
            ("gap_others", "the same, no side was", gaps.others),
        ]
    }

    var table: String {
        var lines = [["STATE AT THE KILL", "CALLS", "DROPPED", "STUCK", "WRONG WINNER", "WRONG TIME"]]
        for kind in CallKillKind.allCases {
            guard let row = rows[kind] else { continue }
            lines.append([kind.says, "\(row.calls)"] + CallKillMiss.Kind.allCases.map { "\(row.misses[$0] ?? 0)" })
        }
        let numbers = [["MEASURE", "VALUE"]] + values.map { [$0.says, String(format: "%.0f", $0.value)] }
        let quantiles =
            [["TIME", "COUNT", "P50 MS", "P99 MS", "MAX MS"]]
            + times.map { time in
                [time.says, "\(time.values.count)"]
                    + [0.5, 0.99, 1].map { share in
                        FailoverResult.quantile(time.values, share).map { String(format: "%.0f", $0) } ?? "-"
                    }
            }
        var text = [lines, numbers, quantiles].map { TextTable.lines($0).joined(separator: "\n") }
        if gapP99 > Self.gapBound { text.append(String(format: "media: p99 is over %.0f ms", Self.gapBound)) }
        if !failures.isEmpty { text.append(failures.joined(separator: "\n")) }
        if let kamailio { text.append(kamailio.table) }
        return text.joined(separator: "\n\n")
    }

    private var failures: [String] {
        CallKillKind.allCases.flatMap { kind in
            (rows[kind]?.texts ?? [:]).sorted { $0.key < $1.key }.map { "\(kind.says): \($0.value) × \($0.key)" }
        } + busyAfterwards.sorted { $0.key < $1.key }.map { "afterwards: \($0.value) × \($0.key)" }
    }

    func json() throws -> String {
        var object = Dictionary(uniqueKeysWithValues: values.map { ($0.key, $0.value) })
        for time in times {
            for (share, word) in [(0.5, "p50"), (0.99, "p99"), (1, "max")] {
                if let value = FailoverResult.quantile(time.values, share) { object["\(time.key)_\(word)_ms"] = value }
            }
        }
        for (key, value) in kamailio?.values ?? [] { object["kamailio_\(key)"] = value }
        return String(decoding: try JSONSerialization.data(withJSONObject: object, options: .sortedKeys), as: UTF8.self)
    }
}

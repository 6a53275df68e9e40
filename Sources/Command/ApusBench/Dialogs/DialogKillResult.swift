package import ApusCore
import ApusLocal
import Foundation

/// The results of `apus-bench dialogs --kills`.
///
/// Pure value.
package struct DialogKillResult {
    private struct Row {
        var dialogs = 0
        var misses: [DialogKillMiss.Kind: Int] = [:]
        /// Other ends, and how often.
        var texts: [String: Int] = [:]

        mutating func add(_ miss: DialogKillMiss?) {
            dialogs += 1
            guard let miss else { return }
            misses[miss.kind, default: 0] += 1
            texts["\(miss.kind.rawValue): \(miss.text)", default: 0] += 1
        }
    }

    private var kinds: [DialogKillKind: Row] = [:]
    private var roles: [DialogKillRole: Row] = [:]
    private var pairs: [DialogKillKind: Set<DialogKillRole>] = [:]
    /// Answers without a kill.
    package var calm: [DialogKillSpan] = []
    private var spans: [(span: DialogKillSpan, roles: Set<DialogKillRole>)] = []
    /// How late timers rang, in milliseconds.
    package var lateness: [Double] = []
    /// Actions and directives more than there were sentences, at the end of the run.
    package var lateTwice = 0

    package init() {}

    /// For p99 of the added delay, in milliseconds.
    static let delayBound = 700.0
    /// For p99 of how late a timer rings, in milliseconds.
    static let lateBound = 500.0

    /// The end of a dialog.
    ///
    /// - Parameter roles: what the killed node was to it; empty: no node was killed.
    package mutating func add(_ kind: DialogKillKind, _ roles: Set<DialogKillRole>, _ miss: DialogKillMiss?) {
        kinds[kind, default: Row()].add(miss)
        for role in roles { self.roles[role, default: Row()].add(miss) }
        pairs[kind, default: []].formUnion(roles)
    }

    /// The answers of a round with a kill.
    package mutating func add(_ spans: [DialogKillSpan], _ roles: [DeviceID: Set<DialogKillRole>]) {
        self.spans += spans.map { ($0, roles[$0.device] ?? []) }
    }

    private func count(_ kind: DialogKillMiss.Kind) -> Int { kinds.values.reduce(0) { $0 + ($1.misses[kind] ?? 0) } }

    /// What the kills have added to the time of an answer: its time less the median of its kind without a kill.
    private func delays(_ role: DialogKillRole?) -> [Double] {
        let usual = Dictionary(grouping: calm, by: \.kind).mapValues { spans in
            FailoverResult.quantile(spans.map(\.milliseconds), 0.5) ?? 0
        }
        return spans.filter { role.map($0.roles.contains) ?? !$0.roles.contains(.other) }.map {
            max(0, $0.span.milliseconds - (usual[$0.span.kind] ?? 0))
        }
    }

    private static func quantile(_ values: [Double], _ share: Double) -> Double {
        FailoverResult.quantile(values, share) ?? 0
    }

    /// Each dialog has its answer or a polite one, nothing came twice or is missing, and the times are within their
    /// bounds.
    package var isClean: Bool {
        DialogKillMiss.Kind.allCases.allSatisfy { $0 == .polite || count($0) == 0 } && lateTwice == 0
            && Self.quantile(delays(nil), 0.99) <= Self.delayBound
            && Self.quantile(lateness, 0.99) <= Self.lateBound
    }

    /// The numbers, each with its title and its key.
    package var values: [(String, String, Double)] {
        var values: [(String, String, Double)] = [
            ("dialogs", "dialogs", Double(kinds.values.reduce(0) { $0 + $1.dialogs }))
        ]
        for kind in DialogKillMiss.Kind.allCases { values.append((kind.rawValue, kind.rawValue, Double(count(kind)))) }
        let (delays, late) = (delays(nil), lateness)
        return values + [
            ("twice, found at the end", "late_twice", Double(lateTwice)),
            ("added delay, p50, ms", "delay_p50_ms", Self.quantile(delays, 0.5)),
            ("added delay, p99, ms", "delay_p99_ms", Self.quantile(delays, 0.99)),
            ("added delay, max, ms", "delay_max_ms", delays.max() ?? 0),
            ("timers late, p50, ms", "timer_p50_ms", Self.quantile(late, 0.5)),
            ("timers late, p99, ms", "timer_p99_ms", Self.quantile(late, 0.99)),
            ("timers late, max, ms", "timer_max_ms", late.max() ?? 0),
        ]
    }

    var table: String {
        let kindsOfMiss = DialogKillMiss.Kind.allCases
        func line(_ name: String, _ row: Row) -> [String] {
            [name, "\(row.dialogs)"] + kindsOfMiss.map { "\(row.misses[$0] ?? 0)" }
        }
        let heads = ["DIALOGS"] + kindsOfMiss.map { $0.rawValue.uppercased() }
        let states = DialogKillKind.allCases.compactMap { kind -> [String]? in
            guard let row = kinds[kind] else { return nil }
            let met = DialogKillRole.allCases.filter { pairs[kind]?.contains($0) ?? false }.map(\.rawValue)
            return line(kind.says, row) + [met.joined(separator: " ")]
        }
        let roles = DialogKillRole.allCases.compactMap { role -> [String]? in
            guard let row = self.roles[role] else { return nil }
            let delays = delays(role)
            return line(role.says, row)
                + [0.5, 0.99, 1].map { String(format: "%.0f", Self.quantile(delays, $0)) }
        }
        var texts = [
            TextTable.lines([["STATE AT THE KILL"] + heads + ["THE NODE WAS THAT OF"]] + states),
            TextTable.lines([["THE KILLED NODE WAS THAT"] + heads + ["P50 MS", "P99 MS", "MAX MS"]] + roles),
        ].map { $0.joined(separator: "\n") }
        let ends = DialogKillKind.allCases.flatMap { kind in
            (kinds[kind]?.texts ?? [:]).sorted { $0.key < $1.key }.map { "\(kind.says): \($0.value) × \($0.key)" }
        }
        if !ends.isEmpty { texts.append(ends.joined(separator: "\n")) }
        return texts.joined(separator: "\n\n")
    }
}

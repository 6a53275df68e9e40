package import ApusCore

/// Checks that a history of registers is linearizable: that each operation can be given one moment between its
/// invocation and its return at which it took effect, so that each result is that of a register which carries out one
/// operation at a time (Herlihy and Wing, "Linearizability", 1990).
///
/// **Entities.** Each register is checked by itself. A history is linearizable if the parts of all its registers are
/// (§3.1 of the same article: linearizability is local). This keeps the searches small.
///
/// **Unknown outcomes.** An operation with an unknown outcome may take effect at any time after its invocation, or
/// never. ``RegisterSteps`` has the rules, and the proof, by which almost none of them widen the search. They need
/// distinct values: the workload's duty is that no two operations of a register write the same value, and none writes
/// ``RegisterOperation/initialValue``. The verdict is right without that too. The search may then need more
/// configurations.
///
/// **Acknowledged changes.** There is no check of its own for a change that was acknowledged and lost. If each register
/// is read once after all clients have ended, the read must find the last change in the order, and every acknowledged
/// change is in the order. A history with these reads is linearizable only if each acknowledged write is visible in
/// the last read or was overwritten by a write that may follow it. The same holds in the middle of a run for every read.
///
/// **Limits.** The search is exponential in the worst case. ``configurationCountMax`` bounds it for each register.
/// A configuration is a set of operations that were put in order, and the value after them. It takes about 150 bytes.
/// A history over the limit is undecided.
///
/// Pure and deterministic: the verdict follows from the operations, in any order, and the limits.
package struct LinearizabilityChecker: Sendable {
    /// The default of ``configurationCountMax``: 150 MB, and some seconds.
    package static let configurationCountMaxDefault = 1_000_000

    /// The most configurations that are met in the search of one register. The searches that shorten a violation may
    /// together meet sixteen times as many.
    package var configurationCountMax: Int

    package init(configurationCountMax: Int = LinearizabilityChecker.configurationCountMaxDefault) {
        self.configurationCountMax = configurationCountMax
    }

    /// The result of a check.
    package enum Verdict: Sendable, Equatable {
        case linearizable
        /// No order explains these operations.
        case violation(LinearizabilityViolation)
        /// The limit was reached at this register, and no other register has a violation.
        case undecided(entity: String, configurationCountMax: Int)
    }

    /// Checks all registers of a history: the first violation by name of the register, otherwise the first register
    /// that is undecided.
    package func check(_ operations: [RegisterOperation]) -> Verdict {
        let parts = Dictionary(grouping: operations, by: \.entity).sorted { $0.key < $1.key }
        var undecided: String?
        for (entity, part) in parts {
            switch Self.search(part, configurationCountMax: configurationCountMax).result {
            case .found: continue
            case .undecided: undecided = undecided ?? entity
            case .none:
                var reduction = HistoryReduction(configurationCountMax: configurationCountMax)
                return .violation(reduction.shorten(part, of: entity))
            }
        }
        return undecided.map { .undecided(entity: $0, configurationCountMax: configurationCountMax) } ?? .linearizable
    }

    /// Searches an order of one register's operations.
    static func search(
        _ operations: [RegisterOperation], configurationCountMax: Int
    ) -> (result: RegisterSearch.Result, configurationCount: Int) {
        var search = RegisterSearch(RegisterSteps(operations))
        let result = search.run(configurationCountMax: configurationCountMax)
        return (result, search.configurationCount)
    }
}

/// Operations of one register that no order explains.
package struct LinearizabilityViolation: Sendable, Equatable {
    /// The register.
    package var entity: String
    /// Operations that contradict each other, by invocation. The operations that were left out do not matter: whatever
    /// order explains the whole history would also explain these.
    package var operations: [RegisterOperation]
    /// The history is linearizable before this time, and not with the answers of this time. If a limit was reached, the
    /// time may be too late.
    package var contradictedAt: MonotonicTime
    /// True if no operation of ``operations`` can be left out, together with those that found its value. Otherwise the
    /// limit was reached before all were tried.
    package var isMinimal: Bool
}

extension LinearizabilityViolation: CustomStringConvertible {
    /// The operations as a table, with times in milliseconds since the first invocation.
    package var description: String {
        let start = operations.first?.invokedAt ?? contradictedAt
        let rows = operations.map { operation in
            let end = operation.returnedAt.map { Self.milliseconds($0 - start) } ?? "open"
            return (begin: Self.milliseconds(operation.invokedAt - start), end: end, text: operation.description)
        }
        let width = rows.reduce(0) { max($0, $1.begin.count, $1.end.count) }
        func padded(_ text: String) -> String { String(repeating: " ", count: width - text.count) + text }
        let lines = rows.map { "  \(padded($0.begin)) to \(padded($0.end)) ms  \($0.text)" }
        let head =
            "\(entity): no order of these \(operations.count) operations explains their results"
            + (isMinimal ? "" : " (there may be fewer that show it)")
        return ([head + ":"] + lines).joined(separator: "\n")
    }

    private static func milliseconds(_ span: Duration) -> String {
        let microseconds = span.nanoseconds / 1000
        let fraction = String(1000 + microseconds % 1000).dropFirst()
        return "\(microseconds / 1000).\(fraction)"
    }
}

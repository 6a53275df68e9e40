import ApusCore

/// Finds the few operations of a long history that show its violation.
///
/// First the shortest prefix is found. A prefix ends with a return; operations that had not returned by then have an
/// unknown outcome. A prefix of a linearizable history is linearizable, so the length can be found by halving.
///
/// Then operations are removed, in ever smaller groups, as long as the rest is a violation (delta debugging: Zeller and
/// Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002). With an operation that writes a value go all
/// that require the value, and with these in turn theirs. Whatever order explains a history also explains what remains
/// then: no remaining operation found the value of one that was removed, so each still finds the last write before it.
/// The rest is therefore a violation of the whole history.
struct HistoryReduction {
    /// All searches together may meet this many times the configurations that one may meet.
    static let budgetFactor = 16

    private let configurationCountMax: Int
    /// The configurations that may still be met. A search also costs its number of operations.
    private var budget: Int

    init(configurationCountMax: Int) {
        self.configurationCountMax = configurationCountMax
        budget = Self.budgetFactor * configurationCountMax
    }

    /// - Precondition: the search has found no order of the operations.
    mutating func shorten(_ operations: [RegisterOperation], of entity: String) -> LinearizabilityViolation {
        let ordered = operations.enumerated()
            .sorted { ($0.element.invokedAt, $0.offset) < ($1.element.invokedAt, $1.offset) }.map(\.element)
        let returns = Set(ordered.filter { $0.outcome != .failed }.compactMap(\.returnedAt)).sorted()
        // The history up to `returns[high]` is a violation. Up to the return before `returns[low]` it is none.
        var (low, high) = (0, max(0, returns.count - 1))
        while low < high {
            let middle = (low + high) / 2
            if isViolation(Self.prefix(of: ordered, until: returns[middle]).map(\.checked)) {
                high = middle
            } else {
                low = middle + 1
            }
        }
        let end = returns.indices.contains(high) ? returns[high] : MonotonicTime.zero
        var left = Self.prefix(of: ordered, until: end)
        let isMinimal = remove(from: &left)
        return LinearizabilityViolation(
            entity: entity, operations: left.map(\.operation), contradictedAt: end, isMinimal: isMinimal)
    }

    /// An operation, as it was recorded and as it is checked.
    private struct Entry {
        var operation: RegisterOperation
        var checked: RegisterOperation
    }

    private static func prefix(of ordered: [RegisterOperation], until end: MonotonicTime) -> [Entry] {
        ordered.prefix { $0.invokedAt <= end }.filter { $0.outcome != .failed }.map { operation in
            var checked = operation
            if operation.returnedAt ?? end > end { (checked.outcome, checked.returnedAt) = (.unknown, nil) }
            return Entry(operation: operation, checked: checked)
        }
    }

    private mutating func isViolation(_ operations: [RegisterOperation]) -> Bool {
        guard budget > 0 else { return false }
        let search = LinearizabilityChecker.search(
            operations, configurationCountMax: min(budget, configurationCountMax))
        budget -= search.configurationCount + operations.count
        return search.result == .none
    }

    /// True if no single operation can be removed any more, false if the budget ended before.
    private mutating func remove(from entries: inout [Entry]) -> Bool {
        var size = max(1, entries.count / 2)
        while budget > 0 {
            var isShorter = false
            // From the end: what remains of a history are its last operations.
            var end = entries.count
            while end > 0, budget > 0 {
                let group = max(0, end - size)..<end
                let rest = Self.rest(of: entries, without: group)
                if !rest.isEmpty, isViolation(rest.map(\.checked)) {
                    // The entries before the group may be fewer too.
                    end = min(group.lowerBound, rest.count)
                    entries = rest
                    isShorter = true
                } else {
                    end = group.lowerBound
                }
            }
            if size == 1, !isShorter { return budget > 0 }
            size = max(1, min(size / 2, entries.count / 2))
        }
        return false
    }

    /// What remains without a group and without all that found a value of something that was removed.
    private static func rest(of entries: [Entry], without group: Range<Int>) -> [Entry] {
        var findersByValue: [UInt64: [Int]] = [:]
        for (index, entry) in entries.enumerated() {
            if let value = entry.checked.needed { findersByValue[value, default: []].append(index) }
        }
        var isRemoved = Array(repeating: false, count: entries.count)
        var pending = Array(group)
        for index in group { isRemoved[index] = true }
        while let index = pending.popLast() {
            guard let value = entries[index].checked.written else { continue }
            for finder in findersByValue[value] ?? [] where !isRemoved[finder] {
                isRemoved[finder] = true
                pending.append(finder)
            }
        }
        return entries.indices.filter { !isRemoved[$0] }.map { entries[$0] }
    }
}

extension RegisterOperation {
    /// The value that it found, or must find to take effect.
    fileprivate var needed: UInt64? {
        switch (request, outcome) {
        case (_, .value(let value)), (_, .mismatch(let value)): value
        case (.compareAndSwap(let expected, _), _): expected
        default: nil
        }
    }

    /// The value that it wrote, or would write.
    fileprivate var written: UInt64? {
        switch (request, outcome) {
        case (_, .mismatch), (.read, _): nil
        case (.write(let value), _), (.compareAndSwap(_, let value), _): value
        }
    }
}

import ApusCore

/// Searches for an order of the steps of one register that keeps their times and is legal for a register.
///
/// This is the search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe
/// ("Testing for Linearizability", 2017), in the form of a list of starts and ends from which steps are lifted out
/// (as in Porcupine). At each point any step may come next that starts before the first end in the list. A configuration
/// is the set of steps that were taken and the register's value. One that was met before is not searched again.
///
/// Four rules of a register keep the search short. All but the first concern values that only one operation writes, so
/// that a value never returns once it was overwritten. With distinct values the time grows little faster than the
/// number of operations.
///
/// 1. A step that only reads, and can be taken, is taken, and no alternative is tried. It changes nothing, so each order
///    from here on that takes it later stays legal if it is moved to the front.
/// 2. A value is not overwritten while a step remains that must find it. That step could never be taken.
/// 3. A value is not written while a step must end, without finding it, before the start of one that must find it. The
///    former comes between the two. If it writes, the latter finds another value. Otherwise it finds the wrong one.
/// 4. A write whose value no step must find is taken as soon as the current value may be overwritten, and no alternative
///    is tried. The next step must be a write that requires nothing. An order that takes the former later stays legal if
///    it is moved before the latter, which overwrites it. (The rule is not used if there are steps without an end, since
///    the next step could be one of them.)
///
/// Deterministic: the result follows from the steps and the limit.
struct RegisterSearch {
    enum Result: Equatable {
        case found
        case none
        /// More configurations than the limit.
        case undecided
    }

    /// The set of taken steps, from the first one that is not taken, and the value.
    private struct Configuration: Hashable {
        var words: [UInt64]
    }

    private struct Frame {
        var step: Int
        var state: UInt64
        var highest: Int
        /// There are no alternatives to it.
        var isForced: Bool
    }

    private let steps: [RegisterStep]
    private let writerCounts: [UInt64: Int]
    /// Steps not taken that must find a value, by value.
    private var finders: [UInt64: Int] = [:]
    /// The start of the last step that must find a value, by value.
    private var lastStarts: [UInt64: MonotonicTime] = [:]
    /// Every step has an end.
    private let isBounded: Bool
    /// Steps not taken that must be taken.
    private var remaining: Int
    private var state = RegisterOperation.initialValue
    private var taken: [UInt64]
    /// The highest step that is taken; -1 if there is none.
    private var highest = -1
    /// The list: the start of step `i` is node `i`, its end node `steps.count + i`, the head node `2 * steps.count`.
    private var next: [Int]
    private var previous: [Int]
    private var frames: [Frame] = []
    private var visited: Set<Configuration> = []

    /// The number of configurations that were met.
    var configurationCount: Int { visited.count }

    init(_ prepared: RegisterSteps) {
        (steps, writerCounts) = (prepared.steps, prepared.writerCounts)
        let count = steps.count
        isBounded = steps.allSatisfy { $0.end != nil }
        remaining = 0
        taken = Array(repeating: 0, count: count / 64 + 1)
        var nodes: [(time: MonotonicTime, isEnd: Bool, node: Int)] = []
        for (index, step) in steps.enumerated() {
            nodes.append((step.start, false, index))
            guard let end = step.end else { continue }
            nodes.append((end, true, count + index))
            remaining += 1
            guard let value = step.requires else { continue }
            finders[value, default: 0] += 1
            lastStarts[value] = step.start
        }
        // Operations whose times touch overlap: whether they did is not known.
        nodes.sort { ($0.time, $0.isEnd ? 1 : 0, $0.node) < ($1.time, $1.isEnd ? 1 : 0, $1.node) }
        next = Array(repeating: 2 * count, count: 2 * count + 1)
        previous = next
        var last = 2 * count
        for (_, _, node) in nodes {
            (next[last], previous[node]) = (node, last)
            last = node
        }
        (next[last], previous[2 * count]) = (2 * count, last)
    }

    /// Searches until an order is found, there is none, or `configurationCountMax` configurations were met.
    mutating func run(configurationCountMax: Int) -> Result {
        var node = enter()
        while remaining > 0 {
            guard node < steps.count else {
                // The end of a step that is not taken: what was taken before is wrong.
                guard let alternative = goBack() else { return .none }
                node = alternative
                continue
            }
            guard isLegal(node), take(node, isForced: false) else {
                node = next[node]
                continue
            }
            guard visited.count <= configurationCountMax else { return .undecided }
            node = enter()
        }
        return .found
    }

    /// Takes all steps that have no alternative.
    ///
    /// - Returns: the first node to try then. An end if the configuration was met before.
    private mutating func enter() -> Int {
        let head = 2 * steps.count
        var node = next[head]
        while node < steps.count {
            if hasNoAlternative(node), isLegal(node) {
                guard take(node, isForced: true) else { return head }
                node = next[head]
            } else {
                node = next[node]
            }
        }
        return remaining > 0 ? next[head] : head
    }

    /// Rules 1 and 4, for a step that is legal.
    private func hasNoAlternative(_ index: Int) -> Bool {
        let step = steps[index]
        guard let value = step.writes else { return true }
        return isBounded && step.requires == nil && writerCounts[value] == 1 && lastStarts[value] == nil
            && writerCounts[state] == 1
    }

    private func isLegal(_ index: Int) -> Bool {
        let step = steps[index]
        guard !step.isImpossible, step.requires == nil || step.requires == state else { return false }
        guard let value = step.writes else { return true }
        // Rule 2. The step itself may be one that must find the current value.
        if writerCounts[state] == 1, let waiting = finders[state] {
            let isFinder = step.end != nil && step.requires == state
            guard waiting == (isFinder ? 1 : 0) else { return false }
        }
        // Rule 3.
        guard writerCounts[value] == 1, let lastStart = lastStarts[value] else { return true }
        var node = next[2 * steps.count]
        while node != 2 * steps.count {
            if node >= steps.count, node - steps.count != index, let end = steps[node - steps.count].end {
                if end >= lastStart { return true }
                if steps[node - steps.count].requires != value { return false }
            }
            node = next[node]
        }
        return true
    }

    /// Takes a step. False, and nothing has changed, if the configuration was met before.
    private mutating func take(_ index: Int, isForced: Bool) -> Bool {
        let step = steps[index]
        let frame = Frame(step: index, state: state, highest: highest, isForced: isForced)
        lift(index)
        if let value = step.writes { state = value }
        highest = max(highest, index)
        guard visited.insert(configuration()).inserted else {
            putBack(frame)
            return false
        }
        frames.append(frame)
        return true
    }

    /// Takes back the last step that has alternatives, and the steps after it; returns the node that follows it. Nil
    /// if there is none.
    private mutating func goBack() -> Int? {
        while let frame = frames.popLast() {
            putBack(frame)
            if !frame.isForced { return next[frame.step] }
        }
        return nil
    }

    private mutating func lift(_ index: Int) {
        taken[index >> 6] |= 1 << UInt64(index & 63)
        remove(index)
        guard steps[index].end != nil else { return }
        remove(steps.count + index)
        remaining -= 1
        if let value = steps[index].requires { finders[value, default: 0] -= 1 }
    }

    private mutating func putBack(_ frame: Frame) {
        let index = frame.step
        (state, highest) = (frame.state, frame.highest)
        taken[index >> 6] &= ~(1 << UInt64(index & 63))
        if steps[index].end != nil {
            restore(steps.count + index)
            remaining += 1
            if let value = steps[index].requires { finders[value, default: 0] += 1 }
        }
        restore(index)
    }

    private mutating func remove(_ node: Int) {
        next[previous[node]] = next[node]
        previous[next[node]] = previous[node]
    }

    /// The reverse of ``remove(_:)``, in the reverse order.
    private mutating func restore(_ node: Int) {
        next[previous[node]] = node
        previous[next[node]] = node
    }

    /// Steps are in the order of their starts, and all before the first one in the list are taken. So the words from
    /// that one to the highest one that is taken say everything.
    private func configuration() -> Configuration {
        let first = next[2 * steps.count]
        let low = (first < steps.count ? first : steps.count) >> 6
        let high = max(low - 1, highest < 0 ? -1 : highest >> 6)
        var words = [state, UInt64(low)]
        if low <= high { words += taken[low...high] }
        return Configuration(words: words)
    }
}

import ApusCore

/// What an operation needs of a register and does to it, and when it may take effect.
struct RegisterStep {
    /// The earliest time of the effect.
    var start: MonotonicTime
    /// The latest time of the effect; nil: at any time, or never.
    var end: MonotonicTime?
    /// The register must have this value. Nil: any value.
    var requires: UInt64?
    /// The register has this value afterwards. Nil: it keeps its value.
    var writes: UInt64?
    /// The result contradicts itself, such as a refusal that found the expected value.
    var isImpossible = false

    /// True if it changes nothing, so that it may take effect as soon as it can.
    var onlyReads: Bool { writes == nil }
}

/// The operations of one register as steps of the search.
///
/// **Reads, and refused compare-and-swaps.** Both require a value and write none. A read with an unknown outcome says
/// nothing and is dropped.
///
/// **Unknown outcomes.** A write or a compare-and-swap whose outcome is unknown could be put anywhere after its
/// invocation, or nowhere. Two rules leave almost none of them to the search.
///
/// *Rule 1: an unknown operation is dropped if nothing needs its value.* A value is needed if a completed operation
/// found it, that is, if a step with a known outcome requires it; or if an unknown compare-and-swap requires it whose
/// own new value is needed. Proof: take an order that explains the history, and remove from it every unknown operation
/// whose value is not needed, and every unknown compare-and-swap that was refused in it. Let X be a remaining step that
/// requires a value x. If X is completed, x is needed because X found it. If X is an unknown compare-and-swap, its new
/// value is needed because X remains, hence x is needed too. In the order, the last write before X wrote x, or x is the
/// initial value and nothing was written before. That write is completed or writes a needed value, so it remains, and no
/// removal brings another write between the two. So X still finds x, and the shorter order explains the history without
/// the removed operations. Conversely, an order without them is an order of the history, since they may never take
/// effect. A completed operation whose result depends on a value without naming it would break the proof. There is none:
/// a refusal names what it found.
///
/// *Rule 2: an unknown operation whose value is needed, and which is the only one to write it, has an end.* It took
/// effect, since nothing else writes the value. It did so before each operation that found the value, hence before the
/// earliest of their returns. It is then a step like the others: it must take effect, in a bounded time.
///
/// Only unknown writes of a value that several operations write, or of the initial value, remain without an end. A
/// workload that writes distinct values, none of them ``RegisterOperation/initialValue``, has none.
struct RegisterSteps {
    /// By start.
    private(set) var steps: [RegisterStep] = []
    /// The number of operations that write a value. The initial value counts as one more.
    private(set) var writerCounts: [UInt64: Int] = [RegisterOperation.initialValue: 1]

    init(_ operations: [RegisterOperation]) {
        let all = operations.compactMap(Self.step)
        for step in all { if let value = step.writes { writerCounts[value, default: 0] += 1 } }
        let seen = seenTimes(of: all)
        for var step in all {
            if step.end == nil, let value = step.writes {
                guard let end = seen[value] else { continue }
                // A value that was found before its write began stays a contradiction: the step cannot start earlier.
                if writerCounts[value] == 1, end < Self.never { step.end = max(step.start, end) }
            }
            steps.append(step)
        }
        steps = steps.enumerated().sorted { ($0.element.start, $0.offset) < ($1.element.start, $1.offset) }
            .map(\.element)
    }

    /// The needed values (rule 1), each with a time before which it was written (rule 2).
    private func seenTimes(of all: [RegisterStep]) -> [UInt64: MonotonicTime] {
        var seen: [UInt64: MonotonicTime] = [:]
        var openByValue: [UInt64: [RegisterStep]] = [:]
        for step in all {
            if step.end == nil, let value = step.writes, step.requires != nil {
                openByValue[value, default: []].append(step)
            }
            guard let end = step.end, let value = step.requires else { continue }
            seen[value] = min(seen[value] ?? end, end)
        }
        // From the value of an unknown compare-and-swap to the value that it found. The order does not matter, since
        // times only become earlier.
        var pending = Array(seen.keys)
        while let value = pending.popLast() {
            guard let end = seen[value] else { continue }
            for step in openByValue[value] ?? [] {
                guard let required = step.requires else { continue }
                // Without a unique writer this step may not have happened: the value is needed, at no known time.
                let bound = writerCounts[value] == 1 ? max(step.start, end) : Self.never
                guard bound < seen[required] ?? Self.never || seen[required] == nil else { continue }
                seen[required] = bound
                pending.append(required)
            }
        }
        return seen
    }

    private static let never = MonotonicTime(nanoseconds: .max)

    /// Nil for an operation without an effect and without a result.
    private static func step(_ operation: RegisterOperation) -> RegisterStep? {
        let start = operation.invokedAt
        // Times of a completed operation are in order, or the search would see its end before its start.
        let end = operation.returnedAt.map { max(start, $0) } ?? never
        switch (operation.request, operation.outcome) {
        case (_, .failed), (.read, .unknown): return nil
        case (.read, .value(let value)): return RegisterStep(start: start, end: end, requires: value)
        case (.write(let value), .ok): return RegisterStep(start: start, end: end, writes: value)
        case (.write(let value), .unknown): return RegisterStep(start: start, writes: value)
        case (.compareAndSwap(let expected, let new), .ok):
            return RegisterStep(start: start, end: end, requires: expected, writes: new)
        case (.compareAndSwap(let expected, let new), .unknown):
            return RegisterStep(start: start, requires: expected, writes: new)
        case (.compareAndSwap(let expected, _), .mismatch(let found)):
            return RegisterStep(start: start, end: end, requires: found, isImpossible: found == expected)
        default:
            preconditionFailure("\(operation) cannot end so")
        }
    }
}

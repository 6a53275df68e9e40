import ApusCore
package import ApusWire
package import NIOCore

/// How a call ended.
package enum CallOutcome: Sendable {
    case reply(ByteBuffer)
    /// Apart from the value, so that answers, which are nearly all, are passed on in a few words.
    indirect case failure(CallFailure)

    static func failed(_ code: ErrorCode) -> CallOutcome { .failure(CallFailure(ApusError(code))) }
}

/// The task that waits for a call, to ask whether it was cancelled. A handler of cancellation would be a record that
/// each call allocates and puts into its task's list.
///
/// It is kept as a word: the library's own type has no layout that is known when this is compiled, and everything that
/// holds it is copied by look-ups.
struct CallingTask: Sendable {
    /// 0 outside of tasks.
    private let word: UInt

    /// The calling task.
    static func current() -> CallingTask {
        withUnsafeCurrentTask { task in
            // SAFETY: the type is one reference; the word does not hold the task.
            CallingTask(word: task.map { unsafeBitCast($0, to: UInt.self) } ?? 0)
        }
    }

    private init(word: UInt) { self.word = word }

    static let none = CallingTask(word: 0)

    var isCancelled: Bool {
        guard word != 0 else { return false }
        // SAFETY: made by `current`, and asked only by the task itself or while it is suspended on the call. Read where
        // the word lies, the task is not retained, whose memory is most often cold.
        return withUnsafeBytes(of: word) { bytes in
            bytes.assumingMemoryBound(to: UnsafeCurrentTask.self)[0].isCancelled
        }
    }
}

/// The open calls of a link: a call's correlation is its slot's index and the slot's generation, so
/// that a late answer never meets a later call. Lookup is an array index.
///
/// A slot goes from free to sent, when the request is written; then somebody waits on it until it ends,
/// or it has ended before, and whoever comes to wait takes the outcome.
///
/// A slot is plain words; outcomes that came before their callers lie beside the slots.
///
/// A pure value: the link keeps it behind its lock.
struct CorrelationTable {
    typealias Continuation = UnsafeContinuation<CallOutcome, Never>

    private enum Phase: UInt8 {
        case free
        /// Nobody waits on it yet.
        case sent
        case waiting
        /// Over before anybody waited on it.
        case ended
    }

    private struct Slot {
        var phase: Phase
        var generation: UInt16
        /// The next free one, of a free one.
        var next: Int32
        var deadline: UInt64
        /// Of a waiting one.
        var task: CallingTask
        var continuation: Continuation?
    }

    /// A call that ended by itself.
    struct Expired {
        var correlation: UInt32
        var code: ErrorCode
        /// Nil where nobody waits yet.
        var continuation: Continuation?
    }

    private let countMax: Int
    private var slots: [Slot] = []
    /// By slot, of those that have ended.
    private var outcomes: [CallOutcome?] = []
    private var firstFree: Int32 = -1
    /// Calls under way.
    private(set) var count = 0

    init(countMax: Int) {
        precondition(
            (1...65_536).contains(countMax), "a correlation has 16 bits for the slot, not room for \(countMax)")
        self.countMax = countMax
    }

    /// Takes a slot for a request that is sent now; nil where the bound is reached. ``wait(_:continuation:)``
    /// has to follow.
    mutating func open(deadline: UInt64) -> UInt32? {
        let index: Int
        if firstFree >= 0 {
            index = Int(firstFree)
            precondition(slots[index].phase == .free, "slot \(index) is not free")
            firstFree = slots[index].next
            slots[index].phase = .sent
            slots[index].deadline = deadline
        } else {
            guard slots.count < countMax else { return nil }
            index = slots.count
            slots.append(
                Slot(phase: .sent, generation: 0, next: -1, deadline: deadline, task: .none, continuation: nil))
            outcomes.append(nil)
        }
        count += 1
        return Self.correlation(index: index, generation: slots[index].generation)
    }

    /// The caller waits now, or takes the outcome of a call that is over.
    mutating func wait(_ correlation: UInt32, continuation: Continuation, task: CallingTask) -> CallOutcome? {
        guard let index = index(of: correlation) else {
            preconditionFailure("the slot of call \(correlation) was given away")
        }
        switch slots[index].phase {
        case .free, .waiting: preconditionFailure("the call \(correlation) is not to be waited for")
        case .sent:
            slots[index].phase = .waiting
            slots[index].task = task
            slots[index].continuation = continuation
            return nil
        case .ended:
            defer { release(index) }
            return outcomes[index].take()
        }
    }

    /// The call ends: whoever waits for it is returned, and the slot is free. Nil where nobody waits, yet or
    /// any more.
    mutating func finish(_ correlation: UInt32, _ outcome: CallOutcome) -> Continuation? {
        guard let index = index(of: correlation) else { return nil }
        return finish(index, outcome)
    }

    /// Ends a call whose caller's task was cancelled before it waited; false where the call is over.
    mutating func cancel(_ correlation: UInt32) -> Bool {
        guard let index = index(of: correlation), slots[index].phase == .sent else { return false }
        return finish(index, .failed(.cancelled)) == nil
    }

    /// Ends the calls whose deadline is at or before this time, and those whose caller's task was cancelled, in the
    /// order of their slots.
    mutating func expire(at now: UInt64) -> [Expired] {
        guard count > 0 else { return [] }
        var expired: [Expired] = []
        for index in slots.indices {
            let phase = slots[index].phase
            guard phase == .sent || phase == .waiting else { continue }
            let code: ErrorCode
            if slots[index].deadline <= now {
                code = .deadlineExceeded
            } else if phase == .waiting, slots[index].task.isCancelled {
                code = .cancelled
            } else {
                continue
            }
            let correlation = Self.correlation(index: index, generation: slots[index].generation)
            expired.append(
                Expired(correlation: correlation, code: code, continuation: finish(index, .failed(code))))
        }
        return expired
    }

    /// Ends all calls; those that somebody waits for are returned.
    mutating func finishAll(_ outcome: CallOutcome) -> [Continuation] {
        slots.indices.compactMap { finish($0, outcome) }
    }

    private mutating func finish(_ index: Int, _ outcome: CallOutcome) -> Continuation? {
        switch slots[index].phase {
        case .free, .ended: return nil
        case .sent:
            slots[index].phase = .ended
            outcomes[index] = outcome
            return nil
        case .waiting:
            let continuation = slots[index].continuation
            slots[index].continuation = nil
            slots[index].task = .none
            release(index)
            return continuation
        }
    }

    private func index(of correlation: UInt32) -> Int? {
        let index = Int(correlation & 0xffff)
        guard index < slots.count, slots[index].generation == UInt16(truncatingIfNeeded: correlation >> 16) else {
            return nil
        }
        return index
    }

    private mutating func release(_ index: Int) {
        slots[index].generation &+= 1
        slots[index].phase = .free
        slots[index].next = firstFree
        firstFree = Int32(index)
        count -= 1
    }

    private static func correlation(index: Int, generation: UInt16) -> UInt32 {
        UInt32(generation) << 16 | UInt32(index)
    }
}

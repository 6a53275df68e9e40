import ApusCore
package import ApusWire
package import NIOCore

/// How a call ended.
package enum CallOutcome: Sendable {
    case reply(ByteBuffer)
    /// Indirect, so that an outcome stays a few words long: nearly all outcomes are replies.
    indirect case failure(CallFailure)

    static func failed(_ code: ErrorCode) -> CallOutcome { .failure(CallFailure(ApusError(code))) }
}

/// The task that waits for a call. It is used to poll whether the task was cancelled: a cancellation handler would
/// allocate a record for each call.
///
/// It is stored as an integer. The library's type has no layout that is known at compile time, so each access to a slot
/// would copy it through a generic path.
struct CallingTask: Sendable {
    /// 0 outside a task.
    private let word: UInt

    /// The calling task.
    static func current() -> CallingTask {
        withUnsafeCurrentTask { task in
            // SAFETY: the type is one reference; the integer does not retain the task.
            CallingTask(word: task.map { unsafeBitCast($0, to: UInt.self) } ?? 0)
        }
    }

    private init(word: UInt) { self.word = word }

    static let none = CallingTask(word: 0)

    var isCancelled: Bool {
        guard word != 0 else { return false }
        // SAFETY: `current` made the value. Only the task itself uses it, or a call on which the task is suspended. The
        // task is read in place: a retain would touch its memory, which is rarely in the cache.
        return withUnsafeBytes(of: word) { bytes in
            bytes.assumingMemoryBound(to: UnsafeCurrentTask.self)[0].isCancelled
        }
    }
}

/// The open calls of a link. A correlation is the index of a slot and the slot's generation, so a late answer never
/// matches a later call. Lookup is an array index.
///
/// A slot is free, then `sent` when the request is written. If the caller waits before the call ends, the slot is
/// `waiting`. If the call ends first, the slot is `ended` and keeps the outcome until the caller takes it.
///
/// A slot has only integer fields. Outcomes that arrive before their callers are stored beside the slots.
///
/// A pure value: the link keeps it behind its lock.
struct CorrelationTable {
    typealias Continuation = UnsafeContinuation<CallOutcome, Never>

    private enum Phase: UInt8 {
        case free
        /// The request is written, and no caller waits yet.
        case sent
        case waiting
        /// The call ended before a caller waited.
        case ended
    }

    private struct Slot {
        var phase: Phase
        var generation: UInt16
        /// In a free slot: the next free one.
        var next: Int32
        var deadline: UInt64
        /// In a waiting slot: the caller's task.
        var task: CallingTask
        var continuation: Continuation?
    }

    /// A call that ended without an answer.
    struct Expired {
        var correlation: UInt32
        var code: ErrorCode
        /// Nil if no caller waits yet.
        var continuation: Continuation?
    }

    private let countMax: Int
    private var slots: [Slot] = []
    /// By slot: the outcomes of `ended` calls.
    private var outcomes: [CallOutcome?] = []
    private var firstFree: Int32 = -1
    /// The number of calls in flight.
    private(set) var count = 0

    init(countMax: Int) {
        precondition(
            (1...65_536).contains(countMax), "a correlation has 16 bits for the slot, not room for \(countMax)")
        self.countMax = countMax
    }

    /// Takes a slot for a request that is being sent. Returns nil at the limit. ``wait(_:continuation:)`` must follow.
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

    /// Makes the caller wait, or returns the outcome if the call has ended.
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

    /// Ends a call. If the caller waits, frees the slot and returns the continuation. Otherwise returns nil, and the
    /// slot keeps the outcome.
    mutating func finish(_ correlation: UInt32, _ outcome: CallOutcome) -> Continuation? {
        guard let index = index(of: correlation) else { return nil }
        return finish(index, outcome)
    }

    /// Ends a call whose task was cancelled before it waited. Returns false if the call has ended.
    mutating func cancel(_ correlation: UInt32) -> Bool {
        guard let index = index(of: correlation), slots[index].phase == .sent else { return false }
        return finish(index, .failed(.cancelled)) == nil
    }

    /// Ends the calls whose deadline is at or before this time and the calls whose task was cancelled, in slot order.
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

    /// Ends all calls. Returns the continuations of the callers that wait.
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

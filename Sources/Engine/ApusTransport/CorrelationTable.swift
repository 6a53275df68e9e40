import ApusCore
package import ApusWire
package import NIOCore

/// How a call ended.
package enum CallOutcome: Sendable {
    case reply(ByteBuffer)
    case failure(CallFailure)

    static func failed(_ code: ErrorCode) -> CallOutcome { .failure(CallFailure(ApusError(code))) }
}

/// The open calls of a link: a call's correlation is its slot's index and the slot's generation, so
/// that a late answer never meets a later call. Lookup is an array index.
///
/// A pure value: the link keeps it behind its lock.
struct CorrelationTable {
    typealias Continuation = UnsafeContinuation<CallOutcome, Never>

    private enum Phase {
        case free(next: Int32)
        /// Taken, but nobody waits on it yet.
        case reserved(isCancelled: Bool)
        case waiting(Continuation, deadline: UInt64)
    }

    private struct Slot {
        var generation: UInt16
        var phase: Phase
    }

    private let countMax: Int
    private var slots: [Slot] = []
    private var firstFree: Int32 = -1
    /// Calls under way.
    private(set) var count = 0

    init(countMax: Int) {
        precondition(
            (1...65_536).contains(countMax), "a correlation has 16 bits for the slot, not room for \(countMax)")
        self.countMax = countMax
    }

    /// Takes a slot; nil where the bound is reached.
    mutating func reserve() -> UInt32? {
        let index: Int
        if firstFree >= 0 {
            index = Int(firstFree)
            guard case .free(let next) = slots[index].phase else { preconditionFailure("slot \(index) is not free") }
            firstFree = next
            slots[index].phase = .reserved(isCancelled: false)
        } else {
            guard slots.count < countMax else { return nil }
            index = slots.count
            slots.append(Slot(generation: 0, phase: .reserved(isCancelled: false)))
        }
        count += 1
        return Self.correlation(index: index, generation: slots[index].generation)
    }

    /// The caller waits now; false where the call was cancelled before, and is over.
    mutating func wait(_ correlation: UInt32, continuation: Continuation, deadline: UInt64) -> Bool {
        let index = Int(correlation & 0xffff)
        guard case .reserved(let isCancelled) = slots[index].phase else {
            preconditionFailure("the slot of call \(correlation) was not reserved")
        }
        if isCancelled {
            release(index)
            return false
        }
        slots[index].phase = .waiting(continuation, deadline: deadline)
        return true
    }

    /// The call ends: whoever waits for it is returned, and the slot is free.
    mutating func finish(_ correlation: UInt32) -> Continuation? {
        guard let index = index(of: correlation), case .waiting(let continuation, _) = slots[index].phase else {
            return nil
        }
        release(index)
        return continuation
    }

    /// The caller's task was cancelled: as ``finish(_:)``, or remembered until somebody waits.
    mutating func cancel(_ correlation: UInt32) -> Continuation? {
        guard let index = index(of: correlation) else { return nil }
        switch slots[index].phase {
        case .free: return nil
        case .reserved:
            slots[index].phase = .reserved(isCancelled: true)
            return nil
        case .waiting(let continuation, _):
            release(index)
            return continuation
        }
    }

    /// Ends a call that was only reserved.
    mutating func abandon(_ correlation: UInt32) {
        release(Int(correlation & 0xffff))
    }

    /// Ends the calls whose deadline is at or before this time, in the order of their slots.
    mutating func expire(at now: UInt64) -> [(correlation: UInt32, continuation: Continuation)] {
        guard count > 0 else { return [] }
        var expired: [(UInt32, Continuation)] = []
        for index in slots.indices {
            guard case .waiting(let continuation, let deadline) = slots[index].phase, deadline <= now else { continue }
            expired.append((Self.correlation(index: index, generation: slots[index].generation), continuation))
            release(index)
        }
        return expired
    }

    /// Ends all calls that somebody waits for.
    mutating func finishAll() -> [Continuation] { expire(at: .max).map(\.continuation) }

    private func index(of correlation: UInt32) -> Int? {
        let index = Int(correlation & 0xffff)
        guard index < slots.count, slots[index].generation == UInt16(truncatingIfNeeded: correlation >> 16) else {
            return nil
        }
        return index
    }

    private mutating func release(_ index: Int) {
        slots[index].generation &+= 1
        slots[index].phase = .free(next: firstFree)
        firstFree = Int32(index)
        count -= 1
    }

    private static func correlation(index: Int, generation: UInt16) -> UInt32 {
        UInt32(generation) << 16 | UInt32(index)
    }
}

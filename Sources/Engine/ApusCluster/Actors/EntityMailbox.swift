package import DequeModule

/// Whose turn it is at one entity: one message at a time, in the order of arrival, unless its method says that it
/// interleaves (D15).
///
/// A Swift actor alone does not give that: whatever its handler awaits, the next message runs meanwhile. A message that
/// interleaves runs at once, beside whatever runs, and waits for nobody.
///
/// **Bound.** `countMax` messages wait or run; one more is refused, whatever its kind.
///
/// Pure: confined to the entity's activation.
package struct EntityMailbox<Message> {
    package enum Turn: Sendable, Equatable {
        /// Carry it out now.
        case now
        /// It runs when ``ended()`` gives it.
        case later
        /// Over the bound.
        case refused
    }

    private let countMax: Int
    private var waiting = Deque<Message>()
    private var isRunning = false
    private var interleavingCount = 0

    /// - Parameter countMax: messages that wait or run, at least 1.
    package init(countMax: Int) { self.countMax = countMax }

    /// Messages that wait or run.
    package var count: Int { waiting.count + interleavingCount + (isRunning ? 1 : 0) }
    package var isIdle: Bool { count == 0 }

    /// A message came; ``ended()`` follows once it was carried out.
    package mutating func came(_ message: @autoclosure () -> Message) -> Turn {
        guard count < countMax else { return .refused }
        guard isRunning else {
            isRunning = true
            return .now
        }
        waiting.append(message())
        return .later
    }

    /// A message came that interleaves; ``interleavedEnded()`` follows.
    ///
    /// - Returns: false over the bound.
    package mutating func interleaved() -> Bool {
        guard count < countMax else { return false }
        interleavingCount += 1
        return true
    }

    /// The message whose turn it was has been carried out.
    ///
    /// - Returns: the next one, whose turn it is now.
    package mutating func ended() -> Message? {
        precondition(isRunning, "no message had its turn")
        guard let next = waiting.popFirst() else {
            isRunning = false
            return nil
        }
        return next
    }

    package mutating func interleavedEnded() {
        precondition(interleavingCount > 0, "no message interleaves")
        interleavingCount -= 1
    }

    /// The entity leaves: what waits is never carried out here.
    package mutating func takeWaiting() -> Deque<Message> {
        defer { waiting.removeAll() }
        return waiting
    }
}

extension EntityMailbox: Sendable where Message: Sendable {}

package import DequeModule

/// The order of messages at one entity: one at a time, in the order of arrival, unless the method interleaves (D15).
///
/// A Swift actor alone does not guarantee this: while its handler awaits, the next message runs. A message that
/// interleaves runs at once, in parallel to any other, and waits for none.
///
/// **Limit.** At most `countMax` messages wait or run. A further one is refused, whether it interleaves or not.
///
/// Pure value: confined to the entity's activation.
package struct EntityMailbox<Message> {
    package enum Turn: Sendable, Equatable {
        /// Handle it now.
        case now
        /// Handle it when ``ended()`` returns it.
        case later
        /// Over the limit.
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

    /// A message arrived. ``ended()`` follows once it was handled.
    package mutating func came(_ message: @autoclosure () -> Message) -> Turn {
        guard count < countMax else { return .refused }
        guard isRunning else {
            isRunning = true
            return .now
        }
        waiting.append(message())
        return .later
    }

    /// A message arrived that interleaves. ``interleavedEnded()`` follows.
    ///
    /// - Returns: false over the limit.
    package mutating func interleaved() -> Bool {
        guard count < countMax else { return false }
        interleavingCount += 1
        return true
    }

    /// The current message was handled.
    ///
    /// - Returns: the next message, which is now the current one.
    package mutating func ended() -> Message? {
        precondition(isRunning, "no message is running")
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

    /// The entity is released. Messages that wait are never handled here.
    package mutating func takeWaiting() -> Deque<Message> {
        defer { waiting.removeAll() }
        return waiting
    }
}

extension EntityMailbox: Sendable where Message: Sendable {}

import ApusCore
import DequeModule

/// The events of one connection that its socket does not take at once (D17).
///
/// An event of a topic that keeps events is not queued: its subscriber reads it again when the socket takes bytes
/// (``OnEvent/readLater``), and nothing is sent out of order until then. Of presence only the newest event of each
/// device waits. Of all other events ``eventsMax`` wait, the oldest is dropped for one more, and the next one says that
/// events were missed.
///
/// Pure: confined to the connection's event loop.
package struct ClientEventQueue {
    package enum OnEvent {
        case send
        /// It waits here.
        case wait
        /// It was sent already, or an earlier one of its topic must come first.
        case drop
        /// The topic's service is notified, with ``TopicService/notSent(_:_:_:)``.
        case readLater
    }

    private let eventsMax: Int
    private var waiting: Deque<ClientEventFrame> = []
    /// The next event of each topic that keeps events.
    private var next: [String: TopicPosition] = [:]
    /// Topics whose events are read again, in order.
    private var blocked: [String] = []
    /// Events that were dropped.
    package private(set) var droppedCount = 0
    private var hasMissed = false

    package init(eventsMax: Int) { self.eventsMax = eventsMax }

    /// Topics whose events it follows; bounded by the client's subscriptions.
    package var topicCount: Int { next.count }

    package mutating func received(_ event: ClientEventFrame, isWritable: Bool) -> OnEvent {
        guard let position = event.position else {
            guard !isWritable || !waiting.isEmpty else { return .send }
            wait(event)
            return .wait
        }
        if let next = next[event.topic], next.log == position.log, !event.missed, next.next != position.next {
            return .drop
        }
        guard isWritable else {
            if !blocked.contains(event.topic) { blocked.append(event.topic) }
            return .readLater
        }
        guard !blocked.contains(event.topic) else { return .drop }
        next[event.topic] = TopicPosition(log: position.log, next: position.next + 1)
        return .send
    }

    private mutating func wait(_ event: ClientEventFrame) {
        if event.topic.hasPrefix("presence/"), let index = waiting.firstIndex(where: { $0.topic == event.topic }) {
            waiting.remove(at: index)
        } else if waiting.count >= eventsMax {
            waiting.removeFirst()
            droppedCount += 1
            hasMissed = true
        }
        waiting.append(event)
    }

    /// The socket takes bytes again: what waited, in order, and the topics whose events must be read again.
    package mutating func becameWritable() -> (events: [ClientEventFrame], topics: [String]) {
        var events = Array(waiting)
        if hasMissed, let first = events.first {
            events[0] = ClientEventFrame(topic: first.topic, type: first.type, message: first.message, missed: true)
        }
        let topics = blocked
        (waiting, blocked, hasMissed) = ([], [], false)
        return (events, topics)
    }

    /// The client subscribes to the topic, perhaps again and from an earlier place.
    ///
    /// - Parameter position: of the first event to send; nil: the next event.
    package mutating func begin(_ topic: String, at position: TopicPosition?) {
        next[topic] = position
        blocked.removeAll { $0 == topic }
    }
}

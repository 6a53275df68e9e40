import ApusClientAPI
import ApusCore
import Testing

@Suite("Events that a socket does not take at once (D17)")
struct ClientEventQueueTests {
    private func event(_ topic: String, _ next: UInt64? = nil, log: UInt64 = 1) -> ClientEventFrame {
        ClientEventFrame(
            topic: topic, type: 1, message: [], position: next.map { TopicPosition(log: log, next: $0) })
    }

    @Test("Of presence only the newest event of each device waits")
    func presence() {
        var queue = ClientEventQueue(eventsMax: 8)
        let newest = event("presence/a")
        for one in [event("presence/a"), event("presence/b"), newest] {
            guard case .wait = queue.received(one, isWritable: false) else {
                Issue.record("the event does not wait")
                return
            }
        }
        let events = queue.becameWritable().events
        #expect(events.map(\.topic) == ["presence/b", "presence/a"])
        #expect(events.last === newest)
    }

    @Test("Over the bound the oldest event is dropped, and the first that is left says that some are missing")
    func overflow() {
        var queue = ClientEventQueue(eventsMax: 2)
        for topic in ["a/1", "a/2", "a/3"] { _ = queue.received(event(topic), isWritable: false) }
        let events = queue.becameWritable().events
        #expect(events.map(\.topic) == ["a/2", "a/3"])
        #expect(events.map(\.missed) == [true, false])
        #expect(queue.droppedCount == 1)
        guard case .send = queue.received(event("a/4"), isWritable: true) else {
            Issue.record("a socket that takes bytes gets its events")
            return
        }
    }

    @Test("An event of a topic that keeps events is read again, and none that follows it is sent before it")
    func kept() {
        var queue = ClientEventQueue(eventsMax: 2)
        guard case .send = queue.received(event("d/1", 4), isWritable: true),
            case .readLater = queue.received(event("d/1", 5), isWritable: false),
            case .drop = queue.received(event("d/1", 6), isWritable: false),
            case .drop = queue.received(event("d/1", 6), isWritable: true)
        else {
            Issue.record("events of a kept topic are sent out of order")
            return
        }
        let topics = queue.becameWritable().topics
        #expect(topics == ["d/1"])
        guard case .drop = queue.received(event("d/1", 6), isWritable: true),
            case .send = queue.received(event("d/1", 5), isWritable: true),
            case .drop = queue.received(event("d/1", 5), isWritable: true),
            case .send = queue.received(event("d/1", 6), isWritable: true),
            case .send = queue.received(event("d/1", 0, log: 2), isWritable: true)
        else {
            Issue.record("an event is sent twice, or out of order")
            return
        }
    }

    @Test("A client that subscribes again from an earlier cursor gets the events from there, and no later one first")
    func again() {
        var queue = ClientEventQueue(eventsMax: 2)
        guard case .send = queue.received(event("d/1", 7), isWritable: true) else {
            Issue.record("the first event is not sent")
            return
        }
        queue.begin("d/1", at: TopicPosition(log: 1, next: 4))
        guard case .drop = queue.received(event("d/1", 8), isWritable: true),
            case .send = queue.received(event("d/1", 4), isWritable: true),
            case .send = queue.received(event("d/1", 5), isWritable: true)
        else {
            Issue.record("the events after the cursor are not sent in order")
            return
        }
    }
}

import ApusClientAPI
import SwiftProtobuf
import Testing

@Suite("Topics whose readers change (docs/sharing.md)")
struct TopicGenerationTests {
    private static func topic() -> TopicState {
        var topic = TopicState()
        topic.begin()
        topic.entries = (0..<3).map { number in .with { $0.sequence = UInt64(number) } }
        topic.next = 3
        return topic
    }

    @Test("A later generation drops what was kept, and the sequence goes on; an event of an earlier one is dropped")
    func generations() {
        var topic = Self.topic()
        let log = topic.log
        #expect(topic.enter(0) && topic.entries.count == 3, "a topic without generations keeps its events")
        #expect(topic.enter(5) && topic.entries.isEmpty && topic.next == 3 && topic.log == log)
        topic.entries = [.with { $0.sequence = 3 }]
        topic.next = 4
        #expect(topic.enter(5) && topic.entries.count == 1)
        #expect(!topic.enter(4) && topic.entries.count == 1, "it was on its way when the readers changed")
        #expect(topic.enter(0) && topic.entries.count == 1, "a node that renews names none")
        #expect(topic.enter(6) && topic.entries.isEmpty)
    }
}

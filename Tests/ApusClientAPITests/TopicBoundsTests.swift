import ApusClientAPI
import ApusCore
import SwiftProtobuf
import Testing

@Suite("The numbers of topics in messages of other nodes (D13, D17)")
struct TopicBoundsTests {
    private static let tooLarge: [UInt64] = [WireNumber.nextMax, .max]

    @Test("An event with a number that has no successor is refused before it is used", arguments: tooLarge)
    func events(sequence: UInt64) {
        #expect(TopicEvent.with { $0.entry.sequence = WireNumber.sequenceMax }.isWithinBounds)
        #expect(!TopicEvent.with { $0.entry.sequence = sequence }.isWithinBounds)
    }

    @Test("Answers of an owner with such a number are refused", arguments: tooLarge)
    func answers(sequence: UInt64) {
        #expect(!TopicPublish.isWithinBounds(TopicPublished.with { $0.sequence = sequence }))
        let entry = TopicEntry.with { $0.sequence = sequence }
        #expect(!TopicRead.isWithinBounds(TopicReadReply.with { $0.entries = [entry] }))
        // The number of the next event may be one larger than that of the last.
        let isNext = sequence == WireNumber.nextMax
        #expect(TopicListen.isWithinBounds(TopicListening.with { $0.next = sequence }) == isNext)
        #expect(TopicRead.isWithinBounds(TopicReadReply.with { $0.next = sequence }) == isNext)
    }

    @Test("A topic whose former owner gave it numbers without successors begins a new sequence")
    func state() {
        let entry = TopicEntry.with { $0.sequence = 5 }
        var sound = TopicState.with { ($0.log, $0.next, $0.entries) = (7, 6, [entry]) }
        sound.begin()
        #expect(sound.log == 7 && sound.next == 6 && sound.entries == [entry])
        for next in Self.tooLarge + [5] {
            var topic = TopicState.with { ($0.log, $0.next, $0.entries) = (7, next, [entry]) }
            topic.begin()
            #expect(topic.log != 7 && topic.next == 0 && topic.entries.isEmpty)
        }
    }
}

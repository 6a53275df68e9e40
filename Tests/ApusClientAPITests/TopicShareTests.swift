import ApusClientAPI
import Foundation
import SwiftProtobuf
import Testing

@Suite("The shares of senders in what a topic keeps")
struct TopicShareTests {
    private struct Topic {
        var state = TopicState()
        let retention: TopicRetention

        init(events: Int = 64, bytes: Int = 48 << 10) {
            retention = TopicRetention(eventsMax: events, byteCountMax: bytes)
            state.begin()
        }

        mutating func publish(_ sender: UInt64, isForeign: Bool = false, size: Int = 100) {
            let entry = TopicEntry.with {
                ($0.sequence, $0.sender, $0.foreign) = (state.next, sender, isForeign)
                $0.message = Data(count: size)
            }
            state.next += 1
            state.keep(entry, retention)
        }

        func count(_ sender: UInt64) -> Int { state.entries.count { $0.sender == sender } }
        var byteCount: Int { state.entries.reduce(0) { $0 + $1.message.count } }
    }

    @Test(
        "Fourteen large events of a device of another account leave those of the account's own devices",
        arguments: [14, 500])
    func foreign(count: Int) {
        var topic = Topic()
        for _ in 0..<10 { topic.publish(1, size: 3000) }
        for _ in 0..<count { topic.publish(9, isForeign: true, size: 4096) }
        #expect(topic.count(1) == 10 && topic.byteCount <= topic.retention.byteCountMax)
        #expect(topic.count(9) >= 1, "the newest of the other one is kept too")
    }

    @Test("Many devices of other accounts have an eighth together, and share it")
    func foreignTogether() {
        var topic = Topic()
        for _ in 0..<64 { topic.publish(1) }
        for round in 0..<20 {
            for sender in 10..<14 { topic.publish(UInt64(sender), isForeign: true) }
            #expect(topic.state.entries.count == 64, "round \(round)")
        }
        #expect(topic.count(1) == 56 && (10..<14).allSatisfy { topic.count($0) == 2 })
    }

    @Test("A device that reports without end makes the topic forget its own events, and not those of the others")
    func own() {
        var topic = Topic()
        for _ in 0..<5 { topic.publish(1) }
        for _ in 0..<1000 { topic.publish(2) }
        #expect(topic.count(1) == 5 && topic.count(2) == 59)
        let kept = topic.state.entries.filter { $0.sender == 2 }.map(\.sequence)
        #expect(kept == Array(topic.state.next - 59..<topic.state.next), "the newest of them")
    }

    @Test("A topic with one sender keeps the newest events; one event is kept whatever its size")
    func alone() {
        var topic = Topic(events: 4, bytes: 1000)
        for _ in 0..<9 { topic.publish(0) }
        #expect(topic.state.entries.map(\.sequence) == [5, 6, 7, 8])
        topic.publish(0, size: 5000)
        #expect(topic.state.entries.map(\.sequence) == [9])
    }

    @Test("A reader comes through the gaps, has what is kept once and in order, and learns of each gap")
    func gaps() {
        var topic = Topic(events: 6)
        for sender: UInt64 in [1, 2, 2, 1, 2, 2, 2, 1, 2] { topic.publish(sender) }
        let kept = topic.state.entries.map(\.sequence)
        #expect(kept.count == 6 && kept.first == 0 && zip(kept, kept.dropFirst()).contains { $1 != $0 + 1 })
        // As a node reads for a subscriber.
        for start in 0...topic.state.next {
            var (position, read, missed): (UInt64, [UInt64], Int) = (start, [], 0)
            var rounds = 0
            while position < topic.state.next, rounds < 20 {
                rounds += 1
                let page = topic.state.page(log: topic.state.log, from: position, countMax: 2)
                #expect(page.next == topic.state.next)
                if page.missed {
                    missed += 1
                    position = page.entries.first?.sequence ?? page.next
                }
                for entry in page.entries where entry.sequence == position {
                    read.append(entry.sequence)
                    position += 1
                }
            }
            #expect(read == kept.filter { $0 >= start }, "from \(start)")
            #expect((missed > 0) == (start..<topic.state.next).contains { !kept.contains($0) })
        }
        let other = topic.state.page(log: 1, from: 4, countMax: 9)
        #expect(other.missed && other.entries.first?.sequence == kept.first)
    }
}

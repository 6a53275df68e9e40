import ApusClientAPI
import ApusCluster
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("Events with versions are published in their order (D17)")
struct TopicOrderTests {
    /// A topic that keeps events, with its reminders.
    private struct Owner {
        let definition = EntityDefinition<TopicState>.topic(
            .keptTopic, name: "kept topic", durability: .replicated,
            retention: { _ in TopicRetention(eventsMax: 64, byteCountMax: 48 << 10) })
        var topic = TopicState()
        var reminders: [Reminder] = []

        var order: Reminder? { reminders.first { $0.name == "order" } }
        var versions: [UInt64] { topic.entries.map(\.version) }

        mutating func publish(_ version: UInt64, at time: Int64) throws {
            let bytes: [UInt8] = try TopicOrderTests.event(version).serializedBytes()
            var trial = trial(at: time)
            trial.carryOut(TopicPublish.method, bytes, by: definition)
            try take(trial)
        }

        mutating func remind(_ reminder: Reminder?, at time: Int64) throws {
            var trial = trial(at: time)
            trial.remind(try #require(reminder), by: definition)
            try take(trial)
        }

        private func trial(at time: Int64) -> EntityTrial<TopicState> {
            EntityTrial(
                topic, of: EntityAddress(kind: .keptTopic, key: "things/cam"), epoch: 1,
                wallMilliseconds: TopicOrderTests.start + time, reminders: reminders,
                makeID: {
                    var generator = SystemRandomNumberGenerator()
                    return RequestID(using: &generator)
                })
        }

        private mutating func take(_ trial: EntityTrial<TopicState>) throws {
            _ = try trial.answer.get()
            topic = trial.content
            for change in trial.changes {
                switch change {
                case .set(let reminder): reminders = reminders.filter { $0.name != reminder.name } + [reminder]
                case .cancel(_, let name): reminders.removeAll { $0.name == name }
                case .delivered(let reminder): reminders.removeAll { $0.id == reminder.id }
                }
            }
        }
    }

    private static let start: Int64 = 1_700_000_000_000

    private static func event(_ version: UInt64, after previous: UInt64? = nil, byteCount: Int = 1) -> TopicPublish {
        .with {
            ($0.type, $0.message) = (2, Data(repeating: UInt8(truncatingIfNeeded: version), count: byteCount))
            ($0.version, $0.previousVersion) = (version, previous ?? max(version, 1) - 1)
        }
    }

    /// The versions of what is published, negative after a gap. What is published is kept, as the owner does.
    private static func publish(_ due: [TopicState.Due], _ topic: inout TopicState) -> [Int] {
        for due in due {
            topic.entries.append(
                .with {
                    ($0.sequence, $0.type, $0.message) = (topic.next, due.event.type, due.event.message)
                    ($0.version, $0.missed) = (due.event.version, due.missed)
                })
            topic.next += 1
        }
        return due.map { $0.missed ? -Int($0.event.version) : Int($0.event.version) }
    }

    private static func arrive(
        _ version: UInt64, after previous: UInt64? = nil, at time: Int64 = 0, _ topic: inout TopicState
    ) -> [Int] {
        publish(topic.arrived(event(version, after: previous), at: start + time), &topic)
    }

    private static func wait(_ time: Int64, _ topic: inout TopicState) -> [Int] {
        publish(topic.overdue(at: start + time), &topic)
    }

    @Test("An event waits for the one before it, and both are published in their order")
    func order() {
        var topic = TopicState()
        #expect(Self.arrive(4, &topic) == [4])
        #expect(Self.arrive(7, &topic) == [])
        #expect(Self.arrive(6, &topic) == [])
        #expect(Self.arrive(5, &topic) == [5, 6, 7])
        #expect(Self.arrive(8, &topic) == [8])
        #expect(topic.waiting.isEmpty && topic.waitEnd(at: Self.start) == nil)
    }

    @Test("After half a second the topic continues without an event, and says so")
    func gap() {
        var topic = TopicState()
        _ = Self.arrive(4, &topic)
        #expect(Self.arrive(7, at: 100, &topic) == [])
        #expect(Self.arrive(6, at: 300, &topic) == [])
        #expect(topic.waitEnd(at: Self.start + 400) == Self.start + 600)
        #expect(Self.wait(599, &topic) == [])
        // 6 has waited for a shorter time, and comes before 7.
        #expect(Self.wait(600, &topic) == [-6, 7])
        #expect(Self.arrive(8, at: 601, &topic) == [8])
    }

    @Test("Of two gaps the second one has its own time")
    func gaps() {
        var topic = TopicState()
        _ = Self.arrive(1, &topic)
        _ = Self.arrive(3, at: 0, &topic)
        _ = Self.arrive(5, at: 200, &topic)
        #expect(Self.wait(500, &topic) == [-3])
        #expect(topic.waitEnd(at: Self.start + 500) == Self.start + 700)
        #expect(Self.arrive(4, at: 600, &topic) == [4, 5])
    }

    @Test("An event that waits sets a reminder, which publishes it half a second later; without one it is cancelled")
    func reminder() throws {
        var owner = Owner()
        try owner.publish(4, at: 0)
        #expect(owner.versions == [4] && owner.reminders.map(\.name) == ["idle"])
        try owner.publish(6, at: 100)
        let first = try #require(owner.order)
        #expect(owner.versions == [4] && first.due == Self.start + 600)
        try owner.publish(7, at: 200)
        #expect(owner.order == first)
        try owner.publish(5, at: 300)
        #expect(owner.versions == [4, 5, 6, 7] && owner.order == nil)
        // It was on its way when it was cancelled.
        try owner.remind(first, at: 600)
        #expect(owner.versions == [4, 5, 6, 7])

        try owner.publish(9, at: 1000)
        try owner.publish(11, at: 1200)
        #expect(owner.order?.due == Self.start + 1500)
        try owner.remind(owner.order, at: 1500)
        #expect(owner.versions == [4, 5, 6, 7, 9] && owner.topic.entries.last?.missed == true)
        #expect(owner.order?.due == Self.start + 1700)
        try owner.remind(owner.order, at: 1700)
        #expect(owner.versions == [4, 5, 6, 7, 9, 11] && owner.order == nil)
        #expect(owner.reminders.map(\.name) == ["idle"])
    }

    @Test("An event that comes too late is not published: the newest one is again, and says that one is missing")
    func late() {
        var topic = TopicState()
        _ = Self.arrive(4, &topic)
        _ = Self.arrive(6, &topic)
        #expect(Self.wait(500, &topic) == [-6])
        #expect(Self.arrive(5, at: 501, &topic) == [-6])
        #expect(topic.entries.map(\.version) == [4, 6, 6])
        #expect(topic.entries.last?.message == Self.event(6).message)
        // Nothing is kept: there is nothing to repeat.
        topic.entries = []
        #expect(Self.arrive(5, at: 502, &topic) == [])
    }

    @Test("A repetition changes nothing, whether the event is published or waits")
    func repetition() {
        var topic = TopicState()
        _ = Self.arrive(4, &topic)
        #expect(Self.arrive(4, &topic) == [])
        _ = Self.arrive(6, &topic)
        #expect(Self.arrive(6, at: 400, &topic) == [] && topic.waiting.count == 1)
        #expect(Self.wait(500, &topic) == [-6])
    }

    @Test("Events without versions come as they arrive, and end the order of those with versions")
    func unversioned() {
        var topic = TopicState()
        _ = Self.arrive(4, &topic)
        _ = Self.arrive(6, &topic)
        #expect(Self.arrive(0, after: 0, &topic) == [0, -6])
        #expect(Self.arrive(9, &topic) == [9])
        #expect(Self.arrive(10, &topic) == [10])
        var plain = TopicState()
        for _ in 0..<3 { #expect(Self.arrive(0, after: 0, &plain) == [0]) }
    }

    @Test("What waits is bounded by number and by bytes")
    func bounds() {
        var topic = TopicState()
        _ = Self.arrive(1, &topic)
        let first = UInt64(3)
        let last = first + UInt64(TopicState.waitingMax)
        for version in first..<last { #expect(Self.arrive(version, &topic) == []) }
        #expect(Self.arrive(last, &topic).count == TopicState.waitingMax + 1)
        #expect(topic.waiting.isEmpty && topic.version == last)
        let large = Self.event(last + 2, byteCount: TopicState.waitingByteCountMax + 1)
        #expect(Self.publish(topic.arrived(large, at: Self.start), &topic) == [-Int(last + 2)])
    }

    @Test("A clock that went back keeps no event waiting for longer")
    func clock() {
        var topic = TopicState()
        _ = Self.arrive(1, at: 10_000, &topic)
        _ = Self.arrive(3, at: 10_000, &topic)
        #expect(topic.waitEnd(at: Self.start) == Self.start + 500)
        #expect(Self.wait(0, &topic) == [-3])
    }

    @Test("Whatever the order of arrival, versions never fall, and a gap is announced", arguments: UInt64(0)..<1000)
    func property(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var topic = TopicState()
        // Some are never published, and some arrive late.
        var arrivals = (1...60).filter { _ in Int.random(in: 0..<20, using: &random) > 0 }.map { version in
            (version: UInt64(version), at: Int64(version * 20) + Int64.random(in: 0..<700, using: &random))
        }
        arrivals.sort { $0.at < $1.at }
        var published: [Int] = []
        for arrival in arrivals {
            published += Self.wait(arrival.at, &topic)
            published += Self.arrive(arrival.version, at: arrival.at, &topic)
        }
        published += Self.wait(100_000, &topic)
        #expect(topic.waiting.isEmpty)
        for (earlier, later) in zip(published, published.dropFirst()) {
            #expect(
                abs(later) > abs(earlier) || (later < 0 && abs(later) == abs(earlier)), "seed \(seed): \(published)")
            #expect(later < 0 || later == abs(earlier) + 1, "seed \(seed): a gap is not announced: \(published)")
        }
        #expect(published.last.map { abs($0) } == arrivals.map { Int($0.version) }.max())
    }
}

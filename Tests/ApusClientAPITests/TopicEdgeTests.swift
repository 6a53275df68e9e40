import ApusClientAPI
import ApusCore
import Testing

/// A topic's owner, subscribers and the way between them, with losses: what ``TopicEdgeStateMachine`` is tried against.
private struct TopicWorld {
    typealias Machine = TopicEdgeStateMachine<Int>

    static let keptCount = 8
    private static let name = "doors/front"

    var random: SeededRandom
    var machine = Machine()
    var now = MonotonicTime(nanoseconds: 1_000_000_000)
    var log: UInt64 = 1
    var published: [Machine.Event] = []
    /// Questions and events under way, in no order.
    var underWay: [Step] = []
    /// What each subscriber got: the sequences, and whether it was told that some are missing before.
    var heard: [Int: [(sequence: UInt64, missed: Bool)]] = [:]
    var blocked: Set<Int> = []
    /// One question in five has no answer.
    var loses = true

    enum Step {
        case event(Machine.Event, log: UInt64)
        case listen
        case listened(TopicPosition)
        case read(Int, TopicPosition)
        case page(Int, Machine.Page)
        case failed(Int)
    }

    init(seed: UInt64) { random = SeededRandom(seed: seed) }

    var head: TopicPosition { TopicPosition(log: log, next: UInt64(published.count)) }

    mutating func perform(_ actions: [Machine.Action]) {
        for action in actions {
            switch action {
            case .listen: underWay.append(.listen)
            case .leave: break
            case .read(_, let subscriber, let position): underWay.append(.read(subscriber, position))
            case .deliver(_, let event, _, let missed, let subscribers):
                for subscriber in subscribers {
                    if blocked.contains(subscriber) {
                        machine.notSent(subscriber, Self.name, sequence: event.sequence, missed: missed)
                    } else {
                        heard[subscriber, default: []].append((event.sequence, missed))
                    }
                }
            }
        }
    }

    mutating func subscribe(_ subscriber: Int) {
        heard[subscriber] = []
        let after = TopicPosition(log: log, next: UInt64(published.count))
        _ = machine.subscribing(subscriber, Self.name, after: after, keeps: true, now: now)
        perform(machine.subscribed(subscriber, Self.name, .success(head), now: now))
        start[subscriber] = after.next
    }
    var start: [Int: UInt64] = [:]

    mutating func publish() {
        let event = Machine.Event(sequence: UInt64(published.count), type: 1, message: [])
        published.append(event)
        // The way to the node loses one in four.
        if Int.random(in: 0..<4, using: &random) > 0 { underWay.append(.event(event, log: log)) }
    }

    mutating func step() {
        now = now + .milliseconds(10)
        perform(machine.tick(now: now))
        guard !underWay.isEmpty else { return }
        let step = underWay.remove(at: Int.random(in: 0..<underWay.count, using: &random))
        switch step {
        case .event(let event, let log): perform(machine.received(Self.name, log: log, event))
        case .listen:
            let answer: Result<TopicPosition, ApusError> =
                loses && Int.random(in: 0..<5, using: &random) == 0 ? .failure(ApusError(.linkLost)) : .success(head)
            perform(machine.listened(Self.name, answer, now: now))
        case .listened(let head): perform(machine.listened(Self.name, .success(head), now: now))
        case .read(let subscriber, let position):
            if loses, Int.random(in: 0..<5, using: &random) == 0 {
                underWay.append(.failed(subscriber))
            } else {
                underWay.append(.page(subscriber, page(position)))
            }
        case .page(let subscriber, let page): perform(machine.read(subscriber, Self.name, .success(page), now: now))
        case .failed(let subscriber):
            perform(machine.read(subscriber, Self.name, .failure(ApusError(.deadlineExceeded)), now: now))
        }
    }

    private func page(_ position: TopicPosition) -> Machine.Page {
        let first = UInt64(max(0, published.count - Self.keptCount))
        let from = max(first, position.next)
        return Machine.Page(
            head: head, events: published.filter { $0.sequence >= from }.prefix(3).map { $0 },
            missed: position.next < first)
    }

    mutating func block(_ subscriber: Int) { blocked.insert(subscriber) }

    mutating func unblock(_ subscriber: Int) {
        blocked.remove(subscriber)
        perform(machine.writable(subscriber, Self.name))
    }

    /// Everything that is under way arrives, and the node renews.
    mutating func settle() {
        loses = false
        for subscriber in blocked.sorted() { unblock(subscriber) }
        for _ in 0..<3 {
            for _ in 0..<600 { step() }
        }
    }
}

@Suite("Topics that the clients of a node hear (D17)")
struct TopicEdgeTests {
    @Test(
        "Through losses, failures and full sockets a subscriber has each kept event once, in order, or is told of a gap"
    )
    func everything() throws {
        for seed in UInt64(0)..<1000 {
            var world = TopicWorld(seed: seed)
            for subscriber in 0..<3 { world.subscribe(subscriber) }
            for _ in 0..<60 {
                switch Int.random(in: 0..<6, using: &world.random) {
                case 0, 1: world.publish()
                case 2: world.block(Int.random(in: 0..<3, using: &world.random))
                case 3: world.unblock(Int.random(in: 0..<3, using: &world.random))
                default: for _ in 0..<3 { world.step() }
                }
            }
            world.settle()
            for subscriber in 0..<3 {
                var next = try #require(world.start[subscriber])
                for (sequence, missed) in world.heard[subscriber] ?? [] {
                    #expect(
                        sequence == next || (missed && sequence > next),
                        "seed \(seed): subscriber \(subscriber) heard \(sequence) where \(next) was due")
                    next = sequence + 1
                }
                #expect(
                    next == UInt64(world.published.count),
                    "seed \(seed): subscriber \(subscriber) heard up to \(next) of \(world.published.count)")
            }
        }
    }

    private typealias Machine = TopicEdgeStateMachine<Int>
    private static let now = MonotonicTime(nanoseconds: 1_000_000_000)

    private func delivered(_ actions: [Machine.Action]) -> [UInt64] {
        actions.compactMap { action in
            if case .deliver(_, let event, _, _, _) = action { event.sequence } else { nil }
        }
    }

    private func event(_ sequence: UInt64) -> Machine.Event { .init(sequence: sequence, type: 1, message: []) }

    @Test("No more events are sent than may be unacknowledged, and the rest after the acknowledgement")
    func window() {
        var machine = Machine()
        let start = TopicPosition(log: 7, next: 0)
        let outcome25 = machine.subscribing(1, "a/b", after: start, keeps: true, window: 2, now: Self.now)
        #expect(outcome25 == nil)
        _ = machine.subscribed(1, "a/b", .success(start), now: Self.now)
        var sent: [UInt64] = []
        for sequence in UInt64(0)..<4 { sent += delivered(machine.received("a/b", log: 7, event(sequence))) }
        #expect(sent == [0, 1])
        let actions = machine.acknowledged(1, "a/b", TopicPosition(log: 7, next: 2))
        guard case .read(_, 1, TopicPosition(log: 7, next: 2))? = actions.first else {
            Issue.record("nothing is read after the acknowledgement: \(actions)")
            return
        }
        let page = Machine.Page(
            head: TopicPosition(log: 7, next: 4), events: [event(2), event(3)], missed: false)
        let read = machine.read(1, "a/b", .success(page), now: Self.now)
        #expect(delivered(read) == [2, 3])
    }

    @Test("A subscription begins where the owner's answer says, or with the newest event, and has a cursor for that")
    func start() {
        for (startsWithLast, first) in [(false, UInt64(4)), (true, 3)] {
            var machine = Machine()
            _ = machine.subscribing(
                1, "a/b", after: nil, keeps: true, startsWithLast: startsWithLast, now: Self.now)
            let early = machine.start(of: 1, "a/b")
            #expect(early == nil, "the owner has not answered")
            _ = machine.subscribed(1, "a/b", .success(TopicPosition(log: 7, next: 4)), now: Self.now)
            let start = machine.start(of: 1, "a/b")
            #expect(start == TopicPosition(log: 7, next: first))
            // It stays, however many events follow, and another subscriber has one of its own.
            _ = machine.received("a/b", log: 7, event(4))
            let later = machine.start(of: 1, "a/b")
            #expect(later == start)
            let other = TopicPosition(log: 7, next: 2)
            _ = machine.subscribing(2, "a/b", after: other, keeps: true, now: Self.now)
            let given = machine.start(of: 2, "a/b")
            #expect(given == other)
        }
    }

    @Test("A subscriber that heard nothing has what was published since, at a node that goes on from its start")
    func resumedStart() throws {
        var first = Machine()
        _ = first.subscribing(1, "a/b", after: nil, keeps: true, now: Self.now)
        _ = first.subscribed(1, "a/b", .success(TopicPosition(log: 7, next: 4)), now: Self.now)
        let start = try #require(first.start(of: 1, "a/b"))
        // Event 4 is published while it is connected to no node.
        var second = Machine()
        let head = TopicPosition(log: 7, next: 5)
        _ = second.subscribing(1, "a/b", after: start, keeps: true, now: Self.now)
        guard case .read(_, 1, start)? = second.subscribed(1, "a/b", .success(head), now: Self.now).first else {
            Issue.record("nothing is read")
            return
        }
        let page = Machine.Page(head: head, events: [event(4)], missed: false)
        let read = second.read(1, "a/b", .success(page), now: Self.now)
        #expect(delivered(read) == [4])
        let again = second.received("a/b", log: 7, event(4))
        #expect(delivered(again).isEmpty)
    }

    @Test("A topic that keeps nothing goes to all that hear it, and to nobody else")
    func unkept() {
        var machine = Machine()
        for subscriber in 1...2 {
            _ = machine.subscribing(subscriber, "a/b", after: nil, keeps: false, now: Self.now)
            _ = machine.subscribed(subscriber, "a/b", .success(TopicPosition(log: 1, next: 5)), now: Self.now)
            let start = machine.start(of: subscriber, "a/b")
            #expect(start == nil, "it has no cursors")
        }
        let outcome26 = machine.received("a/c", log: 1, event(5))
        #expect(outcome26.isEmpty)
        guard case .deliver(_, _, _, false, let to)? = machine.received("a/b", log: 1, event(5)).first else {
            Issue.record("the event is not delivered")
            return
        }
        #expect(to == [1, 2])
        let outcome27 = machine.unsubscribed(1, "a/b")
        #expect(outcome27.isEmpty)
        guard case .leave("a/b")? = machine.ended(2).first else {
            Issue.record("the owner is not told that nobody hears the topic")
            return
        }
        #expect(machine.topicCount == 0 && machine.subscriptionCount == 0)
    }

    @Test("A new owner is told at once that the node hears the topic")
    func newOwner() {
        var machine = Machine()
        _ = machine.subscribing(1, "a/b", after: nil, keeps: true, now: Self.now)
        _ = machine.subscribed(1, "a/b", .success(TopicPosition(log: 1, next: 0)), now: Self.now)
        let outcome28 = machine.tick(now: Self.now)
        #expect(outcome28.isEmpty)
        guard case .listen("a/b")? = machine.mapChanged({ $0 == ShardID(key: "a/b") }, now: Self.now).first else {
            Issue.record("the new owner is not told")
            return
        }
    }

    @Test("One topic, and one subscription of a client, more than the bound is refused with 10007")
    func bounds() {
        var configuration = Machine.Configuration()
        (configuration.topicsMax, configuration.subscriptionsMax) = (3, 2)
        var machine = Machine(configuration: configuration)
        let outcome29 = machine.subscribing(1, "a/1", after: nil, keeps: false, now: Self.now)
        #expect(outcome29 == nil)
        let outcome30 = machine.subscribing(1, "a/2", after: nil, keeps: false, now: Self.now)
        #expect(outcome30 == nil)
        let outcome31 = machine.subscribing(1, "a/3", after: nil, keeps: false, now: Self.now)
        #expect(outcome31?.code == .overloaded)
        let outcome32 = machine.subscribing(1, "a/2", after: nil, keeps: false, now: Self.now)
        #expect(outcome32 == nil)
        let outcome33 = machine.subscribing(2, "a/3", after: nil, keeps: false, now: Self.now)
        #expect(outcome33 == nil)
        let outcome34 = machine.subscribing(2, "a/4", after: nil, keeps: false, now: Self.now)
        #expect(outcome34?.code == .overloaded)
    }
}

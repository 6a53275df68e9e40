package import ApusCore
import OrderedCollections

/// A place in the events of a topic: which sequence of events, and the number of the next one.
package struct TopicPosition: Sendable, Hashable {
    package var log: UInt64
    package var next: UInt64

    package init(log: UInt64, next: UInt64) { (self.log, self.next) = (log, next) }
}

/// The topics to which the clients of one node are subscribed (D17, docs/decisions/26).
///
/// **The node** is subscribed to a topic while it has subscribers. It reports this to the topic's owner when the first
/// one comes, again every ``Configuration/renewInterval``, and at once when the owner changes. The owner sends it every
/// event once, however many subscribers there are. An event may be lost with a connection or an owner.
///
/// **A subscriber of a topic that keeps events** has a position. An event with the number of its position goes to it at
/// once. One with a later number, or a later head in the owner's answer to a renewal, shows that something is missing:
/// the subscriber reads it from the owner. It also reads after it resumed with a cursor, after its connection took no
/// more bytes, and after it acknowledged events where as many were unacknowledged as may be. So it has every event
/// once, in order, or is notified that some are lost.
///
/// **A subscriber of any other topic** has each event that reaches the node, and no position.
///
/// Bounds: ``Configuration/topicsMax`` topics and ``Configuration/subscriptionsMax`` subscriptions of one subscriber;
/// one more is refused with 10007.
///
/// Pure: confined to its owner; time is a parameter.
package struct TopicEdgeStateMachine<Subscriber: Hashable & Sendable>: Sendable {
    package struct Configuration: Sendable {
        /// Key `api.topics_max`.
        package var topicsMax = 65_536
        /// Key `api.subscriptions_max`.
        package var subscriptionsMax = 1000
        /// How often this node reports to the owner that it has subscribers.
        package var renewInterval = Duration.seconds(5)
        /// The first pause after an owner did not answer; each further one is twice as long, up to ``retryDelayMax``.
        package var retryDelay = Duration.milliseconds(50)
        package var retryDelayMax = Duration.seconds(1)

        package init() {}
    }

    package struct Event: Sendable, Equatable {
        package var sequence: UInt64
        package var type: UInt32
        package var message: [UInt8]
        /// Something that should have been an event before this one never was. The number of this one is the next.
        package var isAfterGap: Bool

        package init(sequence: UInt64, type: UInt32, message: [UInt8], isAfterGap: Bool = false) {
            (self.sequence, self.type, self.message) = (sequence, type, message)
            self.isAfterGap = isAfterGap
        }
    }

    /// An answer of the owner to a question for kept events.
    package struct Page: Sendable {
        package var head: TopicPosition
        package var events: [Event]
        /// Events before these are lost.
        package var missed: Bool

        package init(head: TopicPosition, events: [Event], missed: Bool) {
            (self.head, self.events, self.missed) = (head, events, missed)
        }
    }

    /// What the shell does next, in this order.
    package enum Action: Sendable {
        /// Say to the owner that this node has subscribers; answer with ``listened(_:_:now:)``.
        case listen(String)
        /// Say to the owner that it has none.
        case leave(String)
        case deliver(String, Event, log: UInt64, missed: Bool, to: [Subscriber])
        /// Tell the subscriber that events were lost, where none follows.
        case read(String, Subscriber, TopicPosition)
    }

    private struct Listener {
        /// Nil before the owner answered, and of topics that keep nothing.
        var position: TopicPosition?
        /// The position with which the subscription began.
        var start: TopicPosition?
        var isReading = false
        /// Its connection takes nothing.
        var isBlocked = false
        /// Events from this one on are unacknowledged.
        var acknowledged: UInt64?
        /// Events were lost, and it was not notified.
        var missed = false
    }

    private struct Topic {
        /// How many events are kept; 0: none.
        let keeps: Bool
        /// Unacknowledged events of one subscriber; 0: without acknowledgement.
        let window: Int
        /// A subscriber without a cursor starts with the newest kept event.
        let startsWithLast: Bool
        let shard: ShardID
        var listeners: OrderedDictionary<Subscriber, Listener> = [:]
        var head: TopicPosition?
        var isAsking = false
        var renewAt: MonotonicTime
        var failures = 0
    }

    private let configuration: Configuration
    private var topics: OrderedDictionary<String, Topic> = [:]
    /// The subscriptions of each subscriber.
    private var names: [Subscriber: OrderedSet<String>] = [:]

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    package var topicCount: Int { topics.count }
    package var subscriptionCount: Int { names.values.reduce(0) { $0 + $1.count } }

    // MARK: - Subscribers

    /// A client subscribes to a topic. The caller asks the owner, and calls ``subscribed(_:_:_:now:)`` with its answer.
    /// Harmless where it does already. Fails with 10007 over a bound.
    package mutating func subscribing(
        _ subscriber: Subscriber, _ name: String, after: TopicPosition?, keeps: Bool, startsWithLast: Bool = false,
        window: Int = 0, now: MonotonicTime
    ) -> ApusError? {
        if topics[name]?.listeners[subscriber] == nil {
            guard names[subscriber]?.count ?? 0 < configuration.subscriptionsMax else {
                return ApusError(.overloaded, "the client is subscribed to too many topics")
            }
            guard topics[name] != nil || topics.count < configuration.topicsMax else {
                return ApusError(.overloaded, "the clients of this node are subscribed to too many topics")
            }
            names[subscriber, default: []].append(name)
        }
        var topic =
            topics[name]
            ?? Topic(
                keeps: keeps, window: window, startsWithLast: startsWithLast, shard: ShardID(key: name), renewAt: now)
        topic.listeners[subscriber] = Listener(position: after, start: after, acknowledged: after?.next)
        topics[name] = topic
        return nil
    }

    /// The owner has answered a subscription. The subscription is undone if the owner could not be asked.
    package mutating func subscribed(
        _ subscriber: Subscriber, _ name: String, _ answer: Result<TopicPosition, ApusError>, now: MonotonicTime
    ) -> [Action] {
        switch answer {
        case .failure: return unsubscribed(subscriber, name)
        case .success(let head): return listened(name, .success(head), now: now)
        }
    }

    /// Where a subscription began: a subscriber that has received no event continues from there at another node. Nil
    /// before the owner answered, and for a topic that keeps nothing.
    package func start(of subscriber: Subscriber, _ name: String) -> TopicPosition? {
        guard let topic = topics[name], topic.keeps else { return nil }
        return topic.listeners[subscriber]?.start
    }

    /// A client ended its subscription.
    package mutating func unsubscribed(_ subscriber: Subscriber, _ name: String) -> [Action] {
        guard topics[name]?.listeners.removeValue(forKey: subscriber) != nil else { return [] }
        names[subscriber]?.remove(name)
        if names[subscriber]?.isEmpty ?? false { names[subscriber] = nil }
        guard topics[name]?.listeners.isEmpty ?? false else { return [] }
        topics.removeValue(forKey: name)
        return [.leave(name)]
    }

    /// A client has disconnected.
    package mutating func ended(_ subscriber: Subscriber) -> [Action] {
        (names[subscriber] ?? []).flatMap { unsubscribed(subscriber, $0) }
    }

    /// The connection of a subscriber did not take an event: it is read again when ``writable(_:_:)`` says so.
    ///
    /// - Parameter missed: the event said that some before it are lost.
    package mutating func notSent(_ subscriber: Subscriber, _ name: String, sequence: UInt64, missed: Bool) {
        guard var listener = topics[name]?.listeners[subscriber], var position = listener.position else { return }
        position.next = min(position.next, sequence)
        listener.position = position
        listener.isBlocked = true
        listener.missed = listener.missed || missed
        topics[name]?.listeners[subscriber] = listener
    }

    /// The connection of a subscriber takes events again.
    package mutating func writable(_ subscriber: Subscriber, _ name: String) -> [Action] {
        topics[name]?.listeners[subscriber]?.isBlocked = false
        return catchUp(name, subscriber)
    }

    /// A subscriber has handled the events before this position.
    package mutating func acknowledged(
        _ subscriber: Subscriber, _ name: String, _ position: TopicPosition
    ) -> [Action] {
        guard var listener = topics[name]?.listeners[subscriber], let own = listener.position,
            own.log == position.log, position.next <= own.next
        else { return [] }
        listener.acknowledged = max(listener.acknowledged ?? 0, position.next)
        topics[name]?.listeners[subscriber] = listener
        return catchUp(name, subscriber)
    }

    // MARK: - The owner

    /// The owner has answered that it has this node as a listener, or did not answer.
    package mutating func listened(
        _ name: String, _ answer: Result<TopicPosition, ApusError>, now: MonotonicTime
    ) -> [Action] {
        guard var topic = topics[name] else { return [] }
        topic.isAsking = false
        switch answer {
        case .failure:
            topic.failures += 1
            let delay = Backoff.wait(
                after: topic.failures, first: configuration.retryDelay, longest: configuration.retryDelayMax)
            topic.renewAt = now + delay
            topics[name] = topic
            return []
        case .success(let head):
            topic.failures = 0
            topic.renewAt = now + configuration.renewInterval
            topics[name] = topic
            return topic.keeps ? moved(name, to: head) : []
        }
    }

    /// Shards have other owners, to which this node has not reported.
    package mutating func mapChanged(_ hasChanged: (ShardID) -> Bool, now: MonotonicTime) -> [Action] {
        for index in topics.values.indices where hasChanged(topics.values[index].shard) {
            topics.values[index].renewAt = now
            topics.values[index].failures = 0
        }
        return tick(now: now)
    }

    /// Time went by.
    package mutating func tick(now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        for index in topics.values.indices where !topics.values[index].isAsking && topics.values[index].renewAt <= now {
            topics.values[index].isAsking = true
            actions.append(.listen(topics.keys[index]))
        }
        return actions
    }

    /// The owner sent an event.
    package mutating func received(_ name: String, log: UInt64, _ event: Event) -> [Action] {
        guard let topic = topics[name] else { return [] }
        guard topic.keeps else {
            return [.deliver(name, event, log: log, missed: false, to: Array(topic.listeners.keys))]
        }
        guard topic.head?.log == log || topic.head == nil else {
            return moved(name, to: TopicPosition(log: log, next: event.sequence + 1))
        }
        var receivers: [Subscriber] = []
        for (subscriber, listener) in topic.listeners
        where listener.position == TopicPosition(log: log, next: event.sequence) && !listener.isReading
            && !listener.isBlocked && !listener.missed && hasRoom(listener, topic)
        {
            receivers.append(subscriber)
            topics[name]?.listeners[subscriber]?.position?.next += 1
        }
        let delivered: [Action] =
            receivers.isEmpty ? [] : [.deliver(name, event, log: log, missed: false, to: receivers)]
        return delivered + moved(name, to: TopicPosition(log: log, next: event.sequence + 1))
    }

    /// The owner has answered a question for kept events, or did not.
    package mutating func read(
        _ subscriber: Subscriber, _ name: String, _ answer: Result<Page, ApusError>, now: MonotonicTime
    ) -> [Action] {
        guard var listener = topics[name]?.listeners[subscriber], listener.isReading else { return [] }
        listener.isReading = false
        guard case .success(let page) = answer, var position = listener.position else {
            topics[name]?.listeners[subscriber] = listener
            // The next renewal tries again, and comes soon.
            if let renewAt = topics[name]?.renewAt {
                topics[name]?.renewAt = min(renewAt, now + configuration.retryDelayMax)
            }
            return []
        }
        listener.missed = listener.missed || page.missed
        if position.log != page.head.log || page.missed {
            position = TopicPosition(log: page.head.log, next: page.events.first?.sequence ?? page.head.next)
            listener.acknowledged = position.next
        }
        var actions: [Action] = []
        for event in page.events where event.sequence == position.next {
            listener.position = position
            guard let topic = topics[name], hasRoom(listener, topic) else { break }
            actions.append(.deliver(name, event, log: position.log, missed: listener.missed, to: [subscriber]))
            listener.missed = false
            position.next += 1
        }
        listener.position = position
        topics[name]?.listeners[subscriber] = listener
        return actions + moved(name, to: page.head)
    }

    // MARK: - Positions

    private func hasRoom(_ listener: Listener, _ topic: Topic) -> Bool {
        guard topic.window > 0, let position = listener.position else { return true }
        return position.next - min(position.next, listener.acknowledged ?? position.next) < UInt64(topic.window)
    }

    /// The topic's events go up to here. Subscribers that do not have all of them read the rest.
    private mutating func moved(_ name: String, to head: TopicPosition) -> [Action] {
        guard let topic = topics[name] else { return [] }
        if topic.head?.log == head.log {
            topics[name]?.head?.next = max(topic.head?.next ?? 0, head.next)
        } else {
            topics[name]?.head = head
        }
        return topic.listeners.keys.flatMap { catchUp(name, $0) }
    }

    private mutating func catchUp(_ name: String, _ subscriber: Subscriber) -> [Action] {
        guard let topic = topics[name], var listener = topic.listeners[subscriber], let head = topic.head else {
            return []
        }
        guard var position = listener.position else {
            let last = topic.startsWithLast && head.next > 0 ? head.next - 1 : head.next
            let start = TopicPosition(log: head.log, next: last)
            topics[name]?.listeners[subscriber]?.position = start
            topics[name]?.listeners[subscriber]?.start = start
            topics[name]?.listeners[subscriber]?.acknowledged = last
            return catchUp(name, subscriber)
        }
        guard !listener.isReading, !listener.isBlocked, hasRoom(listener, topic) else { return [] }
        // One that is ahead has a position of a log that the owner's memory has not: the owner says what is missing.
        guard position.log != head.log || position.next < head.next else { return [] }
        listener.isReading = true
        position = listener.position ?? position
        topics[name]?.listeners[subscriber] = listener
        return [.read(name, subscriber, position)]
    }
}

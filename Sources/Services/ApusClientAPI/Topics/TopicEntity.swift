package import ApusCluster
import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

// A topic at its owner (docs/decisions/26). Topics that keep events are replicated, and others are not.

extension EntityKind {
    /// Topics that keep nothing.
    package static let topic = Self(rawValue: 3)
    /// Topics whose events the standby has too.
    package static let keptTopic = Self(rawValue: 4)
}

extension TopicState: EntityContentMessage {}

extension TopicPublish: EntityMessage {
    package typealias Reply = TopicPublished
    package static var method: UInt16 { 0x0111 }
    package var isWithinBounds: Bool {
        version <= WireNumber.sequenceMax && (version == 0 || previousVersion < version)
    }
    package static func isWithinBounds(_ reply: TopicPublished) -> Bool { reply.sequence <= WireNumber.sequenceMax }
}

/// Repeating it changes nothing.
extension TopicListen: EntityMessage {
    package typealias Reply = TopicListening
    package static var method: UInt16 { 0x0112 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { incarnation <= WireNumber.incarnationMax }
    package static func isWithinBounds(_ reply: TopicListening) -> Bool { reply.next <= WireNumber.nextMax }
}

extension TopicLeave: EntityMessage {
    package typealias Reply = TopicLeft
    package static var method: UInt16 { 0x0113 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { incarnation <= WireNumber.incarnationMax }
}

extension TopicRead: EntityMessage {
    package typealias Reply = TopicReadReply
    package static var method: UInt16 { 0x0114 }
    package static var isIdempotent: Bool { true }
    package static func isWithinBounds(_ reply: TopicReadReply) -> Bool {
        reply.next <= WireNumber.nextMax && reply.entries.allSatisfy { $0.sequence <= WireNumber.sequenceMax }
    }
}

/// The owner of a topic sends a node an event.
extension TopicEvent: NodeMessage {
    package typealias Reply = TopicEventTaken
    package static var method: UInt16 { 0x0043 }
    package var isWithinBounds: Bool { entry.sequence <= WireNumber.sequenceMax }
}

extension EntityDefinition<TopicState> {
    private static var idle: String { "idle" }
    /// The reminder of events that wait for the one before them.
    private static var order: String { "order" }
    /// Events of one answer to a ``TopicRead``.
    private static var pageCountMax: Int { 64 }
    /// A node that does not renew for so long is forgotten; it renews every 5 s.
    private static var listenerMilliseconds: Int64 { 60_000 }
    /// Nodes of one topic; more than a cluster has.
    private static var listenersMax: Int { 1024 }

    /// A kind of topics. Events with versions are published to topics that keep events.
    ///
    /// - Parameter retention: of a topic, by its name.
    package static func topic(
        _ kind: EntityKind, name: String, durability: EntityDurability,
        retention: @escaping @Sendable (String) -> TopicRetention
    ) -> Self {
        var definition = Self(kind, name: name, durability: durability)
        definition.on(TopicPublish.self) { topic, message, scope throws(ApusError) in
            topic.begin()
            guard topic.enter(message.generation) else {
                // It was on its way when the readers changed.
                return .with { ($0.log, $0.sequence) = (topic.log, topic.next - min(1, topic.next)) }
            }
            let due = topic.arrived(message, at: scope.wallMilliseconds)
            try publish(due, to: &topic, retention(scope.address.key), &scope)
            return .with { ($0.log, $0.sequence) = (topic.log, topic.next - min(1, topic.next)) }
        }
        definition.on(TopicListen.self) { topic, message, scope throws(ApusError) in
            guard NodeName(rawValue: message.node) != nil else { throw ApusError(.malformed) }
            topic.begin()
            _ = topic.enter(message.generation)
            topic.listeners.removeAll { $0.node == message.node }
            guard topic.listeners.count < Self.listenersMax else { throw ApusError(.overloaded) }
            topic.listeners.append(
                .with {
                    ($0.node, $0.incarnation, $0.renewedMs) =
                        (message.node, message.incarnation, scope.wallMilliseconds)
                })
            // An owner of an earlier release sets no reminder. Nodes report to a new owner at once.
            let due = topic.overdue(at: scope.wallMilliseconds)
            try publish(due, to: &topic, retention(scope.address.key), &scope)
            return .with { ($0.log, $0.next) = (topic.log, topic.next) }
        }
        definition.on(TopicLeave.self) { topic, message, _ throws(ApusError) in
            topic.listeners.removeAll { $0.node == message.node && $0.incarnation <= message.incarnation }
            return TopicLeft()
        }
        definition.onReminder { topic, reminder, scope throws(ApusError) in
            guard reminder.name != Self.order else {
                let due = topic.overdue(at: scope.wallMilliseconds)
                return try publish(due, to: &topic, retention(scope.address.key), &scope)
            }
            // A topic without new events takes no memory. Its next event begins a new sequence.
            let idleSince = min(topic.entries.last?.publishedMs ?? 0, scope.wallMilliseconds)
            let due = idleSince + Int64(retention(scope.address.key).idleTime.milliseconds)
            if due > scope.wallMilliseconds { return try scope.remind(Self.idle, at: due) }
            topic.listeners.removeAll { $0.renewedMs < scope.wallMilliseconds - Self.listenerMilliseconds }
            guard topic.listeners.isEmpty else {
                // The listeners have every event. The sequence continues, so that none of them sees a gap.
                topic.entries = []
                let next = scope.wallMilliseconds + Int64(retention(scope.address.key).idleTime.milliseconds)
                return try scope.remind(Self.idle, at: next)
            }
            topic = TopicState()
            scope.isDone = true
        }
        definition.onReading(TopicRead.self) { topic, message, _ throws(ApusError) in
            // The next listener begins a sequence that can be read.
            guard topic.isSound else { throw ApusError(.malformed, "the events of a topic have no valid numbers") }
            return topic.page(log: message.log, from: message.from, countMax: Self.pageCountMax)
        }
        return definition
    }

    /// Numbers events, keeps them, and sends them to the nodes with subscribers.
    private static func publish(
        _ due: [TopicState.Due], to topic: inout TopicState, _ retention: TopicRetention, _ scope: inout EntityScope
    ) throws(ApusError) {
        let now = scope.wallMilliseconds
        if let end = topic.waitEnd(at: now) {
            if !scope.reminders.contains(where: { $0.name == order && $0.due == end }) {
                try scope.remind(order, at: end)
            }
        } else {
            scope.cancelReminder(order)
        }
        guard !due.isEmpty else { return }
        if retention.eventsMax > 0, !scope.reminders.contains(where: { $0.name == idle }) {
            try scope.remind(idle, at: now + Int64(retention.idleTime.milliseconds))
        }
        topic.listeners.removeAll { $0.renewedMs < now - listenerMilliseconds }
        for due in due {
            let entry = TopicEntry.with {
                ($0.sequence, $0.type, $0.message) = (topic.next, due.event.type, due.event.message)
                ($0.publishedMs, $0.version, $0.missed) = (now, due.event.version, due.missed)
                ($0.sender, $0.foreign) = (due.event.sender, due.event.foreign)
            }
            topic.next += 1
            topic.keep(entry, retention)
            let event = TopicEvent.with { ($0.topic, $0.log, $0.entry) = (scope.address.key, topic.log, entry) }
            for listener in topic.listeners {
                if let name = NodeName(rawValue: listener.node) { try scope.tell(name, event) }
            }
        }
    }
}

extension TopicState {
    /// True if the numbers are those that an owner gives. The state comes from a former owner.
    fileprivate var isSound: Bool {
        next <= WireNumber.sequenceMax && entries.allSatisfy { $0.sequence < next }
            && waiting.count <= Self.waitingMax && waiting.allSatisfy(\.event.isWithinBounds)
    }

    /// A topic without an event or a subscriber so far begins a sequence of its own, and so does one with numbers that
    /// no owner gives.
    package mutating func begin() {
        if !isSound { (log, next, entries, version, waiting) = (0, 0, [], 0, []) }
        if log == 0 { log = UInt64.random(in: 1...(.max)) }
    }

    /// A message of this generation comes: an earlier one ends, with all that it has kept.
    ///
    /// - Returns: false if the message is of an earlier one.
    package mutating func enter(_ generation: UInt64) -> Bool {
        guard generation != 0, generation != self.generation else { return true }
        guard generation > self.generation else { return false }
        (self.generation, entries, version, waiting) = (generation, [], 0, [])
        return true
    }
}

import ApusCore
import SwiftProtobuf

/// The order of events with versions (docs/decisions/26).
///
/// Several nodes publish the changes of one thing, each after its own change, so events arrive in any order. An event
/// that names the version before it waits until the event of that version is published.
///
/// The event before may never come: its node has died, or its client did not repeat the request. After
/// ``waitMilliseconds`` the topic continues without it, and says `missed` with the next event. An event that comes
/// later than that is not published, because its value may be an old one: the newest event is published again, with
/// `missed`, so that subscribers read what they have missed.
///
/// The first event of a topic, and the first one after an event without a version, waits for none.
///
/// **Limits.** ``waitingMax`` events and ``waitingByteCountMax`` bytes wait. Beyond them none waits any longer.
///
/// Pure value; times are Unix milliseconds of the cluster's clock.
extension TopicState {
    /// How long an event waits for the one before it.
    package static let waitMilliseconds: Int64 = 500
    /// Events that wait.
    package static let waitingMax = 32
    /// The bytes of these together.
    package static let waitingByteCountMax = 16 << 10

    /// An event to publish now.
    package struct Due: Sendable {
        package var event: TopicPublish
        /// An event before it is missing.
        package var missed = false
    }

    /// An event has arrived.
    ///
    /// - Returns: the events to publish, in order.
    package mutating func arrived(_ event: TopicPublish, at now: Int64) -> [Due] {
        guard event.version > 0 else { return [Due(event: event)] + endOrder() }
        var due = overdue(at: now)
        if version == 0 {
            version = event.version
            due.append(Due(event: event))
        } else if event.version <= version {
            if let newest = newest(insteadOf: event) { due.append(Due(event: newest, missed: true)) }
        } else {
            wait(event, since: now)
            due += inOrder()
            let byteCount = waiting.reduce(0) { $0 + $1.event.message.count }
            if waiting.count > Self.waitingMax || byteCount > Self.waitingByteCountMax {
                due += release(waiting.count)
            }
        }
        return due
    }

    /// The events that have waited for long enough, with all before them.
    package mutating func overdue(at now: Int64) -> [Due] {
        guard let last = waiting.lastIndex(where: { $0.sinceMs > now || $0.sinceMs <= now - Self.waitMilliseconds })
        else { return [] }
        return release(last + 1) + inOrder()
    }

    /// The time until which the first of the waiting events may wait; nil if none waits.
    package func waitEnd(at now: Int64) -> Int64? {
        let wait = Self.waitMilliseconds
        return waiting.map(\.sinceMs).min().map { since in min(max(now + 1, since + wait), now + wait) }
    }

    /// An event without a version is of a node of an earlier release, which has the ones before it in any order.
    private mutating func endOrder() -> [Due] {
        let rest = release(waiting.count)
        version = 0
        return rest
    }

    /// What is published in place of an event that comes too late; nil if it was published before, or nothing is kept.
    private func newest(insteadOf late: TopicPublish) -> TopicPublish? {
        guard !entries.contains(where: { $0.version == late.version }), let newest = entries.last else { return nil }
        return .with { ($0.type, $0.message, $0.version) = (newest.type, newest.message, newest.version) }
    }

    private mutating func wait(_ event: TopicPublish, since now: Int64) {
        let index = waiting.firstIndex { $0.event.version >= event.version } ?? waiting.endIndex
        guard index == waiting.endIndex || waiting[index].event.version > event.version else { return }
        waiting.insert(.with { ($0.event, $0.sinceMs) = (event, now) }, at: index)
    }

    /// The waiting events that follow the newest one.
    private mutating func inOrder() -> [Due] {
        var count = 0
        var last = version
        while count < waiting.count, waiting[count].event.previousVersion <= last {
            last = waiting[count].event.version
            count += 1
        }
        return release(count)
    }

    /// The first of the waiting events.
    private mutating func release(_ count: Int) -> [Due] {
        var released: [Due] = []
        for event in waiting.prefix(count).map(\.event) {
            released.append(Due(event: event, missed: event.previousVersion > version))
            version = event.version
        }
        waiting.removeFirst(count)
        return released
    }
}

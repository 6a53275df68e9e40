package import ApusCore

/// A topic's name: `KIND/KEY`.
package struct ClientTopic: Sendable, Hashable, CustomStringConvertible {
    /// The longest name, in bytes.
    package static let byteCountMax = 63

    package let kind: String
    package let key: String

    package init(kind: String, key: String) { (self.kind, self.key) = (kind, key) }

    /// Throws 21031 where the text is no topic.
    package init(_ text: String) throws(ApusError) {
        let parts = text.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
        guard text.utf8.count <= Self.byteCountMax, parts.count == 2, !parts[0].isEmpty, !parts[1].isEmpty else {
            throw ApusError(.badParameter, "a topic is KIND/KEY and has at most \(Self.byteCountMax) bytes")
        }
        self.init(kind: String(parts[0]), key: String(parts[1]))
    }

    package var description: String { "\(kind)/\(key)" }
}

/// What a kind of topics keeps of its events.
package struct TopicRetention: Sendable, Hashable {
    /// How many of the newest events are kept at the owner and its standby; 0: none, and a subscriber misses what is
    /// published while its node or the owner fails. At most 256.
    package var eventsMax: Int
    /// The bytes of all kept events of a topic together. With the listeners they are one replicated state, which has
    /// another limit (`replication.state_bytes_max`).
    package var byteCountMax: Int
    /// Events of a topic to which nothing was published for so long are dropped. One minute at least.
    package var idleTime: Duration
    /// A subscriber without a cursor receives the newest event first.
    package var startsWithLast: Bool
    /// So many events of a topic are sent to a subscriber before it acknowledges the first; 0: acknowledgement is not
    /// asked for.
    package var window: Int

    package init(
        eventsMax: Int, byteCountMax: Int = 48 << 10, idleTime: Duration = .seconds(3600),
        startsWithLast: Bool = false, window: Int = 0
    ) {
        self.idleTime = max(idleTime, .seconds(60))
        (self.eventsMax, self.byteCountMax) = (min(max(0, eventsMax), 256), byteCountMax)
        (self.startsWithLast, self.window) = (startsWithLast, window)
    }

    /// Nothing is kept.
    package static let none = Self(eventsMax: 0)
    /// The newest event, which every new subscriber receives first.
    package static let last = Self(eventsMax: 1, startsWithLast: true)
}

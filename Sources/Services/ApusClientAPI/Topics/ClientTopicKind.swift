import ApusContract
package import ApusCore
package import ApusSessions

/// A kind of topics, such as `presence`, whose topics are `presence/KEY` (D17).
package protocol ClientTopicKind: Sendable {
    /// Before the slash of a topic's name: 1 to 20 letters, digits and `-`.
    var name: String { get }
    /// One sentence for the documents.
    var summary: String { get }
    var events: [ClientEventKind] { get }

    /// A client subscribes to the topic. Events go to the connection from now on, also before this returns.
    ///
    /// - Throws: what the client is answered, such as 12004 where it may not.
    func subscribe(_ topic: ClientTopic, after: TopicPosition?, _ call: ClientCall) async throws(ApusError)

    /// A client ended its subscription.
    func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) async

    /// A connection has closed. The default does nothing: ``TopicService`` and ``SessionService`` notice it themselves.
    func ended(_ connection: any ClientConnection)

    /// The device whose connection this is sleeps from now on, or is awake again. The default does nothing.
    ///
    /// - Throws: what the device is answered.
    func slept(_ isAsleep: Bool, _ call: ClientCall) async throws(ApusError)
}

extension ClientTopicKind {
    package func ended(_ connection: any ClientConnection) {}
    package func slept(_ isAsleep: Bool, _ call: ClientCall) async throws(ApusError) {}
}

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

/// Topics that a service publishes to with ``TopicService/publish(_:to:)``.
package struct PublishedTopics: ClientTopicKind {
    package let name: String
    package let summary: String
    package let events: [ClientEventKind]
    package let retention: TopicRetention
    private let service: TopicService
    private let generation: @Sendable (_ key: String, Session) async throws(ApusError) -> UInt64

    /// - Parameter mayHear: throws if this client may not subscribe to the topic of this key, such as 12004.
    package init(
        _ name: String, _ summary: String, events: [ClientEventKind], retention: TopicRetention = .none,
        on service: TopicService,
        mayHear: @escaping @Sendable (_ key: String, Session) async throws(ApusError) -> Void
    ) {
        self.init(
            name, summary, events: events, retention: retention,
            generation: { key, session throws(ApusError) -> UInt64 in
                try await mayHear(key, session)
                return 0
            }, on: service)
    }

    /// - Parameter generation: that of the events which the client may read; those of earlier ones are dropped
    ///   (``TopicService/publish(_:to:generation:request:timeout:)``). Throws if the client may not subscribe.
    package init(
        _ name: String, _ summary: String, events: [ClientEventKind], retention: TopicRetention,
        generation: @escaping @Sendable (_ key: String, Session) async throws(ApusError) -> UInt64,
        on service: TopicService
    ) {
        (self.name, self.summary, self.events, self.retention) = (name, summary, events, retention)
        (self.service, self.generation) = (service, generation)
        service.add(retention, of: name)
    }

    package func subscribe(_ topic: ClientTopic, after: TopicPosition?, _ call: ClientCall) async throws(ApusError) {
        let generation = try await generation(topic.key, call.session)
        try await service.subscribe(topic, after: after, retention, generation: generation, call)
    }

    package func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) async { service.unsubscribe(topic, call) }
}

/// The presence of devices, one topic a device: `presence/DEVICE` (IV-B9, IV-D9). The owner of the device's session
/// publishes; the first event is the presence at the time of the subscription.
package struct PresenceTopics: ClientTopicKind {
    package let name = "presence"
    package let summary = "Whether a device is online, offline or asleep; the key is the device's id."
    package let events = [ClientEventKind(ClientPresence.self)]
    private let sessions: SessionService

    package init(_ sessions: SessionService) { self.sessions = sessions }

    package func subscribe(_ topic: ClientTopic, after: TopicPosition?, _ call: ClientCall) async throws(ApusError) {
        let device = try DeviceID(checking: topic.key, "the device's id")
        let presence = try await sessions.inspect(device, for: call.session, subscribe: true).get()
        call.connection?.send([.presence(device, presence)])
    }

    package func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) async {
        if let device = DeviceID(rawValue: topic.key) { await sessions.forget(device, for: call.session) }
    }
}

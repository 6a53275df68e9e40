package import ApusCore
package import ApusSessions

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

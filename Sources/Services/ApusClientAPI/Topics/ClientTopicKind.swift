package import ApusCore

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

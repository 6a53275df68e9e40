import ApusContract
package import ApusCore
package import ApusSessions

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

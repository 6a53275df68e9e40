import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
import SwiftProtobuf

extension TimerService: OutboxReceiver {
    /// Publishes an event to the device's topic. It may come again; the topic recognizes it by its version. An event of
    /// a former account is dropped by the topic, once a client of the next one has subscribed.
    package func deliver(_ entry: OutboxEntry) async throws(ApusError) {
        guard let device = DeviceID(rawValue: entry.entity.key),
            let event = try? TimerEvent(serializedBytes: entry.payload)
        else { return }
        try await topics.publish(
            ClientTimerChanged(event, device), to: Self.topic(of: device), version: event.version,
            after: event.previousVersion, generation: event.dataSinceMs)
        meters.delivered(event, at: view.clock.wallMilliseconds())
    }
}

extension ClientTimerChanged {
    init(_ event: TimerEvent, _ device: DeviceID) {
        self.init()
        (self.device, timer) = (device.rawValue, ClientTimer(event.timer))
        kind = ClientTimerEventKind(rawValue: event.kind.rawValue) ?? .unspecified
        (version, previousVersion, unattended) = (event.version, event.previousVersion, event.unattended)
    }
}

extension ClientTimer {
    init(_ timer: TimerEntry) {
        self.init()
        (id, label) = (timer.id, timer.label)
        kind = ClientTimerKind(rawValue: timer.kind.rawValue) ?? .unspecified
        status = ClientTimerStatus(rawValue: timer.status.rawValue) ?? .unspecified
        (createdMs, dueMs, durationMs) = (timer.createdMs, timer.dueMs, timer.durationMs)
        (remainingMs, ringingMs) = (timer.remainingMs, timer.ringingMs)
    }
}

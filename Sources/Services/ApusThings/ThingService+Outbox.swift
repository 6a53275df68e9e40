import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
import ApusStorage
import Logging
import SwiftProtobuf

extension ThingService: OutboxReceiver {
    /// How long a change is offered to an observer that fails, such as one whose queue has no owner for a moment. Later
    /// changes of the device wait for it. After that the observer does not get the change.
    private static let observingTime = Duration.seconds(5)

    /// Publishes a change to the device's topic and to the observers. It may come again; the topic and the observers
    /// recognize it by its version.
    package func deliver(_ entry: OutboxEntry) async throws(ApusError) {
        guard let device = DeviceID(rawValue: entry.entity.key),
            let changed = try? ThingChanged(serializedBytes: entry.payload)
        else { return }
        try await publish(changed, of: device)
    }

    /// Publishes a change whose owner's node is of an earlier release, which has no outboxes.
    func publishUnqueued(_ changed: ThingChanged, of device: DeviceID) async throws(ApusError) {
        guard !changed.isQueued, changed.version > changed.previousVersion else { return }
        try await publish(changed, of: device)
    }

    /// A device whose id is too long for a topic has no topic.
    private func publish(_ changed: ThingChanged, of device: DeviceID) async throws(ApusError) {
        let event = ClientPropertyChanged.with {
            ($0.device, $0.path, $0.json) = (device.rawValue, changed.path, changed.json)
            ($0.version, $0.previousVersion, $0.pending) = (
                changed.version, changed.previousVersion, changed.isPending
            )
        }
        let topic = ClientTopic(kind: Self.topicKind, key: device.rawValue)
        if topic.description.utf8.count <= ClientTopic.byteCountMax {
            try await topics.publish(
                event, to: topic, version: event.version, after: event.previousVersion,
                generation: changed.dataSinceMs)
        }
        for observer in ports.all((any ThingObserver).self) { try await observe(event, changed, of: device, observer) }
    }

    private func observe(
        _ event: ClientPropertyChanged, _ changed: ThingChanged, of device: DeviceID, _ observer: any ThingObserver
    ) async throws(ApusError) {
        let now = view.clock.wallMilliseconds()
        let time = changed.changedMs > 0 ? changed.changedMs : now
        do throws(ApusError) {
            try await observer.changed(event, of: device, at: time, dataSince: changed.dataSinceMs)
        } catch {
            let age = Duration.milliseconds(now - time)
            // After a clock has gone back, nobody knows how old it is.
            guard age >= Self.observingTime || age < .zero || error.isRecordStoreFull else { throw error }
            var facts = Logger.facts(of: error)
            facts[LogKey.device] = "\(device)"
            limited.log(.warning, "A change of a model was not passed to hooks", metadata: facts)
        }
    }
}

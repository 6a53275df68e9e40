import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
import SwiftProtobuf

extension ThingService: OutboxReceiver {
    /// Publishes a change to the device's topic and to the observers. It may come a second time after the death of a
    /// node; the topic and the observers recognize it by its version. A device whose id is too long for a topic has no
    /// topic.
    package func deliver(_ entry: OutboxEntry) async throws(ApusError) {
        guard let device = DeviceID(rawValue: entry.entity.key),
            let changed = try? ThingChanged(serializedBytes: entry.payload)
        else { return }
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
        for observer in ports.all((any ThingObserver).self) {
            try await observer.changed(event, of: device, at: changed.changedMs, dataSince: changed.dataSinceMs)
        }
    }
}

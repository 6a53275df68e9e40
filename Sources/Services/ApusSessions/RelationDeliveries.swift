import ApusCluster
import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

extension PublishedRelation {
    /// Nil if the entry is not a change of a device's accounts.
    init?(_ entry: OutboxEntry) {
        guard let device = DeviceID(rawValue: entry.entity.key),
            let stored = try? StoredDeviceChange(serializedBytes: entry.payload),
            let message = try? SessionRelate(serializedBytes: stored.change),
            let change = try? DeviceRelationChange(message)
        else { return nil }
        self.init(
            device: device, change: change,
            before: stored.hasBefore ? DeviceRecord(stored.before, epoch: 0) : nil, timeMs: stored.timeMs,
            number: entry.number)
    }
}

/// Passes the changes in the outbox to the publishers of this node.
struct RelationDeliveries: OutboxReceiver {
    weak var service: SessionService?

    func deliver(_ entry: OutboxEntry) async throws(ApusError) {
        guard let service else { throw ApusError(.cancelled) }
        guard let change = PublishedRelation(entry) else { return }
        try await service.publish(change)
    }
}

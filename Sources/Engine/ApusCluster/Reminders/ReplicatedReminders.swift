package import ApusCore
import NIOCore

/// The pending reminders of the replicated entities of this node's shards (D15).
///
/// Reminders are part of the entities' states. This index finds the due ones without decoding the states again. It is
/// given all states of a shard that is gained, and each change.
///
/// A value. The caller guards it.
package struct ReplicatedReminders: Sendable {
    /// By shard and entity. Entities without a reminder are not included.
    private var shards: [ShardID: [EntityAddress: [Reminder]]] = [:]

    package init() {}

    /// Adds the states of a gained shard, or a part of them. Undecodable states are skipped.
    package mutating func opened(_ shard: ShardID, _ records: [ReplicaRecord]) {
        for record in records {
            guard let bytes = record.state?.readableBytesView, StoredEntity.hasReminders(bytes) else { continue }
            let address = EntityAddress(kind: record.key.kind, key: record.key.key, shard: shard)
            guard let stored = try? StoredEntity(reading: Array(bytes), of: address) else { continue }
            changed(address, stored.reminders)
        }
    }

    /// The shard was lost, or is about to be opened.
    package mutating func closed(_ shard: ShardID) { shards[shard] = nil }

    /// Replaces an entity's reminders.
    package mutating func changed(_ address: EntityAddress, _ reminders: [Reminder]) {
        guard !reminders.isEmpty else {
            // Most entities never have a reminder.
            guard !shards.isEmpty, shards[address.shard]?[address] != nil else { return }
            shards[address.shard]?[address] = nil
            return
        }
        shards[address.shard, default: [:]][address] = reminders
    }

    /// As ``ReminderSource/dueReminders(after:upTo:limit:)``. Scans all reminders.
    package func due(
        after cursor: ReminderStateMachine.Cursor?, upTo: Int64, limit: Int
    ) -> (reminders: [Reminder], isLast: Bool) {
        var due: [Reminder] = []
        for reminders in shards.values.lazy.flatMap(\.values) {
            for reminder in reminders where reminder.due <= upTo {
                if let cursor, ReminderStateMachine.Cursor(reminder) <= cursor { continue }
                due.append(reminder)
            }
        }
        due.sort { ReminderStateMachine.Cursor($0) < ReminderStateMachine.Cursor($1) }
        return (Array(due.prefix(limit)), due.count <= limit)
    }
}

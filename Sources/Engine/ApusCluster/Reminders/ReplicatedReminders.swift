package import ApusCore
import NIOCore

/// What the replicated entities of this node's shards are to be reminded of (D15).
///
/// Their reminders are part of their states: this finds those that are due without reading the states again. It is
/// told of all states of a shard that comes, and of each change.
///
/// A value; the caller guards it.
package struct ReplicatedReminders: Sendable {
    /// By shard and entity; entities without one are not in it.
    private var shards: [ShardID: [EntityAddress: [Reminder]]] = [:]

    package init() {}

    /// States of a shard that came, or a part of them. Those that cannot be read are passed over.
    package mutating func opened(_ shard: ShardID, _ records: [ReplicaRecord]) {
        for record in records {
            guard let bytes = record.state?.readableBytesView, StoredEntity.hasReminders(bytes) else { continue }
            let address = EntityAddress(kind: record.key.kind, key: record.key.key, shard: shard)
            guard let stored = try? StoredEntity(reading: Array(bytes), of: address) else { continue }
            changed(address, stored.reminders)
        }
    }

    /// The shard left, or is about to be opened.
    package mutating func closed(_ shard: ShardID) { shards[shard] = nil }

    /// An entity has these reminders from now on.
    package mutating func changed(_ address: EntityAddress, _ reminders: [Reminder]) {
        guard !reminders.isEmpty else {
            // Most entities never have one.
            guard !shards.isEmpty, shards[address.shard]?[address] != nil else { return }
            shards[address.shard]?[address] = nil
            return
        }
        shards[address.shard, default: [:]][address] = reminders
    }

    /// As ``ReminderSource/dueReminders(after:upTo:limit:)``; looks at all reminders.
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

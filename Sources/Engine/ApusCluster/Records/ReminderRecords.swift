package import ApusCore
package import ApusStorage
import CoreMetrics
import SwiftProtobuf

/// The reminders as durable records (D15, D16). ``ReminderStateMachine`` holds the ones that are due soon.
///
/// There is one record for each name of an entity. The owner of the entity's shard sets, replaces and removes it, in
/// the step that changes the entity. The step checks the shard's claim (``ShardClaims``), so a removed record needs no
/// tombstone.
///
/// Isolation: any task.
package struct ReminderRecords: Sendable {
    /// A stored reminder.
    package struct Held: Sendable, Equatable {
        package var reminder: Reminder
        /// The version of its record, for conditions.
        package var version: UInt64
        /// The epoch under which it was set.
        package var epoch: Epoch

        package init(reminder: Reminder, version: UInt64, epoch: Epoch) {
            (self.reminder, self.version, self.epoch) = (reminder, version, epoch)
        }
    }

    /// Some reminders in the order of their due times.
    package struct Page: Sendable, Equatable {
        package var reminders: [Held]
        /// True if there are no more up to the requested time.
        package var isLast: Bool

        package init(reminders: [Held], isLast: Bool) { (self.reminders, self.isLast) = (reminders, isLast) }
    }

    package typealias Cursor = ReminderStateMachine.Cursor

    /// Indexed by time over all shards, and by time within a shard.
    static let collection = RecordCollection<StoredReminder>(
        "reminders", layout: 1,
        key: { key(shard: $0.shard, kind: $0.kind, key: $0.key, name: $0.name) },
        indexes: [
            RecordIndex("due") { [place($0)] },
            RecordIndex("shard") { [OrderedKey(stored: shardPrefix($0.shard).bytes + place($0).bytes)] },
        ])

    private let store: any RecordStore
    /// Records that were skipped because they are not readable reminders: damaged, or from a later release.
    private let unreadable = Counter(label: "apus_reminders_unreadable_total")

    package init(_ store: any RecordStore) { self.store = store }

    // MARK: Writing

    /// Sets a reminder. It replaces the one of its name.
    ///
    /// - Throws: 10002 if its name does not have 1 to 63 bytes.
    package static func set(
        _ reminder: Reminder, fence: RecordFence, if condition: RecordCondition = .any
    ) throws(ApusError) -> RecordWrite {
        guard (1...Reminder.nameByteCountMax).contains(reminder.name.utf8.count) else {
            throw ApusError(.frameTooLarge, "a reminder's name has 1 to 63 bytes, not \(reminder.name.utf8.count)")
        }
        return try collection.put(message(reminder), fence: fence, if: condition)
    }

    /// Removes the reminder of this name, after its cancellation or delivery.
    package static func remove(
        _ entity: EntityAddress, name: String, fence: RecordFence, if condition: RecordCondition = .any
    ) -> RecordWrite {
        collection.erase(key(of: entity, name: name), fence: fence, if: condition)
    }

    // MARK: Reading

    /// The entity's reminder of this name; nil if there is none.
    package func reminder(of entity: EntityAddress, name: String) async throws(ApusError) -> Held? {
        guard let stored = try await store.records(Self.collection.name, [Self.key(of: entity, name: name)])[0]
        else { return nil }
        return held(stored)
    }

    /// Reminders with times after the cursor's, up to `upTo`, in the order of ``ReminderStateMachine/Cursor``.
    ///
    /// - Parameters:
    ///   - shard: Only reminders of this shard; nil for all shards.
    ///   - cursor: The end of the last page; nil starts at the first reminder.
    ///   - limit: The most reminders in one page, up to ``RecordLimits/pageCountMax``.
    package func page(
        of shard: ShardID? = nil, after cursor: Cursor?, upTo: Int64, limit: Int = RecordLimits.pageCountMax
    ) async throws(ApusError) -> Page {
        let page = try await store.page(Self.scan(of: shard, after: cursor, upTo: upTo, limit: limit))
        return Page(reminders: page.records.compactMap { held($0) }, isLast: page.next == nil)
    }

    /// The scan that ``page(of:after:upTo:limit:)`` reads.
    package static func scan(
        of shard: ShardID? = nil, after cursor: Cursor?, upTo: Int64, limit: Int = RecordLimits.pageCountMax
    ) -> RecordScan {
        let prefix = shard.map { shardPrefix(UInt32($0.rawValue)).bytes } ?? []
        let from = cursor.map { OrderedKey(stored: prefix + place(due: $0.due, id: $0.id).end.bytes) }
        return RecordScan(
            collection.name, index: shard == nil ? "due" : "shard", from: from ?? OrderedKey(stored: prefix),
            below: OrderedKey(stored: prefix + OrderedKey(.signed(upTo)).end.bytes), limit: limit)
    }

    /// The reminder in a record; nil if the record is not one.
    package static func reminder(_ stored: StoredRecord) -> Reminder? {
        (try? collection.record(stored).body).flatMap { Reminder($0) }
    }

    private func held(_ stored: StoredRecord) -> Held? {
        guard let reminder = Self.reminder(stored) else {
            unreadable.increment()
            return nil
        }
        return Held(reminder: reminder, version: stored.version, epoch: stored.fence.epoch)
    }

    // MARK: Keys

    private static func key(of entity: EntityAddress, name: String) -> OrderedKey {
        key(shard: UInt32(entity.shard.rawValue), kind: UInt32(entity.kind.rawValue), key: entity.key, name: name)
    }

    private static func key(shard: UInt32, kind: UInt32, key: String, name: String) -> OrderedKey {
        OrderedKey(.unsigned(UInt64(shard)), .unsigned(UInt64(kind)), .text(key), .text(name))
    }

    private static func shardPrefix(_ shard: UInt32) -> OrderedKey { OrderedKey(.unsigned(UInt64(shard))) }

    private static func place(_ message: StoredReminder) -> OrderedKey {
        place(due: message.dueMs, id: RequestID(high: message.idHigh, low: message.idLow))
    }

    private static func place(due: Int64, id: RequestID) -> OrderedKey {
        OrderedKey(.signed(due), .unsigned(id.high), .unsigned(id.low))
    }

    private static func message(_ reminder: Reminder) -> StoredReminder {
        .with {
            $0.shard = UInt32(reminder.entity.shard.rawValue)
            $0.kind = UInt32(reminder.entity.kind.rawValue)
            $0.key = reminder.entity.key
            $0.name = reminder.name
            $0.dueMs = reminder.due
            ($0.idHigh, $0.idLow) = (reminder.id.high, reminder.id.low)
            $0.payload = .init(reminder.payload)
        }
    }
}

extension Reminder {
    /// Nil if the record does not name a valid entity.
    fileprivate init?(_ message: StoredReminder) {
        guard let entity = EntityAddress(kind: message.kind, key: message.key, shard: message.shard),
            (1...Reminder.nameByteCountMax).contains(message.name.utf8.count)
        else { return nil }
        self.init(
            entity: entity, name: message.name, id: RequestID(high: message.idHigh, low: message.idLow),
            due: message.dueMs, payload: [UInt8](message.payload))
    }
}

extension ReminderRecords: ReminderSource {
    package func dueReminders(
        after cursor: Cursor?, upTo: Int64, limit: Int
    ) async throws(ApusError) -> (reminders: [Reminder], isLast: Bool) {
        let page = try await page(of: nil, after: cursor, upTo: upTo, limit: limit)
        return (page.reminders.map(\.reminder), page.isLast)
    }
}

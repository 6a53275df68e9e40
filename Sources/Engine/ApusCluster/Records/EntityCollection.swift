package import ApusCore
package import ApusStorage
import Foundation
package import SwiftProtobuf

/// The storage of recorded entities of one kind (D15, D16).
///
/// A service declares its own message. The storage does not depend on it:
/// ```swift
/// static let rooms = EntityCollection<RoomState>(
///     "rooms", kind: .room, layout: 1, indexes: [RecordIndex("host") { [OrderedKey(.text($0.host))] }])
/// ```
/// A record contains the entity's content and its stored answers, so a change and its answer are never separated. It is
/// written as one step with the entity's reminders. Every step checks the claim of the entity's shard
/// (``ShardClaims``), so an owner that was superseded can write nothing, whether the record exists or not.
///
/// Isolation: any task.
package struct EntityCollection<Content: Message & Sendable>: RecordCollectionDeclaration {
    /// An entity's stored state.
    package struct Stored: Sendable {
        package var content: Content
        package var memory: RequestMemory
        /// The entity's pending reminders, the same as its records in ``ReminderRecords``.
        package var reminders: [Reminder]
        /// The version to pass with the next step.
        package var version: UInt64
    }

    package let name: String
    package let layout: UInt32
    package let kind: EntityKind
    private let indexes: [RecordIndex<Content>]

    /// - Parameters:
    ///   - name: As in ``RecordCollection``.
    ///   - layout: Grows with each change of `indexes`; at least 1.
    package init(_ name: String, kind: EntityKind, layout: UInt32, indexes: [RecordIndex<Content>] = []) {
        precondition(layout > 0, "the layout of \(name) is at least 1")
        (self.name, self.kind, self.layout, self.indexes) = (name, kind, layout, indexes)
    }

    // MARK: Reading

    /// The entity's state; nil if it has none. Claim its shard first (``ShardClaims``).
    ///
    /// - Throws: 10001 if the record is not of this collection, otherwise as ``RecordStore``.
    package func load(
        _ address: EntityAddress, from store: any RecordStore, memory: RequestMemory.Configuration = .init()
    ) async throws(ApusError) -> Stored? {
        guard let record = try await store.records(name, [Self.key(of: address)])[0] else { return nil }
        return try stored(record, memory: memory)
    }

    /// Decodes an entity's state from its record.
    ///
    /// - Throws: 10001 if the record is not of this collection.
    package func stored(
        _ record: StoredRecord, memory: RequestMemory.Configuration = .init()
    ) throws(ApusError) -> Stored {
        let (content, stored) = try decode(record, memory)
        return Stored(
            content: content, memory: stored.memory, reminders: stored.reminders, version: record.version)
    }

    // MARK: Writing

    /// The step that replaces an entity's state.
    ///
    /// - Parameters:
    ///   - version: The version that it replaces; 0 if there was none.
    ///   - held: The entity's pending reminders from now on.
    ///   - others: What is written in the same step: changes to reminders (``ReminderRecords``), and what is added to
    ///     the outbox (``OutboxRecords``).
    /// - Throws: 10018 if the content cannot be encoded.
    package func step(
        _ address: EntityAddress, _ content: Content, _ memory: RequestMemory, after version: UInt64,
        fence: RecordFence, held: [Reminder] = [], others: [RecordWrite] = []
    ) throws(ApusError) -> RecordStep {
        let body: [UInt8]
        do {
            let state = try StoredEntity(content: content.serializedBytes(), memory: memory, reminders: held).encoded()
            body = try StoredEntityRecord.with {
                $0.shard = UInt32(address.shard.rawValue)
                $0.key = address.key
                $0.state = Data(state)
            }.serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "the state of \(address) cannot be encoded: \(error)")
        }
        let put = RecordWrite(
            id(of: address), .put(body: body, layout: layout, entries: entries(of: content)), fence: fence,
            condition: Self.condition(version))
        return RecordStep([ShardClaims.check(address.shard, fence: fence), put] + others)
    }

    /// The step that removes an entity's state.
    package func removal(
        _ address: EntityAddress, after version: UInt64, fence: RecordFence, reminders: [RecordWrite] = []
    ) -> RecordStep {
        let erase = RecordWrite(id(of: address), .erase, fence: fence, condition: Self.condition(version))
        return RecordStep([ShardClaims.check(address.shard, fence: fence), erase] + reminders)
    }

    /// Replaces an entity's state, and returns its version. The state is durable when this returns.
    ///
    /// - Throws: 10013 if another owner has claimed the shard, 10030 if the state is not of that version; otherwise as
    ///   ``RecordStore``.
    @discardableResult
    package func save(
        _ address: EntityAddress, _ content: Content, _ memory: RequestMemory, after version: UInt64,
        fence: RecordFence, reminders: [RecordWrite] = [], in store: any RecordStore
    ) async throws(ApusError) -> UInt64 {
        let step = try step(address, content, memory, after: version, fence: fence, others: reminders)
        return try await store.commit(step)[1]
    }

    // MARK: Declaration

    package var indexNames: [String] { indexes.map(\.name) }

    package func entries(_ stored: StoredRecord) throws(ApusError) -> [RecordEntry] {
        entries(of: try decode(stored, .init()).content)
    }

    package func json(_ stored: StoredRecord) throws(ApusError) -> String {
        let (content, entity) = try decode(stored, .init())
        do {
            var record = try StoredEntityRecord(serializedBytes: stored.body)
            record.state = Data()
            let head = try record.jsonString().dropLast()
            return try "\(head),\"content\":\(content.jsonString()),\"answeredCount\":\(entity.memory.count)}"
        } catch {
            throw ApusError(.internalFailure, "a record of \(name) cannot be converted to JSON: \(error)")
        }
    }

    private func id(of address: EntityAddress) -> RecordID {
        precondition(address.kind == kind, "\(name) has entities of the kind \(kind), not \(address)")
        return RecordID(name, Self.key(of: address))
    }

    /// The key of an entity's record.
    package static func key(of address: EntityAddress) -> OrderedKey {
        OrderedKey(.unsigned(UInt64(address.shard.rawValue)), .text(address.key))
    }

    private static func condition(_ version: UInt64) -> RecordCondition { version == 0 ? .absent : .version(version) }

    private func entries(of content: Content) -> [RecordEntry] {
        indexes.flatMap { index in index.entries(content).map { RecordEntry(index: index.name, value: $0) } }
    }

    private func decode(
        _ stored: StoredRecord, _ configuration: RequestMemory.Configuration
    ) throws(ApusError) -> (content: Content, entity: StoredEntity) {
        guard let record = try? StoredEntityRecord(serializedBytes: stored.body),
            let address = EntityAddress(kind: UInt32(kind.rawValue), key: record.key, shard: record.shard)
        else { throw ApusError(.malformed, "an entity's record cannot be read") }
        let entity = try StoredEntity(reading: [UInt8](record.state), of: address, configuration: configuration)
        guard let content = try? Content(serializedBytes: entity.content) else {
            throw ApusError(.malformed, "an entity's content cannot be read")
        }
        return (content, entity)
    }
}

extension EntityCollection where Content: EntityContent {
    /// The step that replaces the version that the snapshot names, makes the entity's reminder records match its
    /// pending reminders, and adds to its outbox.
    ///
    /// - Parameter earlier: the reminders of that version.
    /// - Throws: 10018 if the content cannot be encoded.
    package func step(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, fence: RecordFence, earlier: [Reminder]
    ) throws(ApusError) -> RecordStep {
        var others = try Self.writes(address, snapshot.reminders, earlier, fence)
        for entry in snapshot.entries { others.append(try OutboxRecords.put(entry, fence: fence)) }
        return try step(
            address, snapshot.content, snapshot.memory, after: snapshot.version, fence: fence,
            held: snapshot.reminders, others: others)
    }

    /// The writes that make the entity's reminder records match its pending reminders.
    private static func writes(
        _ address: EntityAddress, _ now: [Reminder], _ earlier: [Reminder], _ fence: RecordFence
    ) throws(ApusError) -> [RecordWrite] {
        guard now != earlier else { return [] }
        var writes: [RecordWrite] = []
        for reminder in earlier where !now.contains(where: { $0.name == reminder.name }) {
            writes.append(ReminderRecords.remove(address, name: reminder.name, fence: fence))
        }
        for reminder in now where !earlier.contains(reminder) {
            writes.append(try ReminderRecords.set(reminder, fence: fence))
        }
        return writes
    }
}

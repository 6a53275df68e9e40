package import ApusCore
package import ApusStorage
import CoreMetrics
import SwiftProtobuf

/// The entries of outboxes as records (D15, D16). ``OutboxStateMachine`` delivers those of this node's shards.
///
/// The owner of an entity's shard stores an entry in the step that changes the entity, which checks the shard's claim
/// (``ShardClaims``). The owner removes it after its delivery. Entries use the reserve of a store that is full, since
/// they are few and a change that makes room has one too. The key is the shard, the kind, the entity's key and the
/// number, so the records are in the order of delivery.
///
/// Isolation: any task.
package struct OutboxRecords: Sendable {
    static let collection = RecordCollection<StoredOutboxEntry>(
        "outbox", layout: 1, key: { key(shard: $0.shard, kind: $0.kind, key: $0.key, number: $0.number) },
        usesReserve: true)

    private let store: any RecordStore
    /// Records that were skipped because they are not readable entries: damaged, or from a later release.
    private let unreadable = Counter(label: "apus_outbox_unreadable_total")

    package init(_ store: any RecordStore) { self.store = store }

    /// Stores an entry.
    ///
    /// - Throws: 10018 if it cannot be encoded.
    package static func put(_ entry: OutboxEntry, fence: RecordFence) throws(ApusError) -> RecordWrite {
        try collection.put(
            .with {
                ($0.shard, $0.kind) = (UInt32(entry.entity.shard.rawValue), UInt32(entry.entity.kind.rawValue))
                ($0.key, $0.number, $0.payload) = (entry.entity.key, entry.number, .init(entry.payload))
            }, fence: fence)
    }

    /// The step that removes delivered entries of a shard. It fails with 10013 if a later owner has claimed the shard.
    fileprivate static func removal(_ ids: [OutboxEntry.ID], of shard: ShardID, fence: RecordFence) -> RecordStep {
        RecordStep(
            [ShardClaims.check(shard, fence: fence)] + ids.map { collection.erase(key(of: $0), fence: fence) })
    }

    /// Entries of all shards in the order of the records, after this one; nil starts at the first.
    ///
    /// - Returns: at most `limit` entries, and the last of them; nil if there are no more.
    /// - Throws: 10021 if they cannot be read.
    package func page(
        after cursor: OutboxEntry.ID?, limit: Int
    ) async throws(ApusError) -> (entries: [OutboxEntry], next: OutboxEntry.ID?) {
        var scan = Self.scan(after: cursor, limit: limit)
        while true {
            let page = try await store.page(scan)
            let entries = page.records.compactMap { Self.entry($0) }
            unreadable.increment(by: page.records.count - entries.count)
            guard entries.isEmpty, let token = page.next else {
                return (entries, page.next == nil ? nil : entries.last?.id)
            }
            // Nothing of the page can be read.
            scan.token = token
        }
    }

    /// The scan that ``page(after:limit:)`` reads.
    package static func scan(after cursor: OutboxEntry.ID?, limit: Int) -> RecordScan {
        RecordScan(collection.name, from: cursor.map { key(of: $0).end }, limit: limit)
    }

    /// The entry in a record; nil if the record is not one.
    package static func entry(_ stored: StoredRecord) -> OutboxEntry? {
        (try? collection.record(stored).body).flatMap { OutboxEntry($0) }
    }

    private static func key(of id: OutboxEntry.ID) -> OrderedKey {
        key(
            shard: UInt32(id.entity.shard.rawValue), kind: UInt32(id.entity.kind.rawValue), key: id.entity.key,
            number: id.number)
    }

    private static func key(shard: UInt32, kind: UInt32, key: String, number: UInt64) -> OrderedKey {
        OrderedKey(.unsigned(UInt64(shard)), .unsigned(UInt64(kind)), .text(key), .unsigned(number))
    }
}

/// The removal of delivered entries: a step for each shard, since a step fails as a whole where the shard has another
/// owner.
package struct OutboxRemoval: Sendable {
    package let steps: [RecordStep]
    /// The entries of each step.
    private let groups: [[OutboxEntry.ID]]

    /// - Parameter fence: of this node's writes to a shard.
    package init(_ ids: [OutboxEntry.ID], fence: (ShardID) -> RecordFence) {
        let shards = Dictionary(grouping: ids) { $0.entity.shard }.sorted { $0.key < $1.key }
        steps = shards.map { OutboxRecords.removal($0.value, of: $0.key, fence: fence($0.key)) }
        groups = shards.map(\.value)
    }

    /// The inputs for the outcomes of the steps. The entries of a shard that has another owner count as removed.
    package func inputs(_ outcomes: [Result<[UInt64], ApusError>]) -> [OutboxStateMachine.Input] {
        var (removed, failed): ([OutboxEntry.ID], [OutboxEntry.ID]) = ([], [])
        for (group, outcome) in zip(groups, outcomes) {
            if case .failure(let error) = outcome, error.code != .staleEpoch {
                failed += group
            } else {
                removed += group
            }
        }
        return (failed.isEmpty ? [] : [.removalFailed(failed)]) + (removed.isEmpty ? [] : [.removed(removed)])
    }
}

extension OutboxEntry {
    /// Nil if the record does not name a valid entity.
    fileprivate init?(_ message: StoredOutboxEntry) {
        guard let entity = EntityAddress(kind: message.kind, key: message.key, shard: message.shard) else { return nil }
        self.init(entity: entity, number: message.number, payload: [UInt8](message.payload))
    }
}

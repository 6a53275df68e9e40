package import ApusCore
package import ApusStorage

/// The outbox of a kind whose entities write their records themselves, instead of being recorded entities (D15).
///
/// An entity that changes first calls ``claim(_:_:)``. It then makes one step of its change and of ``writes(_:_:)``,
/// and reports the outcome: ``stored(_:)``, or ``unconfirmed(_:)`` if the step may still be made. It makes one step at
/// a time, and each one requires the version that the step before has left, as ``EntityCell`` does for recorded
/// entities.
///
/// Isolation: any task.
package struct OwnedOutbox: Sendable {
    private let shards: RecordedShards
    private let service: OutboxService

    package init(_ shards: RecordedShards, _ service: OutboxService) { (self.shards, self.service) = (shards, service) }

    /// Returns once this node may add entries of the shard's entities under this epoch.
    ///
    /// - Throws: 10009 if a later owner has claimed the shard; 10007 and 10021 if the store cannot take the claim now.
    package func claim(_ shard: ShardID, _ epoch: Epoch) async throws(ApusError) {
        try await shards.claim(shard, epoch)
    }

    /// True if a change of the entity must be refused, because too many entries wait. Counts the refusal.
    package func refuses(_ entity: EntityAddress) -> Bool { service.refuses(entity, unstored: 0) }

    /// What adds an entry, for the step that changes its entity. The step fails with 10013 if a later owner has claimed
    /// the shard.
    ///
    /// - Throws: 10002 for a payload over ``OutboxEntry/payloadByteCountMax``, 10018 if it cannot be encoded.
    package func writes(_ entry: OutboxEntry, _ epoch: Epoch) throws(ApusError) -> [RecordWrite] {
        guard entry.payload.count <= OutboxEntry.payloadByteCountMax else { throw ApusError(.frameTooLarge) }
        let fence = shards.fence(epoch)
        return [ShardClaims.check(entry.entity.shard, fence: fence), try OutboxRecords.put(entry, fence: fence)]
    }

    /// The step of this entry is durable.
    package func stored(_ entry: OutboxEntry) {
        // Of an earlier step it is known by now whether it was made: it required an earlier version.
        service.loaded(entry.entity)
        service.stored([entry])
    }

    /// The outcome of the entity's step is unknown.
    package func unconfirmed(_ entity: EntityAddress) { service.unconfirmed(entity) }
}

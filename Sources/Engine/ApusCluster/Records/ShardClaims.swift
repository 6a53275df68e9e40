package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// The owner of each shard, as records (D15, D16).
///
/// A fence refuses writes of earlier owners to a record that exists. It cannot protect a record that does not exist
/// yet, or no longer exists. Each owner therefore claims its shards, and each step that concerns a shard checks the
/// claim. An owner claims first and reads afterwards. No other node can change what it reads then.
package enum ShardClaims {
    static let collection = RecordCollection<StoredShardClaim>(
        "shard-claims", layout: 1, key: { OrderedKey(.unsigned(UInt64($0.shard))) }, usesReserve: true)

    /// Claims shards under their epochs and returns the errors. A repeated claim changes nothing.
    ///
    /// - Returns: The errors by shard: 10013 if a later owner has claimed it, 10007 and 10021 if the claim should be
    ///   tried again. Shards without an error are claimed.
    package static func claim(
        _ shards: [ShardID: Epoch], writer: String, in store: any RecordStore
    ) async -> [ShardID: ApusError] {
        var refused: [ShardID: ApusError] = [:]
        var rest = shards.sorted { $0.key < $1.key }[...]
        while !rest.isEmpty {
            var claimed: [ShardID] = []
            var steps: [RecordStep] = []
            for (shard, epoch) in rest.prefix(Self.stepCountMax) {
                do throws(ApusError) {
                    steps.append(try step(shard, fence: RecordFence(epoch: epoch, writer: writer)))
                    claimed.append(shard)
                } catch {
                    refused[shard] = error
                }
            }
            rest = rest.dropFirst(Self.stepCountMax)
            for (shard, outcome) in zip(claimed, await store.commit(steps)) {
                if case .failure(let error) = outcome { refused[shard] = error }
            }
        }
        return refused
    }

    /// The step that claims a shard. It fails with 10013 if a later owner has claimed it.
    package static func step(_ shard: ShardID, fence: RecordFence) throws(ApusError) -> RecordStep {
        RecordStep(try collection.put(.with { $0.shard = UInt32(shard.rawValue) }, fence: fence))
    }

    /// Makes the enclosing step conditional: it fails with 10013 if a later owner has claimed the shard.
    package static func check(_ shard: ShardID, fence: RecordFence) -> RecordWrite {
        collection.check(OrderedKey(.unsigned(UInt64(shard.rawValue))), fence: fence)
    }

    /// The most claims in one call of the store.
    private static let stepCountMax = 512
}

/// The collections of the cluster itself. Services declare their own (``EntityCollection``).
package enum ClusterRecords {
    package static let catalogue = RecordCatalogue([
        ShardClaims.collection, ReminderRecords.collection, OutboxRecords.collection,
    ])
}

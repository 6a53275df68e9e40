package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// Which owner each shard has, among the records (D15, D16).
///
/// A fence refuses older owners of a record that is there. Of one that is not there yet, or is no more, nothing says
/// who may make it: so each owner claims its shards, and each step that concerns a shard checks the claim. An owner
/// claims first and reads then: what it reads nobody else can change any more.
package enum ShardClaims {
    static let collection = RecordCollection<StoredShardClaim>(
        "shard-claims", layout: 1, key: { OrderedKey(.unsigned(UInt64($0.shard))) })

    /// Claims shards under their epochs, and answers what became of each; the same claim once more changes nothing.
    ///
    /// - Returns: By shard the error: 10013 if a later owner has claimed it, 10007 and 10021 if it is to be tried
    ///   again. Shards without one are claimed.
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

    /// Makes the step that it is in only where no later owner has claimed the shard (10013).
    package static func check(_ shard: ShardID, fence: RecordFence) -> RecordWrite {
        collection.check(OrderedKey(.unsigned(UInt64(shard.rawValue))), fence: fence)
    }

    /// Claims of one call of the store.
    private static let stepCountMax = 512
}

/// What the cluster itself keeps; the kinds of services declare their own (``EntityCollection``).
package enum ClusterRecords {
    package static let catalogue = RecordCatalogue([ShardClaims.collection, ReminderRecords.collection])
}

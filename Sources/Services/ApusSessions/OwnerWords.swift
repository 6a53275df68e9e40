package import ApusCore

/// Whether what an owner says of an identity still counts (D4).
///
/// A node that lost a shard may not know it yet, and what it said may be late. So pushes and kicks carry the epoch of
/// the shard at their owner, and a node that has seen a later one, in the map or from the next owner itself, drops
/// them.
///
/// Pure. Bounded by the number of shards.
package struct OwnerWords: Sendable {
    private var newest: [ShardID: Epoch] = [:]

    package init() {}

    /// True where no later epoch of the shard is known; the word's own is remembered then.
    ///
    /// - Parameters:
    ///   - epoch: of the word; 0 of nodes that do not say, which are believed as before.
    ///   - known: the shard's epoch in this node's map.
    package mutating func takes(_ epoch: Epoch, of shard: ShardID, known: Epoch) -> Bool {
        guard epoch != 0 else { return true }
        guard epoch >= max(newest[shard] ?? 0, known) else { return false }
        // What the map says already needs no memory.
        newest[shard] = epoch > known ? epoch : nil
        return true
    }
}

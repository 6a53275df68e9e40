package import ApusCore

/// Decides whether an owner's message about an identity is current (D4).
/// A node that lost a shard may not know that yet, and its messages may be late. So pushes and kicks carry the epoch of
/// the shard at their sender. A node that has seen a later epoch, in the map or in a message of the next owner, drops
/// them.
/// Pure. Bounded by the number of shards.
package struct OwnerMessages: Sendable {
    private var newest: [ShardID: Epoch] = [:]

    package init() {}

    /// Returns true if no later epoch of the shard is known, and remembers the message's epoch.
    /// - Parameters:
    ///   - epoch: that of the message; 0 from nodes that do not send it, whose messages are always accepted.
    ///   - known: the shard's epoch in this node's map.
    package mutating func takes(_ epoch: Epoch, of shard: ShardID, known: Epoch) -> Bool {
        guard epoch != 0 else { return true }
        guard epoch >= max(newest[shard] ?? 0, known) else { return false }
        // An epoch that the map already has need not be remembered.
        newest[shard] = epoch > known ? epoch : nil
        return true
    }
}

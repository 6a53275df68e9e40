package import ApusCore

/// The shards that this incarnation of a node owns in a map, with their epochs; none if it is not alive.
///
/// An array by shard, because every node builds and compares these at every map change, a thousand shards at a time.
package struct OwnedShards: Sendable, Equatable {
    private var epochs: [Epoch?]

    /// No shard.
    package init() { epochs = Array(repeating: nil, count: ShardID.count) }

    package init(of node: NodeID, in map: ClusterMap) {
        self.init()
        guard let index = map.members.firstIndex(where: { $0.id == node && $0.state.isAlive }) else { return }
        let slot = MemberSlot(rawValue: UInt16(index))
        for (number, shard) in map.shards.enumerated() where shard.owner == slot { epochs[number] = shard.epoch }
    }

    /// The epoch under which the shard is owned; nil if it is not.
    package subscript(shard: ShardID) -> Epoch? {
        get { epochs[Int(shard.rawValue)] }
        set { epochs[Int(shard.rawValue)] = newValue }
    }

    /// The shards whose ownership or epoch differs, in order, with the epochs in both.
    package func differences(from older: OwnedShards) -> [(shard: ShardID, old: Epoch?, new: Epoch?)] {
        epochs.indices.compactMap { index in
            guard epochs[index] != older.epochs[index] else { return nil }
            return (ShardID(UInt16(index)), older.epochs[index], epochs[index])
        }
    }

    /// The shards that were lost and gained since, in order.
    package func turnover(since older: OwnedShards) -> (lost: [ShardID], gained: [ShardID]) {
        let differences = differences(from: older)
        return (
            differences.filter { $0.new == nil }.map(\.shard), differences.filter { $0.old == nil }.map(\.shard)
        )
    }
}

package import ApusCore

extension ClusterMap {
    /// The shards whose epoch, owner or standbys differ in a newer map, in order. A node that died, or returned as
    /// another incarnation, also counts as different.
    package func shards(changedIn newer: ClusterMap) -> [ShardID] {
        var isOther = Array(repeating: true, count: max(members.count, newer.members.count))
        for (index, (old, new)) in zip(members, newer.members).enumerated() {
            isOther[index] = old.id != new.id || old.state.isAlive != new.state.isAlive
        }
        func concerns(_ slot: MemberSlot) -> Bool {
            let index = Int(slot.rawValue)
            return index < isOther.count && isOther[index]
        }
        return newer.shards.indices.compactMap { index in
            let shard = newer.shards[index]
            guard
                shard != shards[index] || concerns(shard.owner) || concerns(shard.standby)
                    || concerns(shard.secondStandby)
            else { return nil }
            return ShardID(UInt16(index))
        }
    }
}

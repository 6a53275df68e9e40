public import ApusCore

/// The members of the cluster and the owner of each shard: the one value of the ownership store (D4, D5).
///
/// It changes only by compare-and-swap on ``revision``, so all nodes see the same sequence of maps, some of them later
/// than others. Actions that depend on a map carry the shard's epoch, so a node that has seen a later map can refuse
/// them.
public struct ClusterMap: Sendable, Equatable {
    public var cluster: ClusterID
    /// The store's revision of this value; 0 before the first write.
    public var revision: UInt64
    /// A member's index is its slot. A slot is never assigned to another name.
    public var members: [Member]
    /// 4,096 entries, by shard.
    public var shards: [ShardAssignment]
    /// What changed the map, and who decided it.
    public var history = MapHistory()

    /// The map of a cluster without members.
    public init(cluster: ClusterID) {
        self.cluster = cluster
        revision = 0
        members = []
        shards = Array(repeating: ShardAssignment(), count: ShardID.count)
    }

    public subscript(shard: ShardID) -> ShardAssignment {
        get { shards[Int(shard.rawValue)] }
        set { shards[Int(shard.rawValue)] = newValue }
    }

    /// The member in a slot; nil for ``MemberSlot/none``.
    public func member(at slot: MemberSlot) -> Member? {
        Int(slot.rawValue) < members.count ? members[Int(slot.rawValue)] : nil
    }

    /// The slot of a name, whether the member is alive or not.
    public func slot(of name: NodeName) -> MemberSlot? {
        members.firstIndex { $0.id.name == name }.map { MemberSlot(rawValue: UInt16($0)) }
    }

    /// The member of that name, alive or not.
    public func member(named name: NodeName) -> Member? { members.first { $0.id.name == name } }

    /// The owner of a shard, if it has one.
    public func owner(of shard: ShardID) -> Member? { member(at: self[shard].owner) }

    /// The standby of a shard, if it has one.
    public func standby(of shard: ShardID) -> Member? { member(at: self[shard].standby) }

    /// The second standby of a shard, if it has one.
    public func secondStandby(of shard: ShardID) -> Member? { member(at: self[shard].secondStandby) }

    /// The first revision that the map after this one can have.
    package var nextRevision: UInt64 { revision < .max ? revision + 1 : .max }

    /// True if this map can follow the earlier one, or is the same map. The revision must not be lower, and the same
    /// revision must be the same map. No member may be missing or have an earlier incarnation, and no shard an earlier
    /// epoch.
    ///
    /// A node of an earlier version stores a map without ``ShardAssignment/standbyNamedIn``,
    /// ``ShardAssignment/ownerNamedIn``, ``ShardAssignment/secondStandby``, ``Member/isCordoned``,
    /// ``Member/watchRule``, ``Member/process`` and ``history``. It counts as the same map.
    package func isSuccessor(of earlier: ClusterMap) -> Bool {
        guard revision > earlier.revision else {
            let (new, old) = (withoutAdditions, earlier.withoutAdditions)
            return new == old || new == old.withoutNamings || new.withoutNamings == old
        }
        guard members.count >= earlier.members.count, shards.count == earlier.shards.count else { return false }
        return zip(members, earlier.members).allSatisfy { new, old in
            new.id.name == old.id.name && new.id.incarnation >= old.id.incarnation
        } && zip(shards, earlier.shards).allSatisfy { $0.epoch >= $1.epoch }
    }

    /// This map as a node of wire version 1 writes it.
    private var withoutAdditions: ClusterMap {
        var map = self
        map.history = MapHistory()
        for index in map.members.indices {
            (map.members[index].isCordoned, map.members[index].watchRule) = (false, nil)
            map.members[index].process = 0
        }
        for index in map.shards.indices { map.shards[index].loseSecondStandby() }
        return map
    }

    private var withoutNamings: ClusterMap {
        var map = self
        for index in map.shards.indices {
            (map.shards[index].standbyNamedIn, map.shards[index].ownerNamedIn) = (0, 0)
        }
        return map
    }

    /// True if exactly this incarnation is a member that is up or draining.
    public func isAlive(_ node: NodeID) -> Bool {
        members.contains { $0.id == node && $0.state.isAlive }
    }

    /// True if exactly this process of that incarnation is a member that is up or draining, as far as the map shows.
    package func isAlive(_ node: NodeID, process: UInt64) -> Bool {
        members.contains { $0.id == node && $0.state.isAlive && ($0.process == process || $0.process == 0) }
    }
}

extension ClusterMap {
    /// The most slots of a map. Names beyond it are refused.
    package static let memberCountMax = 1000

    /// The members that a cluster must have for shards to get a second standby. With three, the two that hold a shard
    /// are a majority, and the third takes no shard from them.
    package static let secondStandbyMemberCountMin = 4

    /// The plan for the members that are alive. A full mesh unless there are more members than their rule allows for
    /// one, and all of them have the same rule.
    package var watchPlan: WatchPlan {
        let alive = members.filter(\.state.isAlive)
        guard let rule = alive.first?.watchRule, alive.count > Int(rule.fullMeshMax),
            alive.allSatisfy({ $0.watchRule == rule })
        else { return .fullMesh }
        return WatchPlan(members: alive.map(\.id), watcherCount: Int(rule.watcherCount))
    }
}

extension ShardRole {
    /// The member that has the role.
    package func holder(of shard: ShardID, in map: ClusterMap) -> Member? { map.member(at: map[shard][self]) }
}

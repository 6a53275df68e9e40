import ApusCluster
import ApusCore

/// A moment, in milliseconds after the start of a test.
func at(_ milliseconds: Int) -> MonotonicTime { .zero + .seconds(100) + .milliseconds(milliseconds) }

func node(_ name: String, _ incarnation: UInt64 = 1) -> NodeID {
    NodeID(name: NodeName(unchecked: name), incarnation: incarnation)
}

func addresses(_ name: String) -> NodeAddresses {
    NodeAddresses(
        transport: HostPort(host: name, port: 7400), clients: HostPort(host: name, port: 7443),
        http: HostPort(host: name, port: 8080))
}

func join(_ name: String, _ incarnation: UInt64 = 1, weight: UInt32 = 100) -> OwnershipDecision {
    .join(node(name, incarnation), addresses: addresses(name), weight: weight)
}

/// The map after decisions, with revisions as a store would give them out.
func map(_ decisions: OwnershipDecision...) throws -> ClusterMap {
    var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
    for decision in decisions { map = try map.after(decision) }
    return map
}

extension ClusterMap {
    /// The next map, or this one where the decision changes nothing.
    func after(_ decision: OwnershipDecision) throws -> ClusterMap {
        guard var next = try applying(decision) else { return self }
        next.revision = revision + 1
        return next
    }

    func ownedCount(_ name: String) -> Int {
        shards.count { member(at: $0.owner)?.id.name.rawValue == name }
    }

    func stoodByCount(_ name: String) -> Int {
        shards.count { member(at: $0.standby)?.id.name.rawValue == name }
    }

    /// Moves everything to where it should be, without limits, as hand-overs do one after the other.
    func atRest() throws -> ClusterMap {
        var map = self
        let placement = ShardPlacement(of: map)
        for role in ShardRole.allCases {
            var moves: [ShardMove] = []
            for index in map.shards.indices {
                let shard = ShardID(UInt16(index))
                guard let owner = map.owner(of: shard), let target = map.member(at: placement[index][role]),
                    role.holder(of: shard, in: map)?.id != target.id
                else { continue }
                moves.append(ShardMove(shard: shard, epoch: map[shard].epoch, owner: owner.id, target: target.id))
            }
            map = try map.after(role == .secondStandby ? .setSecondStandby(moves) : .setStandby(moves))
            if role == .owner { map = try map.after(.handOver(moves)) }
        }
        return map
    }
}

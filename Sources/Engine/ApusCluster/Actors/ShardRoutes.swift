import ApusCore

/// The map in the form that calls need: an array look-up per shard, without the members' addresses (D5).
struct ShardRoutes: Sendable {
    enum Route: Sendable {
        case local(Epoch)
        /// With the owner's slot in the map.
        case remote(NodeName, slot: Int, Epoch)
        /// The shard has no owner, or its owner is not alive.
        case nobody(Epoch)
    }

    let revision: UInt64
    private let localSlot: UInt16?
    private let names: [NodeName?]
    private let slots: [UInt16]
    private let epochs: [Epoch]

    init(_ map: ClusterMap, local: NodeID) {
        revision = map.revision
        localSlot = map.members.firstIndex { $0.id == local && $0.state.isAlive }.map { UInt16($0) }
        names = map.members.map { $0.state.isAlive ? $0.id.name : nil }
        slots = map.shards.map(\.owner.rawValue)
        epochs = map.shards.map(\.epoch)
    }

    func epoch(of shard: ShardID) -> Epoch { epochs[Int(shard.rawValue)] }

    func isLocal(_ shard: ShardID) -> Bool { slots[Int(shard.rawValue)] == localSlot }

    func isLocal(_ shard: ShardID, epoch: Epoch) -> Bool {
        isLocal(shard) && epochs[Int(shard.rawValue)] == epoch
    }

    /// The shards that were gained or lost, or whose epoch differs from the older routes.
    func changes(since older: ShardRoutes) -> [ShardID] {
        var changed: [ShardID] = []
        for number in 0..<UInt16(ShardID.count) {
            let shard = ShardID(number)
            guard isLocal(shard) != older.isLocal(shard) || epoch(of: shard) != older.epoch(of: shard) else { continue }
            changed.append(shard)
        }
        return changed
    }

    /// The owner's slot in the map.
    func slot(of shard: ShardID) -> Int { Int(slots[Int(shard.rawValue)]) }

    func route(_ shard: ShardID) -> Route {
        let slot = slots[Int(shard.rawValue)]
        let epoch = epochs[Int(shard.rawValue)]
        if slot == localSlot { return .local(epoch) }
        guard Int(slot) < names.count, let name = names[Int(slot)] else { return .nobody(epoch) }
        return .remote(name, slot: Int(slot), epoch)
    }
}

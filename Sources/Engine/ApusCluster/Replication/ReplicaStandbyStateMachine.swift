package import ApusCore

/// A node as the target of other nodes' streams: its copies of shards, and their promotion (D18).
///
/// **Maps** are to be given in order; any may be left out. A shard's copy is dropped when the map gives its ownership
/// to a node under an epoch that this node has no part in. Under the same epoch the owner alone ends it: a map that
/// names another standby may be one that the owner passes over, or this node may be a candidate since. Nothing hangs
/// on which maps this node saw: what a copy is worth at its promotion, the promoting map says.
///
/// **Who may speak.** Only the owner that the newest map names, under the map's epoch. What comes under a later epoch
/// waits for the map that says whose it is, since a copy that had seen a later epoch would refuse the true owner.
///
/// **Bounds.** Copies count together, with those that are assembled beside an older one; so do the two of one shard. A
/// batch beyond a bound is not taken, and its owner tries again.
///
/// Pure.
package struct ReplicaStandbyStateMachine: Sendable {
    /// What this node takes a shard over with.
    package struct Promotion: Sendable {
        package var table: ReplicaTable
        /// No change that was acknowledged is missing.
        package var isComplete: Bool
    }

    package let local: NodeID
    private let configuration: ReplicaConfiguration
    private var map: ClusterMap
    private var copies: [ReplicaCopyStateMachine?]
    /// By shard: the newest epoch under which this node was promoted.
    private var promoted: [Epoch]
    /// Entities of all copies, and their bytes.
    package private(set) var entityCount = 0
    package private(set) var byteCount = 0
    /// Batches that were not taken, for lack of room.
    package private(set) var overloadedCount: UInt64 = 0
    /// Batches that were not taken, since their sender is not the owner by this node's map.
    package private(set) var strayCount: UInt64 = 0
    /// Of these, the newest that spoke of a later epoch than the map has.
    private var ahead: (shard: ShardID, epoch: Epoch)?

    package init(local: NodeID, map: ClusterMap, configuration: ReplicaConfiguration = ReplicaConfiguration()) {
        self.local = local
        self.map = map
        self.configuration = configuration
        copies = Array(repeating: nil, count: ShardID.count)
        promoted = Array(repeating: 0, count: ShardID.count)
    }

    /// Shards of which something is held.
    package var copyCount: Int { copies.count { $0?.isEmpty == false } }

    /// A copy that could be promoted is held.
    package func hasCopy(of shard: ShardID) -> Bool { copies[Int(shard.rawValue)]?.isComplete ?? false }

    /// Takes a message; what it is to be answered, nil for one that is not meant for this incarnation.
    package mutating func received(_ message: ReplicaMessage, from sender: NodeID) -> ReplicaAnswers? {
        guard message.targetIncarnation == local.incarnation else { return nil }
        for end in message.ends where owns(sender, end.shard, under: end.term.epoch) {
            update(end.shard) { $0.ended(end.term) }
        }
        let answers = message.batches.map { batch in
            ReplicaAnswer(batch, received(batch, from: sender, revision: message.revision))
        }
        return ReplicaAnswers(number: message.number, answers: answers)
    }

    private mutating func received(
        _ batch: ReplicaBatch, from sender: NodeID, revision: UInt64
    ) -> ReplicaAnswer.Verdict {
        let epoch = map[batch.shard].epoch
        if batch.term.epoch < epoch { return .older(ReplicaTerm(epoch: epoch, stream: 0)) }
        guard owns(sender, batch.shard, under: batch.term.epoch) else {
            strayCount += 1
            if batch.term.epoch > epoch { ahead = (batch.shard, batch.term.epoch) }
            return .overloaded
        }
        guard hasRoom(for: batch) else {
            overloadedCount += 1
            return .overloaded
        }
        var verdict = ReplicaAnswer.Verdict.restart
        update(batch.shard) { verdict = $0.received(batch, revision: revision) }
        return verdict
    }

    private func owns(_ node: NodeID, _ shard: ShardID, under epoch: Epoch) -> Bool {
        epoch == map[shard].epoch && map.owner(of: shard)?.id == node
    }

    private func hasRoom(for batch: ReplicaBatch) -> Bool {
        let index = Int(batch.shard.rawValue)
        func fits(_ growth: (count: Int, byteCount: Int)) -> Bool {
            let size = copies[index]?.size ?? (count: 0, byteCount: 0)
            // An older copy stays until the next is complete.
            return entityCount + growth.count <= configuration.entityCountMax
                && byteCount + growth.byteCount <= configuration.byteCountMax
                && size.count + growth.count <= 2 * configuration.shardEntityCountMax
                && size.byteCount + growth.byteCount <= 2 * configuration.shardByteCountMax
        }
        let most = batch.records.reduce(0) { $0 + ReplicaTable.byteCount(of: $1) }
        if fits((batch.records.count, most)) { return true }
        // Near a bound it is looked at closely: what changes an entity that is there takes no more room.
        return fits(copies[index]?.growth(with: batch) ?? ReplicaCopyStateMachine().growth(with: batch))
    }

    /// A shard of which somebody spoke under a later epoch than the map has, and that epoch, once.
    package mutating func takeAhead() -> (shard: ShardID, epoch: Epoch)? {
        defer { ahead = nil }
        return ahead
    }

    /// The shard was this node's under this epoch until the newest map, in which the node has a part under a later one.
    ///
    /// A node that is alive loses a shard by a hand-over of its own alone, which names it standby under the epoch
    /// after. It may see no map of that epoch, if the new owner died, and own the shard again.
    package mutating func keep(_ shard: ShardID, table: ReplicaTable, ownedUnder epoch: Epoch) {
        guard map[shard].epoch > epoch, map.owner(of: shard)?.id == local || map.standby(of: shard)?.id == local else {
            return
        }
        update(shard) { $0.keep(table, standbyUnder: epoch + 1) }
    }

    /// A newer map.
    package mutating func mapChanged(_ newer: ClusterMap) {
        guard newer.revision > map.revision else { return }
        let older = map
        map = newer
        for shard in older.shards(changedIn: newer) where copies[Int(shard.rawValue)] != nil {
            let isOwner = newer.owner(of: shard)?.id == local
            let isStandby = newer.standby(of: shard)?.id == local
            let epoch = newer[shard].epoch
            if !isOwner, !isStandby, (copies[Int(shard.rawValue)]?.newest.epoch ?? 0) < epoch {
                drop(shard)
            } else if isOwner {
                update(shard) { $0.ownerChanged(to: epoch) }
            }
        }
    }

    /// Hands over what there is of a shard that this node owns under the epoch, once for each epoch; nil afterwards,
    /// and where the newest map says otherwise.
    ///
    /// A shard of the first epoch had no owner before: nothing is missing.
    package mutating func promote(_ shard: ShardID, epoch: Epoch) -> Promotion? {
        let index = Int(shard.rawValue)
        guard map.owner(of: shard)?.id == local, map[shard].epoch == epoch, promoted[index] < epoch else { return nil }
        promoted[index] = epoch
        guard let copy = copies[index] else { return Promotion(table: ReplicaTable(), isComplete: epoch <= 1) }
        drop(shard)
        let (table, isComplete) = copy.promoted(to: epoch, namedIn: map[shard].ownerNamedIn)
        return Promotion(table: table, isComplete: isComplete)
    }

    private mutating func drop(_ shard: ShardID) {
        update(shard) { $0 = ReplicaCopyStateMachine() }
        copies[Int(shard.rawValue)] = nil
    }

    private mutating func update(_ shard: ShardID, _ event: (inout ReplicaCopyStateMachine) -> Void) {
        let index = Int(shard.rawValue)
        var copy = copies[index] ?? ReplicaCopyStateMachine()
        // The tables have one holder, so that they change in place.
        copies[index] = nil
        let before = copy.size
        event(&copy)
        let after = copy.size
        copies[index] = copy
        entityCount += after.count - before.count
        byteCount += after.byteCount - before.byteCount
    }
}

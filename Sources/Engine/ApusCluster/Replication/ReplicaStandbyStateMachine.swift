package import ApusCore

/// A node as the target of other nodes' streams: its copies of shards, and their promotion (D18).
///
/// **Maps** must be given in order; any may be left out. A shard's copy is dropped when the map assigns the shard to an
/// owner under an epoch in which this node has no role. The second standby has one. Under the same epoch only the
/// owner ends the copy: the owner may skip a map that names another standby, or this node may have become a candidate.
/// It does not matter which maps this node saw. The promoting map determines whether a copy is complete.
///
/// **Accepted senders.** Only the owner in the newest map, under the map's epoch. A batch under a later epoch waits for
/// the map that names its owner: a copy that had accepted a later epoch would refuse the true owner.
///
/// **Limits.** All copies count together, including those that are assembled beside an older one: a shard may have two.
/// A batch beyond a limit is not applied, and its owner tries again.
///
/// Pure value.
package struct ReplicaStandbyStateMachine: Sendable {
    /// The states with which this node takes over a shard.
    package struct Promotion: Sendable {
        package var table: ReplicaTable
        /// True if no acknowledged change is missing.
        package var isComplete: Bool
    }

    package let local: NodeID
    private let configuration: ReplicaConfiguration
    private var map: ClusterMap
    private var copies: [ReplicaCopyStateMachine?]
    /// By shard: the newest epoch under which this node was promoted.
    private var promoted: [Epoch]
    /// The number of entities of all copies, and their bytes.
    package private(set) var entityCount = 0
    package private(set) var byteCount = 0
    /// Batches that were refused for lack of room.
    package private(set) var overloadedCount: UInt64 = 0
    /// Batches that were refused because their sender is not the owner in this node's map.
    package private(set) var strayCount: UInt64 = 0
    /// The newest of these under a later epoch than the map's.
    private var ahead: (shard: ShardID, epoch: Epoch)?

    package init(local: NodeID, map: ClusterMap, configuration: ReplicaConfiguration = ReplicaConfiguration()) {
        self.local = local
        self.map = map
        self.configuration = configuration
        copies = Array(repeating: nil, count: ShardID.count)
        promoted = Array(repeating: 0, count: ShardID.count)
    }

    /// The number of shards of which something is held.
    package var copyCount: Int { copies.count { $0?.isEmpty == false } }

    /// True if the shard's copy has at least one entity.
    package func hasStates(of shard: ShardID) -> Bool { (copies[Int(shard.rawValue)]?.size.count ?? 0) > 0 }

    /// True if there is a copy of the shard that could be promoted.
    package func hasCopy(of shard: ShardID) -> Bool { copies[Int(shard.rawValue)]?.isComplete ?? false }

    /// Handles a message. Returns the answer; nil if it is not addressed to this incarnation.
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
            // An older copy stays until the next one is complete.
            return entityCount + growth.count <= configuration.copiedEntityCountMax
                && byteCount + growth.byteCount <= configuration.copiedByteCountMax
                && size.count + growth.count <= 2 * configuration.shardEntityCountMax
                && size.byteCount + growth.byteCount <= 2 * configuration.shardByteCountMax
        }
        let most = batch.records.reduce(0) { $0 + ReplicaTable.byteCount(of: $1) }
        if fits((batch.records.count, most)) { return true }
        // Near a limit the check is exact: a change to an existing entity may take no more room.
        return fits(copies[index]?.growth(with: batch) ?? ReplicaCopyStateMachine().growth(with: batch))
    }

    /// Returns once a shard that a sender named under a later epoch than the map's, and that epoch.
    package mutating func takeAhead() -> (shard: ShardID, epoch: Epoch)? {
        defer { ahead = nil }
        return ahead
    }

    /// This node owned the shard under this epoch until the newest map, in which it has a role under a later epoch.
    ///
    /// A node that is alive loses a shard only by its own hand-over, which names it standby under the next epoch. If
    /// the new owner dies, it may see no map of that epoch, and own the shard again.
    package mutating func keep(_ shard: ShardID, table: ReplicaTable, ownedUnder epoch: Epoch) {
        guard map[shard].epoch > epoch, map.owner(of: shard)?.id == local || map.standby(of: shard)?.id == local else {
            return
        }
        update(shard) { $0.keep(table, standbyUnder: epoch + 1) }
    }

    /// Applies a newer map.
    package mutating func mapChanged(_ newer: ClusterMap) {
        guard newer.revision > map.revision else { return }
        let older = map
        map = newer
        for shard in older.shards(changedIn: newer) where copies[Int(shard.rawValue)] != nil {
            let isOwner = newer.owner(of: shard)?.id == local
            let isStandby = [newer.standby(of: shard)?.id, newer.secondStandby(of: shard)?.id].contains(local)
            let epoch = newer[shard].epoch
            if !isOwner, !isStandby, (copies[Int(shard.rawValue)]?.newest.epoch ?? 0) < epoch {
                drop(shard)
            } else if isOwner {
                update(shard) { $0.ownerChanged(to: epoch) }
            }
        }
    }

    /// Takes over a shard that this node owns under the epoch, once for each epoch; nil afterwards, and if the newest
    /// map names another owner or epoch.
    ///
    /// A shard of the first epoch had no owner before, so nothing is missing.
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
        // The tables are released here, so that they are uniquely referenced and change in place.
        copies[index] = nil
        let before = copy.size
        event(&copy)
        let after = copy.size
        copies[index] = copy
        entityCount += after.count - before.count
        byteCount += after.byteCount - before.byteCount
    }
}

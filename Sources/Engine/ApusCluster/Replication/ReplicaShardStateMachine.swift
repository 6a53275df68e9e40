package import ApusCore
import DequeModule
import NIOCore

/// The owner's side of one shard's replication, under one epoch: the states of its entities, the streams to its
/// targets, and the acknowledged position (D18).
///
/// **Who must confirm.** The standby that the map names must have a change before it is acknowledged, and its copy must
/// be complete. Right after the death of a standby, changes therefore wait until the next one has caught up. If the map
/// names none, the owner acknowledges alone. The second standby and the candidate of a planned move must confirm too,
/// from the moment their copies are complete for as long as they have their roles: once the candidate
/// ``isCaughtUp(_:)``, the map may name it at any time. A node that changes its role is fed by the same stream.
///
/// **After a planned hand-over** the second standby has what was acknowledged under the epoch before. The new owner
/// acknowledges nothing without it from the start. Otherwise it and its standby could be cut off together before the
/// copy is complete under the new epoch, and what they acknowledge would be missing at the second standby.
///
/// **States of the epoch before** count as one change that is not acknowledged. Some of them may never have been: their
/// owner died, or handed the shard over, before it heard from all. A caller that repeats its request must not be
/// answered from them while no other node has them.
///
/// **Limits.** A change that would exceed a limit is refused and has no effect. If a standby does not answer, changes
/// wait and are then refused, until the map names another. A node that does not have to confirm never has this effect:
/// if too much waits for it, its stream is restarted.
///
/// **Crashes.** This state ends with the owner; what was acknowledged is at the targets. An answer with a later epoch
/// ends everything: the shard has another owner, and the outcome of waiting changes is unknown here. A target that
/// reports a later epoch wrongly stops the shard only as long as it is a target.
///
/// Pure value.
package struct ReplicaShardStateMachine: Sendable {
    /// The consequences for the caller.
    package struct Effects: Sendable, Equatable {
        /// Streams that ended, with their targets.
        package var ended: [Ended] = []
        /// Targets for which there may be something to send.
        package var targets: [NodeID] = []
        package var restartedCount = 0
        /// The target cannot apply more at this moment.
        package var isDelayed = false
        /// Another node owns the shard, under this epoch.
        package var supersededBy: Epoch?

        package struct Ended: Sendable, Equatable {
            package var target: NodeID
            package var end: ReplicaEnd
        }
    }

    package let shard: ShardID
    package let epoch: Epoch
    private let configuration: ReplicaConfiguration
    package private(set) var table: ReplicaTable
    /// The number of the newest change.
    package private(set) var position: UInt64 = 0
    /// Every change up to it may be acknowledged.
    package private(set) var acknowledged: UInt64 = 0
    /// The bytes of each change after ``acknowledged``, in order, and their sum.
    private var waiting = Deque<Int>()
    package private(set) var waitingByteCount = 0
    package private(set) var standby: NodeID?
    package private(set) var secondStandby: NodeID?
    package private(set) var candidate: NodeID?
    /// The second standby of the epoch before, as long as it is a standby.
    private var inherited: NodeID?
    /// The revisions of the newest map in which the standbys were named.
    private var namedIn: (standby: UInt64, secondStandby: UInt64) = (0, 0)
    /// One for each node with a role.
    private var feeds: [ReplicaFeedStateMachine] = []
    private var lastStream: UInt64 = 0
    /// A later epoch that a target has seen. Nothing is acknowledged any more.
    package private(set) var supersededBy: Epoch?
    /// The target that reported it.
    private var accuser: NodeID?

    /// - Parameters:
    ///   - table: The states of the epoch before.
    ///   - inherited: The second standby of the epoch before; nil if there was none.
    package init(
        shard: ShardID, epoch: Epoch, table: ReplicaTable, inherited: NodeID? = nil,
        configuration: ReplicaConfiguration
    ) {
        self.shard = shard
        self.epoch = epoch
        self.table = table
        self.inherited = inherited
        self.configuration = configuration
        if table.count > 0 { (position, waiting) = (1, [0]) }
    }

    /// The number of unacknowledged changes.
    package var waitingCount: Int { waiting.count }

    /// The number of entities, and the bytes of their keys and states.
    package var tableSize: (count: Int, byteCount: Int) { (table.count, table.byteCount) }

    /// The nodes that are fed.
    package var targets: [NodeID] { feeds.map(\.target) }

    /// True if changes are acknowledged without another node.
    package var isAlone: Bool { !feeds.contains(where: \.isRequired) }

    // MARK: Targets

    /// The map names these standbys, or none.
    ///
    /// - Parameter assignment: The shard in the newest map.
    package mutating func setStandbys(
        _ first: NodeID?, _ second: NodeID?, of assignment: ShardAssignment
    ) -> Effects {
        var effects = Effects()
        let second = second == first ? nil : second
        if let node = inherited, node != first, node != second { inherited = nil }
        let newNamings = (assignment.standbyNamedIn, assignment.secondStandbyNamedIn)
        guard first != standby || second != secondStandby || newNamings != namedIn else {
            // The map may name none: then nothing waits.
            settle()
            return effects
        }
        (standby, secondStandby, namedIn) = (first, second, newNamings)
        if candidate == first { candidate = nil }
        update(&effects)
        for index in feeds.indices {
            switch feeds[index].target {
            case standby:
                feeds[index].named(in: assignment.standbyNamedIn)
                feeds[index].require()
            case secondStandby:
                feeds[index].named(in: assignment.secondStandbyNamedIn)
                if secondStandby == inherited { feeds[index].require() } else { feeds[index].release() }
            default: feeds[index].release()
            }
        }
        forgetAccuser()
        settle()
        effects.targets = targets
        return effects
    }

    /// Sets or clears the candidate of a planned move.
    package mutating func setCandidate(_ node: NodeID?) -> Effects {
        var effects = Effects()
        let node = node == standby ? nil : node
        guard node != candidate else { return effects }
        candidate = node
        update(&effects)
        forgetAccuser()
        settle()
        effects.targets = targets
        return effects
    }

    /// Ends the streams to nodes without a role, and begins those to nodes with a new one.
    private mutating func update(_ effects: inout Effects) {
        let wanted = [standby, secondStandby, candidate].compactMap { $0 }
        for feed in feeds where !wanted.contains(feed.target) {
            effects.ended.append(.init(target: feed.target, end: ReplicaEnd(shard: shard, term: feed.term)))
        }
        feeds.removeAll { !wanted.contains($0.target) }
        for node in wanted where index(of: node) == nil {
            lastStream += 1
            feeds.append(ReplicaFeedStateMachine(shard: shard, epoch: epoch, target: node, stream: lastStream))
        }
    }

    /// Forgets a reported later epoch if its reporter is no longer a target and there is a standby that must confirm:
    /// if the epoch exists, the standby will report it too.
    private mutating func forgetAccuser() {
        guard let accuser, standby != nil, !isTarget(accuser) else { return }
        self.accuser = nil
        supersededBy = nil
    }

    /// True if the target has everything that was acknowledged, and nothing is acknowledged that it does not have.
    package func isCaughtUp(_ node: NodeID) -> Bool { feed(to: node)?.isBound ?? false }

    /// True if the target has every change up to the position.
    package func isConfirmed(_ position: UInt64, by node: NodeID) -> Bool {
        (feed(to: node)?.confirmed).map { $0 >= position } ?? false
    }

    /// True if the node is fed.
    package func isTarget(_ node: NodeID) -> Bool { feed(to: node) != nil }

    private func index(of node: NodeID) -> Int? { feeds.firstIndex { $0.target == node } }

    private func feed(to node: NodeID) -> ReplicaFeedStateMachine? { index(of: node).map { feeds[$0] } }

    // MARK: Changes

    /// Sets or removes an entity's state. Returns the number of the change.
    ///
    /// - Throws: 10002 for a state that is too large, 10007 if another limit is reached, 10013 if a later epoch was
    ///   seen. The change is then not made.
    package mutating func change(_ record: ReplicaRecord) throws(ApusError) -> UInt64 {
        guard supersededBy == nil else { throw ApusError(.staleEpoch) }
        try check(record)
        position += 1
        let slot = table.apply(record)
        waiting.append(record.byteCount)
        waitingByteCount += record.byteCount
        // The removal of a missing entity is a change like others, so that every position reaches the targets.
        for index in feeds.indices {
            feeds[index].changed(record, slot: slot ?? -1, position: position)
            guard !feeds[index].isRequired,
                feeds[index].queuedCount > configuration.waitingCountMax
                    || feeds[index].queuedByteCount > configuration.waitingByteCountMax
            else { continue }
            lastStream += 1
            feeds[index].restart(as: lastStream)
        }
        settle()
        return position
    }

    private func check(_ record: ReplicaRecord) throws(ApusError) {
        let stateByteCount = record.state?.readableBytes ?? 0
        guard stateByteCount <= configuration.stateByteCountMax else {
            throw ApusError(.frameTooLarge, "an entity's state is larger than replication.state_bytes_max")
        }
        if !isAlone {
            guard waitingCount < configuration.waitingCountMax,
                waitingByteCount + record.byteCount <= configuration.waitingByteCountMax
            else { throw ApusError(.overloaded, "too many changes wait for the shard's standby") }
        }
        guard record.state != nil else { return }
        let before = table.byteCount(of: record.key)
        let size = ReplicaTable.byteCount(of: record)
        guard before < size else { return }
        let byteCountMax = before > 0 ? configuration.shardByteCountMax : configuration.newEntityByteCountMax
        guard before > 0 || table.count < configuration.shardEntityCountMax,
            table.byteCount - before + size <= byteCountMax
        else { throw ApusError(.overloaded, "the shard has no room for the state of another entity") }
    }

    // MARK: Streams

    package func hasNews(for node: NodeID) -> Bool {
        guard supersededBy == nil, let index = index(of: node) else { return false }
        return feeds[index].hasNews
    }

    /// The next batch for a target; nil if there is nothing to send.
    package mutating func nextBatch(for node: NodeID, byteCountMax: Int) -> ReplicaBatch? {
        guard supersededBy == nil, let index = index(of: node) else { return nil }
        return feeds[index].nextBatch(of: table, at: position, acknowledged: acknowledged, byteCountMax: byteCountMax)
    }

    /// A batch of this stream, and those after it, will not be answered.
    package mutating func lost(_ sequence: UInt64, of term: ReplicaTerm, to node: NodeID) {
        guard term.epoch == epoch, let index = index(of: node) else { return }
        feeds[index].lost(stream: term.stream, sequence: sequence)
    }

    /// A target answered.
    package mutating func answered(_ answer: ReplicaAnswer, by node: NodeID) -> Effects {
        var effects = Effects()
        guard let index = index(of: node) else { return effects }
        switch feeds[index].answered(answer, nextStream: lastStream + 1) {
        case .ignored: return effects
        case .confirmed: break
        case .resend(let isOverloaded): effects.isDelayed = isOverloaded
        case .restarted(let isRepeated):
            lastStream += 1
            effects.restartedCount = 1
            effects.isDelayed = isRepeated
        case .superseded(let epoch):
            supersededBy = epoch
            accuser = node
            effects.supersededBy = epoch
            return effects
        }
        // The node may now have to confirm. It must be notified of that.
        settle()
        effects.targets = [node]
        return effects
    }

    /// Acknowledges what every node that must confirm has.
    private mutating func settle() {
        guard supersededBy == nil else { return }
        var reached = position
        for index in feeds.indices {
            if feeds[index].confirmed != nil { feeds[index].require() }
            if feeds[index].isRequired { reached = min(reached, feeds[index].confirmed ?? 0) }
        }
        while acknowledged < reached, let byteCount = waiting.popFirst() {
            acknowledged += 1
            waitingByteCount -= byteCount
        }
    }
}

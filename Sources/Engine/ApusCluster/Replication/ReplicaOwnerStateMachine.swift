package import ApusCore
package import NIOCore
import OrderedCollections

/// A node as the owner of shards: their replication, and the messages that carry their batches to other nodes (D18).
///
/// Each shard has its ``ReplicaShardStateMachine``. A message to a node carries one batch of every shard that has
/// something to send, in turn, up to the size of a message. At the limit of messages in flight, changes gather for the
/// next message. If there are several lanes to a node, a shard's batches use one of them. Each lane has its own
/// messages, and a message's number determines its lane. A message that is not answered in time, or cannot be sent, is
/// lost: its batches are sent again. A node that does not answer receives one message at a time on each lane, at
/// growing intervals. If a node cannot apply a shard's batch yet, it still receives those of other shards.
///
/// **Gained and lost shards** follow the maps, which must be given in order; any may be left out. A shard takes part
/// from ``open(_:epoch:table:)`` on, which its promotion calls. Before that nothing is sent for it, so the copies of a
/// shard whose states are not loaded yet do not change. A lost shard is returned with its table, for the copy that this
/// node may have to keep.
///
/// Pure value. Time is passed in. The work per map is proportional to the shards whose owner or standby changed.
package struct ReplicaOwnerStateMachine: Sendable {
    /// The consequences of an input.
    package struct Effects: Sendable {
        /// Shards with new acknowledged changes.
        package var acknowledged: [ShardID] = []
        /// Shards that this node no longer owns.
        package var closed: [Closed] = []
        /// Shards of which another node knows a later epoch.
        package var superseded: [(shard: ShardID, epoch: Epoch)] = []

        package init() {}

        package struct Closed: Sendable {
            package var shard: ShardID
            package var epoch: Epoch
            package var table: ReplicaTable
        }
    }

    /// Counts since the start, for metrics.
    package struct Counts: Sendable, Equatable {
        package var changes: UInt64 = 0
        /// Changes that were acknowledged without another node, because there was no standby.
        package var alone: UInt64 = 0
        package var refused: UInt64 = 0
        package var messages: UInt64 = 0
        package var batches: UInt64 = 0
        package var bytes: UInt64 = 0
        /// Messages that were lost.
        package var lost: UInt64 = 0
        package var restarted: UInt64 = 0
    }

    package let local: NodeID
    package let configuration: ReplicaConfiguration
    private var map: ClusterMap
    private var shards: [ReplicaShardStateMachine?]
    /// Candidates that were set before their shards were open, with the epochs.
    private var awaited: [ShardID: (candidate: NodeID, epoch: Epoch)] = [:]
    private var peers: OrderedDictionary<ReplicaLane, ReplicaPeer> = [:]
    package private(set) var counts = Counts()
    /// The entities of all open shards, and their bytes.
    package private(set) var entityCount = 0
    package private(set) var byteCount = 0
    /// The unacknowledged changes of all shards, and their bytes.
    package private(set) var waitingCount = 0
    package private(set) var waitingByteCount = 0

    package init(local: NodeID, map: ClusterMap, configuration: ReplicaConfiguration = ReplicaConfiguration()) {
        self.local = local
        self.map = map
        self.configuration = configuration
        shards = Array(repeating: nil, count: ShardID.count)
    }

    // MARK: Shards

    /// An open shard.
    package subscript(shard: ShardID) -> ReplicaShardStateMachine? { shards[Int(shard.rawValue)] }

    /// True if the node owns the shard under this epoch in its newest map, and has not opened it.
    package func canOpen(_ shard: ShardID, epoch: Epoch) -> Bool {
        map.owner(of: shard)?.id == local && map[shard].epoch == epoch && self[shard] == nil
    }

    /// Opens a shard: from now on this node replicates it as its owner, starting with these states.
    ///
    /// - Precondition: ``canOpen(_:epoch:)``.
    package mutating func open(_ shard: ShardID, epoch: Epoch, table: ReplicaTable) -> Effects {
        precondition(canOpen(shard, epoch: epoch), "shard \(shard) cannot be opened under epoch \(epoch)")
        entityCount += table.count
        byteCount += table.byteCount
        // A second standby that was named in an earlier revision had its role under the epoch before.
        let assignment = map[shard]
        let isInherited = assignment.secondStandbyNamedIn < map.revision
        let machine = ReplicaShardStateMachine(
            shard: shard, epoch: epoch, table: table,
            inherited: isInherited ? target(at: assignment.secondStandby) : nil, configuration: configuration)
        waitingCount += machine.waitingCount
        shards[Int(shard.rawValue)] = machine
        var effects = Effects()
        setStandbys(of: shard, &effects)
        if let (candidate, since) = awaited.removeValue(forKey: shard), since == epoch, map.isAlive(candidate) {
            perform(on: shard, &effects) { $0?.setCandidate(candidate) }
        }
        return effects
    }

    private mutating func setStandbys(of shard: ShardID, _ effects: inout Effects) {
        let assignment = map[shard]
        let (first, second) = (target(at: assignment.standby), target(at: assignment.secondStandby))
        perform(on: shard, &effects) { $0?.setStandbys(first, second, of: assignment) }
    }

    private func target(at slot: MemberSlot) -> NodeID? {
        map.member(at: slot).flatMap { $0.state.isAlive && $0.id != local ? $0.id : nil }
    }

    /// Applies a newer map.
    package mutating func mapChanged(_ newer: ClusterMap) -> Effects {
        var effects = Effects()
        guard newer.revision > map.revision else { return effects }
        let changed = map.shards(changedIn: newer)
        map = newer
        for shard in changed {
            guard let epoch = self[shard]?.epoch else { continue }
            if newer.owner(of: shard)?.id == local, newer[shard].epoch == epoch {
                setStandbys(of: shard, &effects)
            } else {
                close(shard, &effects)
            }
        }
        dropPeers(&effects)
        return effects
    }

    private mutating func close(_ shard: ShardID, _ effects: inout Effects) {
        guard let machine = shards[Int(shard.rawValue)] else { return }
        shards[Int(shard.rawValue)] = nil
        entityCount -= machine.table.count
        byteCount -= machine.table.byteCount
        waitingCount -= machine.waitingCount
        waitingByteCount -= machine.waitingByteCount
        effects.closed.append(.init(shard: shard, epoch: machine.epoch, table: machine.table))
    }

    /// Removes candidates that are gone, and what was to be sent to gone nodes.
    private mutating func dropPeers(_ effects: inout Effects) {
        let goneLanes = peers.keys.filter { !map.isAlive($0.node) }
        guard !goneLanes.isEmpty else { return }
        let gone = Set(goneLanes.map(\.node))
        for index in shards.indices {
            guard let candidate = shards[index]?.candidate, gone.contains(candidate) else { continue }
            perform(on: ShardID(UInt16(index)), &effects) { $0?.setCandidate(nil) }
        }
        for lane in goneLanes { peers[lane] = nil }
    }

    /// Sets or clears the candidate of a planned move. It is fed beside the standby. Before the shard is open the
    /// candidate is only stored.
    package mutating func setCandidate(_ shard: ShardID, _ node: NodeID?) -> Effects {
        var effects = Effects()
        let candidate = node.flatMap { map.isAlive($0) && $0 != local ? $0 : nil }
        let epoch = map[shard].epoch
        awaited[shard] = canOpen(shard, epoch: epoch) ? candidate.map { ($0, epoch) } : nil
        perform(on: shard, &effects) { $0?.setCandidate(candidate) }
        return effects
    }

    // MARK: Changes

    /// Sets or removes an entity's state. Returns the number of the change in its shard.
    ///
    /// - Throws: 10013 if this node has not opened the shard under that epoch, or another node has seen a later one;
    ///   10002 and 10007 if a limit is reached.
    package mutating func change(
        _ shard: ShardID, epoch: Epoch, _ record: ReplicaRecord, _ effects: inout Effects
    ) throws(ApusError) -> UInt64 {
        let index = Int(shard.rawValue)
        guard let table = shards[index]?.tableSize, shards[index]?.epoch == epoch else { throw ApusError(.staleEpoch) }
        let before = progress(of: index)
        var position: UInt64 = 0
        do throws(ApusError) {
            try checkRoom(for: record, in: index)
            position = try shards[index]?.change(record) ?? 0
        } catch {
            counts.refused += 1
            throw error
        }
        counts.changes += 1
        let after = shards[index]?.tableSize ?? table
        entityCount += after.count - table.count
        byteCount += after.byteCount - table.byteCount
        note(shard, since: before, &effects)
        if let standby = shards[index]?.standby { markReady(shard, for: standby) }
        if let second = shards[index]?.secondStandby { markReady(shard, for: second) }
        if let candidate = shards[index]?.candidate { markReady(shard, for: candidate) }
        return position
    }

    private func checkRoom(for record: ReplicaRecord, in index: Int) throws(ApusError) {
        guard
            shards[index]?.isAlone == true
                || waitingByteCount + record.byteCount <= configuration.nodeWaitingByteCountMax
        else { throw ApusError(.overloaded, "too many changes wait for the standbys of this node's shards") }
        guard record.state != nil else { return }
        let size = ReplicaTable.byteCount(of: record)
        if entityCount < configuration.entityCountMax, byteCount + size <= configuration.byteCountMax { return }
        let before = shards[index]?.table.byteCount(of: record.key) ?? 0
        guard before > 0 || entityCount < configuration.entityCountMax,
            byteCount - before + size <= configuration.byteCountMax
        else { throw ApusError(.overloaded, "this node has no room for the state of another entity") }
    }

    /// The number of the newest change of a shard; nil if it is not open under this epoch.
    package func position(of shard: ShardID, epoch: Epoch) -> UInt64? {
        let index = Int(shard.rawValue)
        return shards[index]?.epoch == epoch ? shards[index]?.position : nil
    }

    /// An entity's state; nil if it has none, or the shard is not open.
    package func state(of key: ReplicaKey, in shard: ShardID) -> ByteBuffer? {
        shards[Int(shard.rawValue)]?.table[key]
    }

    /// An entity's state for its next activation; nil if it has none.
    ///
    /// The state may include changes that were not acknowledged to any caller, since the activation that made them may
    /// have ended.
    ///
    /// - Throws: 10013 if the shard is not open under this epoch, or another node has seen a later one.
    package func load(
        _ key: ReplicaKey, of shard: ShardID, epoch: Epoch
    ) throws(ApusError) -> (state: ByteBuffer, isConfirmed: Bool)? {
        let index = Int(shard.rawValue)
        guard let position = position(of: shard, epoch: epoch), shards[index]?.supersededBy == nil else {
            throw ApusError(.staleEpoch)
        }
        guard let state = shards[index]?.table[key] else { return nil }
        return (state, shards[index]?.acknowledged == position)
    }

    /// As ``ReplicaTable/page(from:countMax:)``; nil if the shard is not open under this epoch.
    package func page(
        of shard: ShardID, epoch: Epoch, from slot: Int, countMax: Int
    ) -> (records: [ReplicaRecord], next: Int?)? {
        let index = Int(shard.rawValue)
        guard shards[index]?.epoch == epoch else { return nil }
        return shards[index]?.table.page(from: slot, countMax: countMax)
    }

    /// The number of a shard's entities, and their bytes; nil if it is not open.
    package func size(of shard: ShardID) -> (entityCount: Int, byteCount: Int)? {
        shards[Int(shard.rawValue)].map { ($0.tableSize.count, $0.tableSize.byteCount) }
    }

    /// True if the shard is open and no other node has to confirm its changes.
    package func isAlone(_ shard: ShardID) -> Bool { shards[Int(shard.rawValue)]?.isAlone ?? false }

    /// The position up to which a shard's changes are acknowledged; nil if it is not open.
    package func acknowledged(of shard: ShardID) -> UInt64? { shards[Int(shard.rawValue)]?.acknowledged }

    /// True if another node has seen a later epoch of an open shard.
    package func isSuperseded(_ shard: ShardID) -> Bool { shards[Int(shard.rawValue)]?.supersededBy != nil }

    /// True if the shard is open under this epoch and the node is its standby or candidate.
    package func isTarget(_ shard: ShardID, epoch: Epoch, _ node: NodeID) -> Bool {
        guard let machine = self[shard] else { return false }
        return machine.epoch == epoch && machine.isTarget(node)
    }

    /// The result of a scan of all open shards, for gauges.
    package struct Survey: Sendable, Equatable {
        package var openCount = 0
        /// Open shards whose changes no other node has to confirm.
        package var aloneCount = 0
        /// Open shards whose second standby has not caught up.
        package var behindCount = 0
        /// The most entities and the most bytes of one shard. The two may belong to different shards.
        package var shardEntityCountMax = 0
        package var shardByteCountMax = 0
        /// Nodes that did not answer in time.
        package var silentPeerCount = 0
    }

    /// Scans all shards.
    package func survey() -> Survey {
        var survey = Survey()
        for index in shards.indices {
            guard let size = shards[index]?.tableSize else { continue }
            survey.openCount += 1
            if shards[index]?.isAlone == true { survey.aloneCount += 1 }
            if let second = shards[index]?.secondStandby, shards[index]?.isCaughtUp(second) == false {
                survey.behindCount += 1
            }
            survey.shardEntityCountMax = max(survey.shardEntityCountMax, size.count)
            survey.shardByteCountMax = max(survey.shardByteCountMax, size.byteCount)
        }
        survey.silentPeerCount = Set(peers.lazy.filter { $0.value.silence > 0 }.map(\.key.node)).count
        return survey
    }

    /// As ``ReplicaShardStateMachine/isCaughtUp(_:)``.
    package func isCaughtUp(_ shard: ShardID, _ node: NodeID) -> Bool {
        shards[Int(shard.rawValue)]?.isCaughtUp(node) ?? false
    }

    // MARK: Messages

    private func lane(of shard: ShardID, to node: NodeID) -> ReplicaLane {
        ReplicaLane(node: node, number: Int(shard.rawValue) % configuration.laneCount)
    }

    private func lane(of messageNumber: UInt64, to node: NodeID) -> ReplicaLane {
        ReplicaLane(node: node, number: Int(messageNumber % UInt64(configuration.laneCount)))
    }

    private func lanes(to node: NodeID) -> [ReplicaLane] { peers.keys.filter { $0.node == node } }

    /// The messages that can be sent now. Each must be sent at once and in this order, on the lane of its number.
    ///
    /// - Parameter startedAt: when the caller has begun to send, for several calls in a row. A lane on which a message
    ///   could not be sent since then waits for the next time, however long the caller has taken.
    package mutating func nextMessages(
        now: MonotonicTime, startedAt: MonotonicTime? = nil
    ) -> [(target: NodeID, message: ReplicaMessage)] {
        var messages: [(target: NodeID, message: ReplicaMessage)] = []
        for index in peers.values.indices {
            let lane = peers.keys[index]
            peers.values[index].release(now: now)
            while let message = nextMessage(on: lane, now: now, startedAt ?? now) {
                messages.append((lane.node, message))
            }
        }
        return messages
    }

    private mutating func nextMessage(
        on lane: ReplicaLane, now: MonotonicTime, _ startedAt: MonotonicTime
    ) -> ReplicaMessage? {
        guard peers[lane]?.canSend(configuration, now: startedAt) == true else { return nil }
        var batches: [ReplicaBatch] = []
        var byteCount = 0
        var unfinished: [ShardID] = []
        while byteCount < configuration.messageByteCountMax, let shard = peers[lane]?.nextReady() {
            let index = Int(shard.rawValue)
            let room = configuration.messageByteCountMax - byteCount
            guard let batch = shards[index]?.nextBatch(for: lane.node, byteCountMax: room) else { continue }
            byteCount += batch.byteCount
            batches.append(batch)
            if shards[index]?.hasNews(for: lane.node) == true { unfinished.append(shard) }
        }
        for shard in unfinished { peers[lane]?.markReady(shard) }
        let ends = peers[lane]?.takeEnds() ?? []
        guard !batches.isEmpty || !ends.isEmpty else { return nil }
        let parts = batches.map { ReplicaPeer.Part(shard: $0.shard, term: $0.term, sequence: $0.sequence) }
        let underWay = ReplicaPeer.UnderWay(sentAt: now, byteCount: byteCount, ends: ends, parts: parts)
        guard let number = peers[lane]?.sent(underWay) else { return nil }
        counts.messages += 1
        counts.batches += UInt64(batches.count)
        counts.bytes += UInt64(byteCount)
        return ReplicaMessage(
            targetIncarnation: lane.node.incarnation, number: number, revision: map.revision, ends: ends,
            batches: batches)
    }

    /// A node answered a message. Late answers count too.
    package mutating func answered(_ answers: ReplicaAnswers, by node: NodeID, now: MonotonicTime) -> Effects {
        var effects = Effects()
        let lane = lane(of: answers.number, to: node)
        guard peers[lane] != nil else { return effects }
        peers[lane]?.heard()
        let message = peers[lane]?.finish(answers.number)
        let retryAt = now + configuration.retryDelay
        for answer in answers.answers {
            var isDelayed = false
            perform(on: answer.shard, &effects) { shard in
                let result = shard?.answered(answer, by: node)
                isDelayed = result?.isDelayed == true
                return result
            }
            if isDelayed { delay(answer.shard, on: node, until: retryAt) }
        }
        guard let message else { return effects }
        let answered = answers.answers.map { ReplicaPeer.Part(shard: $0.shard, term: $0.term, sequence: $0.sequence) }
        guard answered != message.parts else { return effects }
        // Batches that are missing in the answer, or that belong to another message of this number, are sent again.
        let known = Set(answered)
        let missing = message.parts.filter { !known.contains($0) }
        lose(missing, to: node)
        for part in missing { delay(part.shard, on: node, until: retryAt) }
        return effects
    }

    private mutating func delay(_ shard: ShardID, on node: NodeID, until time: MonotonicTime) {
        peers[lane(of: shard, to: node)]?.delay(shard, until: time)
    }

    /// A message could not be sent.
    package mutating func failed(_ number: UInt64, to node: NodeID, now: MonotonicTime) {
        let lane = lane(of: number, to: node)
        lose(number, on: lane)
        peers[lane]?.pause(until: now + configuration.retryDelay)
    }

    /// The links to a node are new. Messages sent over earlier links may be lost.
    package mutating func linkChanged(to node: NodeID) {
        for lane in lanes(to: node) {
            peers[lane]?.goOn()
            for number in peers[lane]?.underWay.keys ?? [] { lose(number, on: lane) }
        }
    }

    /// Time has passed. Needed every few milliseconds while ``isWaitingForTime``.
    package mutating func tick(now: MonotonicTime) {
        for lane in peers.keys where peers[lane]?.isOverdue(configuration, now: now) == true {
            peers[lane]?.timedOut()
            // Later messages wait behind this one, or are lost with it.
            for number in peers[lane]?.underWay.keys ?? [] { lose(number, on: lane) }
        }
    }

    /// True if a message may have to be sent again, or could not be sent yet.
    package var isWaitingForTime: Bool {
        peers.values.contains { $0.isWaitingForTime }
    }

    private mutating func lose(_ number: UInt64, on lane: ReplicaLane) {
        guard let message = peers[lane]?.finish(number) else { return }
        counts.lost += 1
        for end in message.ends { peers[lane]?.end(end) }
        lose(message.parts, to: lane.node)
    }

    private mutating func lose(_ parts: [ReplicaPeer.Part], to node: NodeID) {
        for part in parts {
            shards[Int(part.shard.rawValue)]?.lost(part.sequence, of: part.term, to: node)
            markReady(part.shard, for: node)
        }
    }

    // MARK: Consequences

    /// Runs an event of a shard, and records its consequences.
    private mutating func perform(
        on shard: ShardID, _ effects: inout Effects,
        _ event: (inout ReplicaShardStateMachine?) -> ReplicaShardStateMachine.Effects?
    ) {
        let index = Int(shard.rawValue)
        let before = progress(of: index)
        guard let result = event(&shards[index]) else { return }
        counts.restarted += UInt64(result.restartedCount)
        for ended in result.ended where map.isAlive(ended.target) {
            let (lane, laneCount) = (lane(of: shard, to: ended.target), configuration.laneCount)
            peers[lane, default: ReplicaPeer(lane: lane.number, of: laneCount)].end(ended.end)
        }
        for target in result.targets { markReady(shard, for: target) }
        if let epoch = result.supersededBy { effects.superseded.append((shard, epoch)) }
        note(shard, since: before, &effects)
    }

    private struct Progress {
        var acknowledged: UInt64
        var waitingCount: Int
        var waitingByteCount: Int
    }

    private func progress(of index: Int) -> Progress {
        Progress(
            acknowledged: shards[index]?.acknowledged ?? 0, waitingCount: shards[index]?.waitingCount ?? 0,
            waitingByteCount: shards[index]?.waitingByteCount ?? 0)
    }

    private mutating func note(_ shard: ShardID, since before: Progress, _ effects: inout Effects) {
        let after = progress(of: Int(shard.rawValue))
        waitingCount += after.waitingCount - before.waitingCount
        waitingByteCount += after.waitingByteCount - before.waitingByteCount
        guard after.acknowledged > before.acknowledged else { return }
        effects.acknowledged.append(shard)
        if shards[Int(shard.rawValue)]?.isAlone == true { counts.alone += after.acknowledged - before.acknowledged }
    }

    private mutating func markReady(_ shard: ShardID, for node: NodeID) {
        guard shards[Int(shard.rawValue)]?.hasNews(for: node) == true else { return }
        let (lane, laneCount) = (lane(of: shard, to: node), configuration.laneCount)
        peers[lane, default: ReplicaPeer(lane: lane.number, of: laneCount)].markReady(shard)
    }
}

package import ApusCore
import OrderedCollections

/// Plans and runs the planned moves of the shards that this node owns (D5).
///
/// Each node moves its own shards towards their ``ShardPlacement``: to a node that joined, away from one that drains.
/// All nodes together move at most `movingCountMax` shards at once. One shard's way:
///
/// ```
/// stable ─▶ catchingUp ─▶ settingStandby ─▶ holding ─▶ handingOver ─▶ owned by the target, epoch + 1
///           (replicas      (map changes)    (calls      (map changes)
///            catch up)                       end)
/// ```
///
/// **The map names no standby that has not caught up.** Otherwise the death of the owner would lose what only the
/// earlier standby had. While the target catches up, the earlier standby remains named and fed. From `caughtUp` on, a
/// change is acknowledged only if both have it, so the moment of the swap does not matter.
///
/// **Hysteresis.** Rendezvous hashing and bounded loads leave small differences to the target after a death. They are
/// not worth a move. Moves begin when a member is more than ``ShardPlacement/deviationMax`` away from the number of
/// shards that it should have, and then go on until every shard is at its place. A shard whose owner or standby is
/// draining, or that has no standby, moves in any case.
///
/// **Pauses.** Moves use the processors that clients' requests need. When this node's thread runs late, the pauses
/// between the starts of moves double, up to `pauseMax`; otherwise they halve. All pauses of a series together are at
/// most `pausesMax`, because a drain has a time-out. A node whose shards nobody uses does not pause, and moves more of
/// them at once (``unusedFactor``).
///
/// A move that only changes a standby ends after `settingStandby`. Every step can be repeated and has its own
/// deadline. If a deadline passes, or the map changes in the meantime, the move is abandoned: the entities are
/// released, the shard stays where it is, and is tried again after `retryDelay`. Calls wait only from `holding` on.
/// The map changes only after the calls in progress have ended; calls that then arrive here are answered `moved`.
///
/// **Crashes.** If the target dies, the map shows it and the move is abandoned. If the owner dies, the target is its
/// standby or its candidate, and the standby named in the map becomes owner as after any death. A proposal does not
/// time out: until the map or its failure shows the result, the target stays fed and the shard's entities stay held.
/// Changes made in the meantime would be lost if the swap had been made.
///
/// Pure value: confined to its owner. The shell carries out the actions and reports the results.
package struct HandoverStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// The most shards that all nodes together move at once, as a number…
        package var movingCountMax: Int = 64
        /// …and as a share of all shards. The smaller of the two limits applies.
        package var movingShareMax: Double = 0.02
        /// The time-out for the target to catch up. The move is then abandoned.
        package var prepareTimeout: Duration = .seconds(5)
        /// The time-out for the end of the calls in progress, while further ones wait.
        package var holdTimeout: Duration = .milliseconds(250)
        /// The pause after an abandoned move.
        package var retryDelay: Duration = .seconds(1)
        /// Moves slow down if a timer of this node's thread runs by this much too late.
        package var latenessMax: Duration = .milliseconds(2)
        /// The least pause between the starts of moves that are slowed down, and the greatest.
        package var pauseMin: Duration = .milliseconds(10)
        package var pauseMax: Duration = .milliseconds(300)
        /// The most that all pauses of a series of moves may take. A series ends when no shard is to be moved.
        package var pausesMax: Duration = .seconds(10)

        package init() {}
    }

    package enum Input: Sendable {
        case mapChanged(ClusterMap)
        /// The target has all of the shard's replicated data.
        case replicaReady(ShardMove)
        /// The shard's entities are held, and no call to them is in progress.
        case held(ShardMove)
        case holdFailed(ShardMove)
        /// A `setStandby`, `setSecondStandby` or `handOver` of this machine was not applied.
        case proposalFailed([ShardMove])
        /// This node's thread ran late by `latenessMax` or more.
        case late
        /// Clients use what this node owns, or nobody does.
        case inUse(Bool)
        /// Time has passed. Needed every 20 ms.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Propose ``OwnershipDecision/setStandby(_:)``.
        case setStandby([ShardMove])
        /// Propose ``OwnershipDecision/setSecondStandby(_:)``.
        case setSecondStandby([ShardMove])
        /// Feed the target beside the standby until the move is `completed` or `abandoned`. Report `replicaReady` when
        /// the target has everything, and from then on acknowledge nothing that it does not have.
        case awaitReplica(ShardMove)
        /// Hold the shard's entities, and wait until the calls in progress have ended. Answer with `held` or
        /// `holdFailed`.
        case hold(ShardMove)
        /// Propose ``OwnershipDecision/handOver(_:)``.
        case handOver([ShardMove])
        /// Release the shard's entities at this node: the move was abandoned.
        case release(ShardMove)
        case abandoned(ShardMove, Reason)
        case completed(ShardMove)
    }

    package enum Reason: String, Sendable, Equatable {
        case mapChanged = "map changed"
        case prepareTimeout = "prepare timeout"
        case holdTimeout = "hold timeout"
        case holdFailed = "hold failed"
        case proposalFailed = "proposal failed"
    }

    private enum Step: Sendable, Equatable {
        case catchingUp(deadline: MonotonicTime)
        case caughtUp
        case settingStandby
        case holding(deadline: MonotonicTime)
        case held
        case handingOver
    }

    private struct Moving: Sendable {
        var move: ShardMove
        /// What the target becomes in the end.
        var role: ShardRole
        var step: Step

        /// The role that the target gets once it has caught up.
        var firstRole: ShardRole { role == .owner ? .standby : role }

        var isCatchingUp: Bool {
            if case .catchingUp = step { true } else { false }
        }
        var isHolding: Bool {
            if case .holding = step { true } else { false }
        }
    }

    /// So many times the shards move at once while nobody uses what this node owns, as when a cluster starts.
    package static let unusedFactor = 4

    package let local: NodeID
    package let configuration: Configuration
    private var map: ClusterMap?
    private var placement: ShardPlacement?
    private var moving: OrderedDictionary<ShardID, Moving> = [:]
    private var resting: OrderedDictionary<ShardID, MonotonicTime> = [:]
    /// A member was out of balance, and not every shard is at its place yet.
    package private(set) var isRebalancing = false
    /// The newest map, or the time, may allow more moves.
    private var isPlanWanted = false
    /// New moves wait for ``nextStart``.
    private var isPaused = false
    private var nextStart = MonotonicTime.zero
    /// The present pause between the starts of moves.
    package private(set) var pause = Duration.zero
    /// The sum of the pauses of this series.
    private var paused = Duration.zero
    /// The thread ran late since the last start.
    private var wasLate = false
    private var isInUse = true

    package init(local: NodeID, configuration: Configuration = Configuration()) {
        self.local = local
        self.configuration = configuration
    }

    /// The number of shards that are being moved.
    package var movingCount: Int { moving.count }

    /// True if a move waits for time or for another node. Ticks are needed as long.
    package var isBusy: Bool { !moving.isEmpty || !resting.isEmpty || isPaused }

    /// The number of shards, over all nodes, that are to move to their place; 0 if the map is stable.
    package var misplacedCount: Int {
        guard let map, let placement else { return 0 }
        return map.shards.indices.count { isToMove($0, map, placement) }
    }

    /// Handles one event. The actions must be carried out in order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .mapChanged(let newer): adopt(newer, now: now, actions: &actions)
        case .replicaReady(let move):
            guard let current = moving[move.shard], current.move == move, case .catchingUp = current.step else { break }
            if let map, current.firstRole.holder(of: move.shard, in: map)?.id == move.target {
                goOn(current, now: now, actions: &actions)
            } else {
                moving[move.shard]?.step = .caughtUp
            }
        case .held(let move):
            guard let current = moving[move.shard], current.move == move, case .holding = current.step else { break }
            moving[move.shard]?.step = .held
        case .holdFailed(let move):
            guard let current = moving[move.shard], current.move == move, case .holding = current.step else { break }
            abandon(move, .holdFailed, now: now, actions: &actions)
        case .proposalFailed(let moves):
            for move in moves where moving[move.shard]?.move == move {
                switch moving[move.shard]?.step {
                case .settingStandby, .handingOver: abandon(move, .proposalFailed, now: now, actions: &actions)
                case .catchingUp, .caughtUp, .holding, .held, nil: break
                }
            }
        case .late: wasLate = isInUse
        case .inUse(let isInUse): self.isInUse = isInUse
        case .tick: expire(now: now, actions: &actions)
        }
        let isTick = if case .tick = input { true } else { false }
        if isTick || !moving.values.contains(where: \.isCatchingUp) { proposeStandbys(actions: &actions) }
        if isTick || !moving.values.contains(where: \.isHolding) { proposeHandovers(actions: &actions) }
        plan(now: now, actions: &actions)
        return actions
    }

    // MARK: Moves in progress

    private mutating func adopt(_ newer: ClusterMap, now: MonotonicTime, actions: inout [Action]) {
        if let map, newer.revision <= map.revision { return }
        map = newer
        if placement?.isValid(for: newer) != true { placement = ShardPlacement(of: newer) }
        noteBalance(newer)
        isPlanWanted = true
        for current in moving.values {
            let move = current.move
            let shard = newer[move.shard]
            let owner = newer.member(at: shard.owner)
            let standby = newer.member(at: shard.standby)
            if current.step == .handingOver, owner?.id == move.target {
                complete(move, actions: &actions)
                continue
            }
            guard owner?.id == local, shard.epoch == move.epoch, newer.aliveSlot(of: move.target) != nil else {
                abandon(move, .mapChanged, now: now, actions: &actions)
                continue
            }
            switch current.step {
            case .caughtUp, .settingStandby:
                if current.firstRole.holder(of: move.shard, in: newer)?.id == move.target {
                    goOn(current, now: now, actions: &actions)
                }
            case .catchingUp: break
            case .holding, .held, .handingOver:
                if standby?.id != move.target { abandon(move, .mapChanged, now: now, actions: &actions) }
            }
        }
    }

    private mutating func noteBalance(_ map: ClusterMap) {
        guard let placement else { return }
        if isRebalancing {
            isRebalancing = map.shards.indices.contains { placement.isMisplaced($0, in: map) }
        } else {
            isRebalancing = !placement.isBalanced(map)
        }
    }

    private func isToMove(_ shard: Int, _ map: ClusterMap, _ placement: ShardPlacement) -> Bool {
        isRebalancing ? placement.isMisplaced(shard, in: map) : placement.mustMove(shard, in: map)
    }

    /// The target has its first role in the map, and has everything.
    private mutating func goOn(_ current: Moving, now: MonotonicTime, actions: inout [Action]) {
        guard current.role == .owner else { return complete(current.move, actions: &actions) }
        moving[current.move.shard]?.step = .holding(deadline: now + configuration.holdTimeout)
        actions.append(.hold(current.move))
    }

    private mutating func expire(now: MonotonicTime, actions: inout [Action]) {
        for current in moving.values {
            switch current.step {
            case .catchingUp(let deadline) where now >= deadline:
                abandon(current.move, .prepareTimeout, now: now, actions: &actions)
            case .holding(let deadline) where now >= deadline:
                abandon(current.move, .holdTimeout, now: now, actions: &actions)
            case .catchingUp, .caughtUp, .settingStandby, .holding, .held, .handingOver: break
            }
        }
        while let (shard, until) = resting.elements.first, until <= now {
            resting[shard] = nil
            isPlanWanted = true
        }
    }

    /// Proposes all shards whose targets caught up in one swap, as with hand-overs.
    private mutating func proposeStandbys(actions: inout [Action]) {
        let caughtUp = moving.values.filter { $0.step == .caughtUp }
        guard !caughtUp.isEmpty else { return }
        for current in caughtUp { moving[current.move.shard]?.step = .settingStandby }
        let first = caughtUp.filter { $0.firstRole == .standby }.map(\.move)
        let second = caughtUp.filter { $0.firstRole == .secondStandby }.map(\.move)
        if !first.isEmpty { actions.append(.setStandby(first)) }
        if !second.isEmpty { actions.append(.setSecondStandby(second)) }
    }

    /// Proposes all held shards in one swap: at once if the calls of no other shard are awaited, otherwise with the
    /// next tick.
    private mutating func proposeHandovers(actions: inout [Action]) {
        let moves = moving.values.filter { $0.step == .held }.map(\.move)
        guard !moves.isEmpty else { return }
        for move in moves { moving[move.shard]?.step = .handingOver }
        actions.append(.handOver(moves))
    }

    private mutating func complete(_ move: ShardMove, actions: inout [Action]) {
        moving[move.shard] = nil
        isPlanWanted = true
        actions.append(.completed(move))
    }

    private mutating func abandon(_ move: ShardMove, _ reason: Reason, now: MonotonicTime, actions: inout [Action]) {
        guard let current = moving.removeValue(forKey: move.shard) else { return }
        switch current.step {
        case .holding, .held, .handingOver: actions.append(.release(move))
        case .catchingUp, .caughtUp, .settingStandby: break
        }
        resting[move.shard] = now + configuration.retryDelay
        isPlanWanted = true
        actions.append(.abandoned(move, reason))
    }

    // MARK: New moves

    private mutating func plan(now: MonotonicTime, actions: inout [Action]) {
        isPaused = false
        guard isPlanWanted, let map, let placement, let slot = map.aliveSlot(of: local) else { return }
        guard now >= nextStart else { return isPaused = true }
        isPlanWanted = false
        let room = movingCountMax(map: map, placement: placement) - moving.count
        guard room > 0 else { return }
        var addedCount = 0
        for index in map.shards.indices where map.shards[index].owner == slot {
            guard addedCount < room else { break }
            let assignment = map.shards[index]
            let goal = placement[index]
            let shard = ShardID(UInt16(index))
            guard isToMove(index, map, placement), moving[shard] == nil, resting[shard] == nil else {
                continue
            }
            let role: ShardRole =
                goal.owner != slot ? .owner : goal.standby != assignment.standby ? .standby : .secondStandby
            guard let target = map.member(at: goal[role]) else { continue }
            let move = ShardMove(shard: shard, epoch: assignment.epoch, owner: local, target: target.id)
            addedCount += 1
            moving[shard] = Moving(
                move: move, role: role, step: .catchingUp(deadline: now + configuration.prepareTimeout))
            actions.append(.awaitReplica(move))
        }
        if addedCount > 0 {
            setPause(now: now)
        } else if moving.isEmpty, resting.isEmpty {
            paused = .zero
        }
    }

    private mutating func setPause(now: MonotonicTime) {
        defer {
            let rest = min(pause, configuration.pausesMax - paused)
            paused += rest
            (wasLate, nextStart) = (false, now + rest)
        }
        if wasLate {
            pause = min(max(pause * 2, configuration.pauseMin), configuration.pauseMax)
        } else {
            pause = pause > configuration.pauseMin ? pause / 2 : .zero
        }
    }

    /// This node's share of the concurrent moves. Every owner of misplaced shards gets the same share, and all derive
    /// it from the map.
    private func movingCountMax(map: ClusterMap, placement: ShardPlacement) -> Int {
        var isSource = Array(repeating: false, count: map.members.count)
        for index in map.shards.indices where isToMove(index, map, placement) {
            let owner = Int(map.shards[index].owner.rawValue)
            if isSource.indices.contains(owner) { isSource[owner] = true }
        }
        let share = Int(Double(map.shards.count) * configuration.movingShareMax)
        let countMax = min(configuration.movingCountMax, share) * (isInUse ? 1 : Self.unusedFactor)
        return max(1, countMax / max(1, isSource.count { $0 }))
    }
}

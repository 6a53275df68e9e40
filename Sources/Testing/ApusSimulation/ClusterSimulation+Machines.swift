import ApusCluster
import ApusCore
import ApusWire

/// Carries out the actions of a process's machines, as a node's shell does.
extension ClusterSimulation {
    // MARK: Detection

    func membership(_ input: MembershipStateMachine.Input, at process: SimulatedProcess) {
        for action in process.membership.handle(input, now: now) {
            switch action {
            case .send(let message, let receiver): send(message, from: process, to: receiver)
            case .suspected(let peer, let reason):
                tell("\(process.id) suspects \(peer): \(reason.rawValue)")
                if mutant == .declaresUnconfirmed { ownership(.confirmedDead(peer, isCertain: true), at: process) }
            case .confirmedDead(let peer, let reason):
                tell("\(process.id) confirms the death of \(peer): \(reason.rawValue)")
                // Others would not agree, so the error costs nothing. It is one nevertheless.
                if !profile.hasDeaths { fail("\(peer) is alive, and \(process.id) confirmed its death") }
                let isCertain = reason.isProven || mutant == .declaresFromMinority
                ownership(.confirmedDead(peer, isCertain: isCertain), at: process)
            case .certain(let peer):
                noteCertain(peer)
                note(peer, unheardBy: .majority, at: process)
            case .half(let peer):
                note(peer, unheardBy: mutant == .countsFewVotes ? .majority : .half, at: process)
            case .uncertain(let peer): note(peer, unheardBy: .few, at: process)
            case .confirmMap(let number): confirmMap(number, at: process)
            case .pathCut(let peer, let helper):
                tell("\(process.id) reaches \(peer) through \(helper)")
                if mutant != .ignoresCutPaths { setHelper(helper, of: peer, at: process) }
            case .pathRestored(let peer):
                tell("\(process.id) reaches \(peer) directly again")
                setHelper(nil, of: peer, at: process)
            case .inspect(let peer, _): membership(.inspected(peer, processState(of: peer)), at: process)
            case .recovered(let peer), .discarded(let peer): ownership(.recovered(peer), at: process)
            }
        }
        checkPermission(of: process)
    }

    private func note(_ peer: NodeID, unheardBy share: OwnershipStateMachine.Share, at process: SimulatedProcess) {
        ownership(.unheard(peer, by: share, revision: process.view.revision), at: process)
    }

    private func confirmMap(_ number: UInt64, at process: SimulatedProcess) {
        tell("\(process.id) confirms the map before it answers again")
        guard mutant != .answersAfterLapse else {
            return membership(.mapConfirmed(number, isDone: true), at: process)
        }
        propose(.confirm(process.id), waiter: .confirmation(number), at: process)
    }

    // MARK: Ownership

    func ownership(_ input: OwnershipStateMachine.Input, at process: SimulatedProcess) {
        // If the process stopped among its actions, the rest is not carried out.
        process.ownership.wallMilliseconds = now.nanoseconds / 1_000_000
        for action in process.ownership.handle(input, now: now) where process.isRunning {
            switch action {
            case .read: submit(.read, by: process)
            case .compareAndSwap(let expected, let map):
                let map = process.isEarlier ? map.withoutRules : altered(map, after: process.ownership.map)
                submit(.compareAndSwap(expected: expected, map), by: process)
            case .adopt(let map): adopted(map, by: process)
            case .announce(let revision):
                for peer in process.peers {
                    guard let receiver = runningProcess(of: peer) else { continue }
                    sendOverLink(.announced(revision: revision, from: process.id), from: process, to: receiver)
                }
            case .settled(let id, let outcome): settle(id, outcome, at: process)
            case .storeChanged(let condition): tell("\(process.id) finds the store \(condition)")
            case .readLeases: submit(.leases, by: process)
            case .standingChanged(let standing): tell("\(process.id) is in the \(standing.rawValue)")
            case .fenced: isFenced(process)
            }
        }
    }

    func answered(_ answer: StoreAnswer, to process: SimulatedProcess) {
        if case .opening = process.phase {
            guard case .read(let map) = answer else { return submit(.read, by: process) }
            if let seen = memories[process.nameIndex], !map.isSuccessor(of: seen), mutant != .joinsEmptyStore {
                stop(process, "refuses a store that is not the one that it saw")
                return later(.start(name: process.nameIndex), after: span(100...400))
            }
            return decideJoin(of: process, map: map)
        }
        switch answer {
        case .read(let map):
            if mutant == .forgetsRevisions, map.revision < process.view.revision {
                process.ownership = OwnershipStateMachine(map: map)
                adopted(map, by: process)
            }
            ownership(.read(map), at: process)
        case .swapWon(let revision): ownership(.swapWon(revision: revision), at: process)
        case .swapLost: ownership(.swapLost, at: process)
        case .failed(isPoll: false):
            ownership(.storeFailed(ApusError(.storageFailed)), at: process)
            if mutant == .releasesUnanswered { releaseUnanswered(at: process) }
        case .failed(isPoll: true):
            process.isPolling = false
            ownership(.refresh, at: process)
        case .foreign(isPoll: false): ownership(.storeFailed(ApusError(.stateForeign)), at: process)
        case .foreign(isPoll: true):
            process.isPolling = false
            ownership(.refresh, at: process)
        case .leases(let holders): ownership(.leases(holders), at: process)
        case .revision(let revision):
            process.isPolling = false
            ownership(.reported(revision), at: process)
        }
    }

    /// The process takes its incarnation and asks to join.
    func open(_ process: SimulatedProcess, as id: NodeID, map: ClusterMap) {
        process.open(id, map: map, settings: settings)
        workload?.opened(process)
        let host = address(of: process)
        let addresses = NodeAddresses(transport: host, clients: host, http: host)
        let rule = process.isEarlier ? nil : settings.membership.watchRule
        let number = mutant == .joinsAsTwin || process.isEarlier ? 0 : process.number
        propose(
            .join(id, addresses: addresses, weight: 100, watchRule: rule, process: number), waiter: .join, at: process)
    }

    func propose(_ decision: OwnershipDecision, waiter: SimulatedProcess.Waiter, at process: SimulatedProcess) {
        process.lastProposal += 1
        process.waiters.append((process.lastProposal, waiter))
        ownership(.propose(process.lastProposal, decision), at: process)
    }

    func adopted(_ map: ClusterMap, by process: SimulatedProcess) {
        checkAdoption(of: map, by: process)
        process.view = map
        workload?.adopted(map, by: process)
        guard process.isMember, process.isRunning else { return }
        memories[process.nameIndex] = map
        let peers = map.members.filter { $0.state.isAlive && $0.id != process.id }.map(\.id)
        for peer in peers where !process.peers.contains(peer) {
            later(.dial(peer), process: process.index, after: span(0...5))
        }
        process.peers = peers
        process.linked.removeAll { !peers.contains($0) }
        let plan = process.isEarlier ? .fullMesh : altered(map.watchPlan, of: process)
        membership(map.isAlive(process.id) ? .membersChanged(peers, plan) : .excluded, at: process)
        keepWatchRule(map, by: process)
        let watchers = plan.watchers(of: process.id) ?? []
        if mutant == .votesUnacknowledged {
            for watcher in watchers where !process.watchers.contains(watcher) {
                let promise = HeartbeatPromise(sentNanoseconds: 0, isAmongWatchers: true)
                membership(.received(.promise(promise), from: watcher, nil), at: process)
            }
        }
        process.watchers = watchers
        handover(.mapChanged(map), at: process)
    }

    private func settle(
        _ id: OwnershipStateMachine.ProposalID, _ outcome: OwnershipStateMachine.Outcome, at process: SimulatedProcess
    ) {
        guard let waiter = process.takeWaiter(id) else { return }
        switch (waiter, outcome) {
        case (.join, .decided(let map)):
            checkIncarnation(of: process)
            process.phase = .member
            submit(.renewLease, by: process)
            tell("process \(process.index) joined as \(process.id)")
            adopted(map, by: process)
        case (.join, .failed(let error)):
            stop(process, "is not let in and starts again")
            isRestarting[process.nameIndex] = error.code == .fenced
            later(.start(name: process.nameIndex), after: span(20...100))
        case (.drain, .decided): process.leavesAt = now + .seconds(2)
        case (.drain, .failed): process.leavesAt = nil
        case (.leave, _): stop(process, "leaves")
        case (.cordon, _), (.rule, _): break
        case (.confirmation(let number), .decided):
            membership(.mapConfirmed(number, isDone: true), at: process)
        case (.confirmation(let number), .failed):
            membership(.mapConfirmed(number, isDone: false), at: process)
        case (.moves(let moves, let role), let outcome):
            let failed = moves.filter { move in
                guard case .decided(let map) = outcome else { return true }
                return role.holder(of: move.shard, in: map)?.id != move.target
            }
            if !failed.isEmpty { handover(.proposalFailed(failed), at: process) }
        }
    }

    /// A node of an earlier version removed the rules with the map that it made.
    private func keepWatchRule(_ map: ClusterMap, by process: SimulatedProcess) {
        guard !process.isEarlier, now >= process.nextRule, map.isAlive(process.id),
            map.member(named: process.id.name)?.watchRule == nil
        else { return }
        process.nextRule = now + .seconds(1)
        propose(.setWatchRule(process.id, settings.membership.watchRule), waiter: .rule, at: process)
    }

    /// The plan after a deliberate error.
    private func altered(_ plan: WatchPlan, of process: SimulatedProcess) -> WatchPlan {
        guard var sets = plan.sets else { return plan }
        var plan = plan
        switch mutant {
        case .countsFewVotes:
            for (id, watchers) in sets where id != process.id && watchers.contains(process.id) {
                sets[id] = [process.id]
            }
        case .countsFewPromises: sets[process.id] = sets[process.id].map { Array($0.prefix(1)) }
        default: return plan
        }
        plan.sets = sets
        return plan
    }

    /// The process found itself dead in the map. It ends, and its supervisor starts another.
    private func isFenced(_ process: SimulatedProcess) {
        if mutant == .revivesItself, let slot = store.map.slot(of: process.id.name) {
            var map = store.map
            map.members[Int(slot.rawValue)] = Member(
                id: process.id, state: .up, addresses: map.members[Int(slot.rawValue)].addresses)
            submit(.compareAndSwap(expected: map.revision, map), by: process)
        }
        stop(process, "is fenced and starts again")
        isRestarting[process.nameIndex] = true
        later(.start(name: process.nameIndex), after: span(20...100))
    }

    /// The map after a deliberate error, for the map that the machine decided on.
    private func altered(_ map: ClusterMap, after old: ClusterMap) -> ClusterMap {
        var map = map
        if mutant == .givesToCordoned { giveToCordoned(&map, after: old) }
        guard mutant == .keepsEpochOnTakeover || mutant == .keepsStandbyOnTakeover else { return map }
        for index in map.shards.indices
        where old.shards[index].owner != .none && map.shards[index].owner != old.shards[index].owner {
            if mutant == .keepsEpochOnTakeover {
                map.shards[index].epoch = old.shards[index].epoch
            } else {
                map.shards[index].standby = map.shards[index].owner
            }
        }
        return map
    }

    private func giveToCordoned(_ map: inout ClusterMap, after old: ClusterMap) {
        guard let slot = map.members.firstIndex(where: { $0.state == .up && $0.isCordoned }) else { return }
        let cordoned = MemberSlot(rawValue: UInt16(slot))
        for index in map.shards.indices
        where map.shards[index].standby != old.shards[index].standby && map.shards[index].owner != cordoned
            && map.shards[index].standby != old.shards[index].owner && map.shards[index].secondStandby != cordoned
        {
            map.shards[index].standby = cordoned
        }
    }

    // MARK: Hand-over

    func handover(_ input: HandoverStateMachine.Input, at process: SimulatedProcess) {
        guard process.isMember else { return }
        for action in process.handover.handle(input, now: now) where process.isRunning {
            switch action {
            case .setStandby(let moves):
                propose(.setStandby(moves), waiter: .moves(moves, .standby), at: process)
            case .setSecondStandby(let moves):
                propose(.setSecondStandby(moves), waiter: .moves(moves, .secondStandby), at: process)
            case .handOver(let moves):
                if mutant == .movesBeforeSwap {
                    for move in moves {
                        guard let target = runningProcess(of: move.target) else { continue }
                        sendOverLink(.askedToOwn(move), from: process, to: target)
                    }
                }
                propose(.handOver(moves), waiter: .moves(moves, .owner), at: process)
            case .awaitReplica(let move):
                if mutant == .namesStandbyEarly {
                    propose(.setStandby([move]), waiter: .moves([], .standby), at: process)
                }
                if let workload {
                    workload.setCandidate(move.target, of: move.shard, at: process)
                    awaitReplica(move, until: now + settings.handover.prepareTimeout, at: process)
                    continue
                }
                // In some cases the replica never catches up, and the machine's own deadline ends the wait.
                if isHealed || chance(0.95) {
                    later(.replicaReady(move), process: process.index, after: span(1...40))
                }
            case .hold(let move):
                if mutant != .writesWhileHeld { process.held.append(move.shard) }
                let deadline = now + EntityRegistry.quietTimeout
                if let workload {
                    workload.hold(move.shard, at: process)
                    awaitQuiet(move, until: deadline, at: process)
                } else {
                    endCalls(move, until: deadline, at: process)
                }
            case .completed(let move):
                process.held.removeAll { $0 == move.shard }
                caughtUp[Int(move.shard.rawValue)].removeAll { $0 == move }
                workload?.setCandidate(nil, of: move.shard, at: process)
                handoverCount += 1
            case .release(let move):
                process.held.removeAll { $0 == move.shard }
                workload?.release(move.shard, at: process)
            case .abandoned(let move, _):
                // From now on it is not fed.
                caughtUp[Int(move.shard.rawValue)].removeAll { $0 == move }
                workload?.setCandidate(nil, of: move.shard, at: process)
            }
        }
    }

    private func releaseUnanswered(at process: SimulatedProcess) {
        for case .moves(let moves, .owner) in process.waiters.map(\.waiter) where process.isRunning {
            handover(.proposalFailed(moves), at: process)
        }
    }

    /// The target of a move has everything of the shard, and receives all changes until the move ends.
    func replicaReady(_ move: ShardMove, at process: SimulatedProcess) {
        caughtUp[Int(move.shard.rawValue)].append(move)
        handover(.replicaReady(move), at: process)
    }

    /// Checks every 10 ms whether the workload's copies at a move's target are complete, as the node's shell does.
    func awaitReplica(_ move: ShardMove, until deadline: MonotonicTime, at process: SimulatedProcess) {
        let isValid =
            process.view.owner(of: move.shard)?.id == process.id && process.view[move.shard].epoch == move.epoch
            && process.view.isAlive(move.target)
        guard now < deadline, isValid, let workload else { return }
        guard workload.isCaughtUp(move.target, with: move.shard, at: process) else {
            return later(.replicaAwaited(move, until: deadline), process: process.index, after: .milliseconds(10))
        }
        later(.replicaReady(move), process: process.index, after: .zero)
    }

    /// Checks every millisecond whether the calls to a held shard have ended.
    func awaitQuiet(_ move: ShardMove, until deadline: MonotonicTime, at process: SimulatedProcess) {
        guard let workload, now < deadline else {
            return later(.holdAnswered(move, isDone: false), process: process.index, after: .zero)
        }
        guard workload.isQuiet(move.shard, at: process) else {
            return later(.quietAwaited(move, until: deadline), process: process.index, after: .milliseconds(1))
        }
        answerHold(of: move, after: span(0...2), at: process)
    }

    /// Without a workload: the calls in progress end after a while, in some cases later than their owner waits.
    private func endCalls(_ move: ShardMove, until deadline: MonotonicTime, at process: SimulatedProcess) {
        let time = isHealed || chance(0.95) ? span(0...50) : span(201...400)
        later(.callsEnded(move, until: deadline), process: process.index, after: time)
        if mutant == .movesBeforeQuiet {
            answerHold(of: move, after: span(0...2), at: process)
        } else {
            later(.holdAnswered(move, isDone: false), process: process.index, after: deadline - now)
        }
    }

    /// The last of the calls in progress writes.
    func callsEnded(_ move: ShardMove, until deadline: MonotonicTime, at process: SimulatedProcess) {
        guard process.isMember, process.view.owner(of: move.shard)?.id == process.id,
            process.view[move.shard].epoch == move.epoch
        else { return }
        write(to: Int(move.shard.rawValue), epoch: move.epoch, by: process)
        guard mutant != .movesBeforeQuiet, now < deadline else { return }
        answerHold(of: move, after: span(0...2), at: process)
    }

    private func answerHold(of move: ShardMove, after delay: Duration, at process: SimulatedProcess) {
        let shard = Int(move.shard.rawValue)
        heldMoves[shard].removeAll { $0.epoch == move.epoch && $0.target == move.target }
        heldMoves[shard].append(HeldMove(epoch: move.epoch, target: move.target, at: now))
        later(.holdAnswered(move, isDone: true), process: process.index, after: delay)
    }
}

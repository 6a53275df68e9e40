import ApusCore
import ApusStorage
import ApusTransport
import ApusWire
import CoreMetrics
import Logging
import NIOCore
import SwiftProtobuf
import Synchronization

/// Carries out the machines' actions. Everything except the jobs runs on the cluster's thread.
extension ClusterService {
    /// The least time between two proposals of this node's ``WatchRule``: a node of an earlier version removes it with
    /// each map that it makes.
    private static let ruleInterval = Duration.seconds(10)

    /// The timer of the service. It ticks every ``ClusterConfiguration/tickInterval`` while a machine waits for time.
    /// Otherwise it ticks only to poll the store's revision, so that an idle node uses little CPU.
    func tick() {
        let now = MonotonicTime.now()
        if let next = state.value.nextTick, now - next.time >= configuration.handover.latenessMax {
            handle(handover: .late)
        }
        state.value.nextTick = nil
        lookAtClock(now: now)
        let soon = now + configuration.tickInterval
        scheduleTick(at: isBusy ? soon : max(soon, state.value.nextPoll))
    }

    func stopTicking() {
        state.value.nextTick?.task.cancel()
        state.value.nextTick = nil
    }

    /// Moves the next tick forward if a machine began to wait for time.
    private func hastenTick() {
        guard isBusy, let next = state.value.nextTick else { return }
        let soon = MonotonicTime.now() + configuration.tickInterval
        guard next.time > soon else { return }
        next.task.cancel()
        scheduleTick(at: soon)
    }

    private var isBusy: Bool { state.value.ownership.isBusy || state.value.handover.isBusy }

    private func scheduleTick(at time: MonotonicTime) {
        let delay = max(time - .now(), .zero)
        state.value.nextTick = (thread.loop.scheduleTask(in: TimeAmount(delay)) { self.tick() }, time)
    }

    private func lookAtClock(now: MonotonicTime) {
        if let until = state.value.duplicateUntil, now >= until {
            state.value.duplicateUntil = nil
            hooks.condition(.duplicateNodeWaits, nil)
        }
        if now >= state.value.nextPoll, state.value.isRunning {
            state.value.nextPoll = now + configuration.revisionPollInterval
            if let since = state.value.pollingSince {
                // The machine notices a store that hangs, because it then waits for a read.
                if now - since >= configuration.ownership.answerTimeout / 2 { handle(ownership: .refresh) }
            } else if submit(.pollRevision) {
                state.value.pollingSince = now
            }
            keepWatchRule(view.map)
        }
        if now >= state.value.nextRenewal, state.value.isRunning, !state.value.isRenewing {
            state.value.nextRenewal = now + configuration.leaseDuration / 3
            state.value.isRenewing = submit(.renewLease)
        }
        if state.value.ownership.isBusy { handle(ownership: .tick) }
        if now >= state.value.nextHandoverTick {
            state.value.nextHandoverTick = now + .milliseconds(20)
            handle(handover: .inUse(hooks.isInUse()))
            handle(handover: .tick)
        }
    }

    // MARK: Ownership

    func handle(ownership input: OwnershipStateMachine.Input) {
        state.value.ownership.wallMilliseconds = UInt64(clamping: view.clock.wallMilliseconds())
        let actions = state.value.ownership.handle(input, now: .now())
        var deaths: [NodeID] = []
        for action in actions {
            switch action {
            case .read:
                if !submit(.read) { handle(ownership: .storeFailed(ApusError(.shuttingDown))) }
            case .compareAndSwap(let expected, let map):
                if !submit(.compareAndSwap(expected: expected, map)) {
                    handle(ownership: .storeFailed(ApusError(.shuttingDown)))
                }
            case .adopt(let map): deaths += adopted(map)
            case .announce(let revision):
                announce(revision: revision)
                log(deaths, writtenIn: revision)
            case .settled(let id, let outcome): settle(id, outcome)
            case .storeChanged(let condition): hooks.storeChanged(condition)
            case .readLeases: _ = submit(.readLeases)
            case .standingChanged(let standing): show(standing)
            case .fenced: fenced()
            }
        }
        view.setUnheard(state.value.ownership.unheard)
        metrics.storeReachable.record(state.value.ownership.store == .sound ? 1 : 0)
        hastenTick()
    }

    func propose(_ decision: OwnershipDecision, waiter: Waiter?) {
        state.value.lastProposal += 1
        let id = state.value.lastProposal
        state.value.waiters[id] = waiter
        handle(ownership: .propose(id, decision))
    }

    /// Applies the newest map. Returns the members that were alive in the previous map and are dead in this one.
    @discardableResult
    func adopted(_ map: ClusterMap) -> [NodeID] {
        let before = view.map
        view.update(map)
        let peers = map.members.filter { $0.state.isAlive && $0.id != identity }
            .map { Peer(id: $0.id, address: $0.addresses.transport) }
        state.value.links?.setPeers(peers)
        keepPaths(map)
        let isAlive = map.isAlive(identity)
        let plan = map.watchPlan
        if let heartbeats = heartbeats.withLock({ $0 }) {
            heartbeats.setPeers(peers)
            heartbeats.perform { driver, now in
                driver.mapRevision = map.revision
                return driver.handle(isAlive ? .membersChanged(peers.map(\.id), plan) : .excluded, now: now)
            }
        }
        metrics.watchedPeers.record(plan.watchers(of: identity)?.count ?? peers.count)
        keepWatchRule(map)
        metrics.show(map, after: before, local: map.aliveSlot(of: identity))
        logger.debug("The cluster map changed", metadata: [LogKey.revision: "\(map.revision)"])
        handle(handover: .mapChanged(map))
        return before.members.filter { $0.state.isAlive && $0.id != identity && !map.isAlive($0.id) }.map(\.id)
    }

    /// Writes this node's rule into the map again after a node of an earlier version replaced the map without it. Until
    /// all members have theirs, every member watches all others.
    private func keepWatchRule(_ map: ClusterMap) {
        let now = MonotonicTime.now()
        guard state.value.isRunning, now >= state.value.nextRule, map.isAlive(identity),
            map.member(named: identity.name)?.watchRule != configuration.membership.watchRule
        else { return }
        state.value.nextRule = now + Self.ruleInterval
        propose(.setWatchRule(identity, configuration.membership.watchRule), waiter: nil)
    }

    /// Logs who decided: the other nodes log what they find, this one that it wrote the map.
    private func log(_ deaths: [NodeID], writtenIn revision: UInt64) {
        for peer in deaths {
            logger.notice(
                "This node declared a peer dead in the map",
                metadata: [LogKey.peer: "\(peer)", LogKey.revision: "\(revision)"])
        }
    }

    func announce(revision: UInt64) {
        var message = ClusterMapChanged()
        message.revision = revision
        guard let links = state.value.links, let bytes: [UInt8] = try? message.serializedBytes() else { return }
        for member in view.map.members where member.state.isAlive && member.id != identity {
            // A peer that misses the notification polls the store's revision anyway.
            try? links.tell(
                member.id.name, lane: 0, method: ClusterMethod.mapChanged, payload: ByteBuffer(bytes: bytes))
        }
    }

    private func settle(_ id: OwnershipStateMachine.ProposalID, _ outcome: OwnershipStateMachine.Outcome) {
        switch state.value.waiters.removeValue(forKey: id) {
        case .caller(let continuation): continuation.resume(returning: outcome)
        case .moves(let moves, let role):
            // A move that the decision skipped, because the map had changed in the meantime, failed too.
            let failed = moves.filter { move in
                guard case .decided(let map) = outcome else { return true }
                return role.holder(of: move.shard, in: map)?.id != move.target
            }
            if !failed.isEmpty { handle(handover: .proposalFailed(failed)) }
        case .confirmation(let number):
            let isDone = if case .decided = outcome { true } else { false }
            answerConfirmation(number, isDone: isDone)
        case nil: break
        }
    }

    private func show(_ standing: OwnershipStateMachine.Standing) {
        logger.notice(
            "The side of the cluster that this node hears changed", metadata: [LogKey.reason: "\(standing.rawValue)"])
        hooks.condition(
            .minority,
            standing == .minority
                ? "this node hears less than half of the cluster's nodes; it declares nobody dead and takes no shards"
                : nil)
        if standing == .minority { hooks.lostMajority(state.value.ownership.unheard) }
    }

    private func fenced() {
        logger.error("This node was declared dead; it must start again under a new incarnation")
        hooks.fenced()
    }

    // MARK: Hand-over

    func handle(handover input: HandoverStateMachine.Input) {
        for action in state.value.handover.handle(input, now: .now()) {
            switch action {
            case .setStandby(let moves): propose(.setStandby(moves), waiter: .moves(moves, .standby))
            case .setSecondStandby(let moves):
                propose(.setSecondStandby(moves), waiter: .moves(moves, .secondStandby))
            case .handOver(let moves): propose(.handOver(moves), waiter: .moves(moves, .owner))
            case .awaitReplica(let move):
                hooks.feedReplica(move.shard, move.target)
                _ = submit(.awaitReplica(move))
            case .hold(let move):
                if !submit(.hold(move)) { handle(handover: .holdFailed(move)) }
            case .release(let move): hooks.releaseEntities(move.shard)
            case .abandoned(let move, let reason):
                hooks.feedReplica(move.shard, nil)
                metrics.handoversAbandoned.increment()
                logger.info(
                    "A hand-over was abandoned",
                    metadata: [
                        LogKey.shard: "\(move.shard)", LogKey.peer: "\(move.target)",
                        LogKey.reason: "\(reason.rawValue)",
                    ])
            case .completed(let move):
                hooks.feedReplica(move.shard, nil)
                metrics.handoversCompleted.increment()
            }
        }
        metrics.handoverPause.record(state.value.handover.pause.milliseconds / 1000)
        hastenTick()
    }

    // MARK: Jobs

    /// Returns false if the job was not accepted: the service ends, or too many jobs wait.
    private func submit(_ job: Job) -> Bool { jobs.add(job) }

    /// Called in a task of ``run()``.
    func run(_ job: Job) async {
        switch job {
        case .read:
            let answer = await perform(OwnershipStateMachine.Action.read)
            thread.loop.execute { self.handle(ownership: answer) }
        case .compareAndSwap(let expected, let map):
            let answer = await perform(.compareAndSwap(expected: expected, map))
            thread.loop.execute { self.handle(ownership: answer) }
        case .readLeases:
            guard let holders = try? await store.leaseHolders() else { break }
            thread.loop.execute { self.handle(ownership: .leases(holders)) }
        case .renewLease:
            do {
                try await store.renewLease(of: identity, for: configuration.leaseDuration)
            } catch {
                logger.debug("The lease in the ownership store was not renewed", metadata: Logger.facts(of: error))
            }
            thread.loop.execute { self.state.value.isRenewing = false }
        case .pollRevision:
            // If the store fails or went back, the next read detects it.
            let revision = try? await store.revision()
            thread.loop.execute {
                self.state.value.pollingSince = nil
                self.handle(ownership: revision.map { .reported($0) } ?? .refresh)
            }
        case .awaitReplica(let move):
            await awaitReplica(move)
        case .hold(let move):
            let isHeld = await hold(move)
            thread.loop.execute { self.handle(handover: isHeld ? .held(move) : .holdFailed(move)) }
        }
    }

    private func awaitReplica(_ move: ShardMove) async {
        let deadline = MonotonicTime.now() + configuration.handover.prepareTimeout
        while MonotonicTime.now() < deadline, !Task.isCancelled {
            let shard = view.lookUp(move.shard)
            guard shard.owner?.id == identity, shard.epoch == move.epoch, view.map.isAlive(move.target) else { return }
            if await hooks.replicaCaughtUp(move.shard, move.target) {
                thread.loop.execute { self.handle(handover: .replicaReady(move)) }
                return
            }
            try? await Task.sleep(for: .milliseconds(10))
        }
    }

    /// Holds the shard's entities. Returns true when no call to them is in progress.
    private func hold(_ move: ShardMove) async -> Bool {
        do throws(ApusError) {
            try await hooks.holdEntities(move.shard)
            return true
        } catch {
            logger.info(
                "A shard could not be held for its hand-over",
                metadata: Logger.facts(of: error).merging([LogKey.shard: "\(move.shard)"]) { $1 })
            return false
        }
    }
}

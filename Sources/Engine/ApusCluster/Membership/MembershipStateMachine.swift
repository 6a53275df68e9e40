package import ApusCore
package import ApusWire

/// The failure detector of one node (D4): it decides which peers appear alive to this node.
///
/// It only raises suspicions and confirms them. Ownership changes by compare-and-swap elsewhere, so a wrong verdict
/// costs a hand-over and never data.
///
/// Layers, after SWIM (Das, Gupta, Motivala 2002), Lifeguard (Dadgar, Phillips, Currey 2017) and Falcon (Leners et al.
/// 2011):
/// - **Process death.** A lost link followed by a refused connection is certain evidence: the peer's listening socket
///   is gone. The death is confirmed at once; `kill -9` is detected in milliseconds.
/// - **Silence.** No bytes of any kind for `silenceMax` raise a suspicion. Bytes of a peer that does not receive this
///   node's datagrams count only for a short time: it can answer nobody. A burst of direct probes, and as many
///   through each helper, must then fail. One probe each is not safe: at 5 % loss three nodes evict each other every
///   two hours. With the burst this does not happen.
/// - **Scheduling.** On an overloaded machine neither side runs in time. Each datagram carries its sender's recent
///   lateness. That and the own lateness extend the allowed silence, by at most `extensionMax`. A peer on the same
///   machine is inspected (``Action/inspect(_:_:)``) when it falls silent and again before the verdict. If its process
///   is gone, or stopped for so long that it has no permission to answer, it is dead without a burst. If it is
///   runnable and waits for a processor or a disk, it gets another burst, until it was silent for `starvationMax`.
/// - **Own lateness.** An observer that did not run for `latenessMax` withdraws every suspicion that rests on silence,
///   confirmed or not: it cannot distinguish the peer's silence from its own pause.
///
/// **Votes.** A silent peer may be on the other side of a cut network, where it believes the same of this node. Each
/// helper that does not hear it either says so. When the nodes that do not hear it, this one included, are a majority
/// of the members that are not proven dead, its death is certain (``Action/certain(_:)``). Proven deaths need no votes.
///
/// A member whose death was proven, or which the map lost, may have promised before. More votes are needed until its
/// promises have ended (``countVotes(_:now:actions:)``).
///
/// A decision lasts only as long as the votes are repeated, and votes of before a new map do not count: see
/// ``PromiseStateMachine``, which also says when this node may vote.
///
/// **Paths.** A peer that answers helpers and not this node is alive, but its packets do not reach this node, or this
/// node's do not reach it. ``PeerPathStateMachine`` detects that, and the helper through which the peer answers.
///
/// A refused connection without a lost link before it (the peer was never linked) raises a suspicion without waiting
/// for silence, since a member listens before it joins.
///
/// **Watchers.** In a large cluster this node watches its neighbours in a ring (``WatchPlan``) and is watched by them.
/// Heartbeats, promises and bursts go between them, and a majority is one of a member's watchers. The members that it
/// does not watch are heard as well: a process that is gone is seen by all. They are examined for cut paths
/// (``DistantPeersStateMachine``), and their silence means nothing here.
///
/// ``evidence(about:now:)`` returns the evidence for a verdict. Every death is logged with it.
///
/// Only the incarnations in ``Input/membersChanged(_:)`` are watched and heard. A dead incarnation never returns. A
/// member that joins has `firstContactTimeout` for its first datagram, whatever the state of its links.
///
/// Pure value: confined to its owner, which passes the time and sends the datagrams.
package struct MembershipStateMachine: Sendable {
    package enum Input: Sendable {
        /// An authenticated datagram that is not a replay.
        case received(HeartbeatMessage, from: NodeID, HeartbeatVitals? = nil)
        /// Any bytes from the peer on any link.
        case heard(NodeID)
        case linkUp(NodeID)
        /// An established link ended.
        case linkLost(NodeID)
        /// The peer's machine refused a connection to its transport port.
        case connectRefused(NodeID)
        /// The answer to ``Action/inspect(_:_:)``.
        case inspected(NodeID, ProcessState)
        /// The members of the newest map that are alive, and which of them watch which. Proven deaths among them are
        /// confirmed again.
        case membersChanged([NodeID], WatchPlan = .fullMesh)
        /// This node is not, or not yet, alive in the newest map: it watches nobody and may not answer.
        case excluded
        /// The answer to ``Action/confirmMap(_:)``.
        case mapConfirmed(UInt64, isDone: Bool)
        /// Time has passed. Needed every 10 ms, and at least every `latenessMax`.
        case tick
    }

    package enum Action: Sendable, Equatable {
        case send(HeartbeatMessage, to: NodeID)
        /// Inspect the peer's process, which runs on this machine. Answer with ``Input/inspected(_:_:)`` at once.
        case inspect(NodeID, HeartbeatVitals.Process)
        /// Probing began.
        case suspected(NodeID, SuspicionReason)
        /// The peer was heard. Its suspicion, or its confirmed death, is withdrawn.
        case recovered(NodeID)
        /// This node was late. The peer's suspicion, or its death confirmed by silence, is withdrawn.
        case discarded(NodeID)
        /// All layers agree that this node cannot reach the peer. Unless the reason proves the death, ownership changes
        /// only after ``certain(_:)``.
        case confirmedDead(NodeID, DeathReason)
        /// A majority does not hear a peer whose death this node confirmed by silence.
        case certain(NodeID)
        /// Half of the members, or more, do not hear such a peer, but no majority.
        case half(NodeID)
        /// Fewer than half do not hear a peer that was ``certain(_:)`` or ``half(_:)``.
        case uncertain(NodeID)
        /// Replace the ownership map by the same map, and answer with ``Input/mapConfirmed(_:isDone:)``.
        case confirmMap(UInt64)
        /// Packets between this node and the peer do not arrive, but the helper exchanges packets with both.
        case pathCut(NodeID, via: NodeID)
        /// The peer answers this node directly again.
        case pathRestored(NodeID)
    }

    package enum SuspicionReason: String, Sendable, Equatable {
        case silence
        case connectionRefused = "connection refused"
    }

    package enum DeathReason: String, Sendable, Equatable {
        /// Nothing arrived and all probes failed. The process may run: the network may be cut.
        case silence
        /// Its process, on this machine, is stopped by a signal.
        case processStopped = "process stopped"
        /// A link was lost and the next connection was refused, or its process, on this machine, has ended.
        case processGone = "process gone"

        /// True if the peer cannot act now, whatever the state of the network.
        package var isProven: Bool { self != .silence }
    }

    /// The kernel's report about the thread that sends a peer's heartbeats.
    package enum ProcessState: String, Sendable, Equatable {
        case gone
        /// Stopped by a signal. It runs again only when it is continued.
        case stopped
        /// It is runnable and waits for a processor, or it waits for a disk or a tracer.
        case waiting
        /// It waits for work, or the kernel does not report its state.
        case idle
    }

    /// This node's view of a peer, for status pages.
    package enum Health: String, Sendable, Equatable {
        case alive, suspected
        case confirmedDead = "confirmed dead"
    }

    private struct Burst: Sendable {
        var nonce: UInt32
        var began: MonotonicTime
        var sentCount: Int
        var helpers: [NodeID]
        /// How often the peer's process was idle since the burst ended. A late peer sends its heartbeat before it
        /// becomes idle, perhaps after this node's last read. The second time, nothing arrived in between.
        var idleCount = 0
    }

    private enum Verdict: Sendable {
        case alive
        case suspected(Burst)
        case confirmedDead(DeathReason)
    }

    private struct Peer: Sendable {
        var id: NodeID
        var verdict: Verdict = .alive
        var lastHeard: MonotonicTime
        var wasHeard = false
        /// A link ended and none has come up since.
        var isLinkLost = false
        var lastDatagram: MonotonicTime?
        var datagramCount: UInt64 = 0
        /// The contents of its last datagram of version 2.
        var vitals: HeartbeatVitals?
        /// The last observed state of its process.
        var process: ProcessState?
        /// Of the last burst: the probes sent to it, and the peers that were asked to probe it.
        var probeCount = 0
        var asked: [NodeID] = []
        /// Bursts, since it was heard last, at whose end its process waited.
        var waitCount = 0
        /// It and this node watch each other.
        var isWatched = true
        /// It sent a heartbeat since this node watches it, so its map shows the same.
        var exchangesHeartbeats = false
        /// The times at which other nodes said that they do not hear it, and whether that counts as a vote.
        var votes: [NodeID: (at: MonotonicTime, isCounted: Bool)] = [:]
        /// The nonce of its last burst, with which votes are asked for.
        var ballot: UInt32 = 0
        var nextBallot: MonotonicTime = .zero
        var share = VoteCount.Share.few
        /// The first of the last inspections in a row that found its process stopped.
        var stoppedSince: MonotonicTime?
        var path: PeerPathStateMachine

        init(id: NodeID, lastHeard: MonotonicTime, configuration: MembershipConfiguration) {
            (self.id, self.lastHeard) = (id, lastHeard)
            path = PeerPathStateMachine(configuration: configuration)
        }

        var lateness: Duration { .milliseconds(Int64(vitals?.latenessMilliseconds ?? 0)) }
    }

    package let local: NodeID
    package let configuration: MembershipConfiguration
    /// This machine, as ``HeartbeatVitals/Process/host`` identifies it; 0 if that is unknown.
    private let host: UInt64
    /// Ordered by name, so that every run visits them in the same order.
    private var peers: [Peer] = []
    /// Only looked up.
    private var indexes: [NodeID: Int] = [:]
    private var plan = WatchPlan.fullMesh
    /// The indexes of the watched peers.
    private var watched: [Int] = []
    /// The peers that are proven dead.
    private var provenDead: [NodeID] = []
    private var distant: DistantPeersStateMachine
    /// Peers that are not watched, and whose paths are cut or are checked.
    private var checkedPaths: [NodeID] = []
    private var lastTick: MonotonicTime?
    private var nextHeartbeat: MonotonicTime = .zero
    private var nextNonce: UInt32 = 1
    /// Late ticks since the start.
    package private(set) var lateTickCount: UInt64 = 0

    /// Members that were proven dead, or that the map lost, and when. Those whose promises have ended are removed.
    private var lost: [(id: NodeID, at: MonotonicTime)] = []
    private var ownLateness = RecentMaximum()
    package private(set) var promises: PromiseStateMachine

    package init(
        local: NodeID, configuration: MembershipConfiguration = MembershipConfiguration(), host: UInt64 = 0
    ) {
        self.local = local
        self.configuration = configuration
        self.host = host
        promises = PromiseStateMachine(configuration: configuration)
        distant = DistantPeersStateMachine(configuration: configuration)
    }

    /// The greatest lateness of this node's ticks in the last second or two.
    package var lateness: Duration { ownLateness.value }

    /// The peers that this node watches, by name.
    package var watchedPeers: [NodeID] { watched.map { peers[$0].id } }

    /// All peers, by name.
    package var peerHealth: [(id: NodeID, health: Health)] {
        peers.map { peer in
            switch peer.verdict {
            case .alive: (peer.id, .alive)
            case .suspected: (peer.id, .suspected)
            case .confirmedDead: (peer.id, .confirmedDead)
            }
        }
    }

    /// Handles one event. The actions must be carried out in order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .received(let message, let sender, let vitals):
            note(vitals, from: sender, now: now)
            receive(message, from: sender, now: now, actions: &actions)
        case .heard(let id):
            if let index = index(of: id), !peers[index].isWatched { distant.heardOnLink(id, now: now) }
            noteArrival(from: id, now: now, actions: &actions)
        case .linkUp(let id):
            guard let index = index(of: id) else { break }
            peers[index].isLinkLost = false
            noteAlive(of: id, now: now, actions: &actions)
        case .linkLost(let id):
            guard let index = index(of: id) else { break }
            peers[index].isLinkLost = true
            if !peers[index].isWatched { distant.examine(id, now: now) }
        case .connectRefused(let id): noteRefusal(by: id, now: now, actions: &actions)
        case .inspected(let id, let state): conclude(about: id, state, now: now, actions: &actions)
        case .membersChanged(let members, let plan): adopt(members, plan, now: now, actions: &actions)
        case .excluded:
            adopt([], .fullMesh, now: now, actions: &actions)
            promises.exclude()
        case .mapConfirmed(let number, let isDone): promises.confirmed(number, isDone: isDone, now: now)
        case .tick: tick(now: now, actions: &actions)
        }
        evaluatePromises(after: input, now: now, actions: &actions)
        return actions
    }

    private mutating func evaluatePromises(after input: Input, now: MonotonicTime, actions: inout [Action]) {
        switch input {
        case .heard, .linkUp, .linkLost, .inspected: return
        case .received, .connectRefused, .membersChanged, .excluded, .mapConfirmed, .tick: break
        }
        for case .confirmMap(let number) in promises.evaluate(gone: provenDead, now: now) {
            actions.append(.confirmMap(number))
        }
    }

    private mutating func findProvenDead() {
        provenDead = peers.filter { if case .confirmedDead(let reason) = $0.verdict { reason.isProven } else { false } }
            .map(\.id)
    }

    // MARK: Time

    private mutating func tick(now: MonotonicTime, actions: inout [Action]) {
        // Without peers ticks are rarer. That is not lateness.
        guard !peers.isEmpty else { return }
        if let lastTick {
            ownLateness.note(max(now - lastTick - configuration.tickInterval, .zero), now: now)
            if now - lastTick > configuration.latenessMax {
                lateTickCount += 1
                discardSilence(now: now, actions: &actions)
            }
        }
        lastTick = now
        let isHeartbeatDue = now >= nextHeartbeat
        if isHeartbeatDue {
            nextHeartbeat = now + configuration.heartbeatInterval
            for index in watched {
                let id = peers[index].id
                actions += promises.heartbeats(to: id, now: now).map { .send($0, to: id) }
            }
        }
        for index in watched {
            judge(index, now: now, actions: &actions)
            checkPath(index, isHeartbeatDue: isHeartbeatDue, now: now, actions: &actions)
        }
        examineDistant(isHeartbeatDue: isHeartbeatDue, now: now, actions: &actions)
    }

    private mutating func examineDistant(isHeartbeatDue: Bool, now: MonotonicTime, actions: inout [Action]) {
        guard !plan.isFullMesh else { return }
        let roundTrip = isHeartbeatDue ? promises.roundTripMax : nil
        for step in distant.tick(heartbeatDueWith: roundTrip, now: now) {
            switch step {
            case .probe(let id):
                actions.append(.send(.probe(nonce: nextNonce, origin: nil), to: id))
                nextNonce &+= 1
            case .doubted(let id): doubt(id, now: now)
            }
        }
        guard !checkedPaths.isEmpty else { return }
        for id in checkedPaths {
            guard let index = index(of: id) else { continue }
            checkPath(index, isHeartbeatDue: isHeartbeatDue, now: now, actions: &actions)
        }
        checkedPaths = checkedPaths.filter { id in index(of: id).map { !peers[$0].path.isAtRest } ?? false }
    }

    /// There is a reason to check the path to a peer.
    private mutating func doubt(_ id: NodeID, now: MonotonicTime) {
        guard let index = index(of: id) else { return }
        if !peers[index].isWatched, !checkedPaths.contains(id) {
            guard checkedPaths.count < configuration.pathCheckCountMax else { return }
            checkedPaths.append(id)
        }
        peers[index].path.doubted(now: now)
    }

    private mutating func judge(_ index: Int, now: MonotonicTime, actions: inout [Action]) {
        let peer = peers[index]
        switch peer.verdict {
        case .confirmedDead(.silence): countVotes(index, now: now, actions: &actions)
        case .confirmedDead: break
        case .alive:
            let silence = now - peer.lastHeard
            guard silence > silenceMax(of: peer) else {
                if silence > configuration.silenceMax / 2 { inspect(peer, actions: &actions) }
                return
            }
            suspect(index, reason: .silence, now: now, actions: &actions)
            // A stopped process answers no probe, so a burst would show nothing.
            inspect(peer, actions: &actions)
        case .suspected(var burst):
            guard now - burst.began < configuration.burstDuration else {
                return end(burst, of: index, now: now, actions: &actions)
            }
            sendProbes(of: &burst, to: index, now: now, actions: &actions)
            peers[index].verdict = .suspected(burst)
            if peer.stoppedSince != nil { inspect(peer, actions: &actions) }
        }
    }

    /// The silence that raises a suspicion. It grows with the lateness that both sides report.
    private func silenceMax(of peer: Peer) -> Duration {
        // A link shows that the peer's process exists, not that it knows this node. It exchanges no heartbeats with
        // this node until the map has reached it.
        guard peer.exchangesHeartbeats else { return configuration.firstContactTimeout }
        let delays = [lateness, peer.lateness].filter { $0 > configuration.latenessSlack }
        return configuration.silenceMax + min(delays.reduce(.zero, +), configuration.extensionMax)
    }

    private mutating func end(_ burst: Burst, of index: Int, now: MonotonicTime, actions: inout [Action]) {
        if !inspect(peers[index], actions: &actions) { confirm(index, .silence, now: now, actions: &actions) }
    }

    /// Requests an inspection of a process on this machine. Returns false if the peer runs on another one.
    @discardableResult
    private func inspect(_ peer: Peer, actions: inout [Action]) -> Bool {
        guard let process = peer.vitals?.process, process.host == host, host != 0 else { return false }
        actions.append(.inspect(peer.id, process))
        return true
    }

    private mutating func conclude(
        about id: NodeID, _ state: ProcessState, now: MonotonicTime, actions: inout [Action]
    ) {
        guard let index = index(of: id) else { return }
        let stoppedSince = state == .stopped ? peers[index].stoppedSince ?? now : nil
        peers[index].stoppedSince = stoppedSince
        guard case .suspected(var burst) = peers[index].verdict else { return }
        peers[index].process = state
        let isUnderWay = now - burst.began < configuration.burstDuration
        switch state {
        case .gone: confirm(index, .processGone, now: now, actions: &actions)
        case .stopped:
            // Until then it might run on with permission to answer.
            guard let stoppedSince, now - stoppedSince >= promises.stallMax else { return }
            confirm(index, .processStopped, now: now, actions: &actions)
        case .idle where isUnderWay, .waiting where isUnderWay: break
        case .idle:
            burst.idleCount += 1
            peers[index].verdict = .suspected(burst)
            if burst.idleCount > 1 { confirm(index, .silence, now: now, actions: &actions) }
        case .waiting:
            guard now - peers[index].lastHeard < configuration.starvationMax else {
                return confirm(index, .silence, now: now, actions: &actions)
            }
            peers[index].waitCount += 1
            var next = Burst(nonce: nextNonce, began: now, sentCount: 0, helpers: helpers(for: id))
            nextNonce &+= 1
            (peers[index].ballot, peers[index].votes) = (next.nonce, [:])
            sendProbes(of: &next, to: index, now: now, actions: &actions)
            peers[index].verdict = .suspected(next)
        }
    }

    private mutating func confirm(
        _ index: Int, _ reason: DeathReason, now: MonotonicTime, actions: inout [Action]
    ) {
        if reason.isProven { lose(peers[index].id, now: now) }
        peers[index].verdict = .confirmedDead(reason)
        if reason.isProven { findProvenDead() }
        actions.append(.confirmedDead(peers[index].id, reason))
    }

    // MARK: Votes

    private mutating func lose(_ id: NodeID, now: MonotonicTime) {
        let promiseMax = configuration.silenceMax + configuration.promiseExtensionMax
        lost.removeAll { $0.id == id || now - $0.at >= promiseMax }
        lost.append((id, now))
    }

    /// The members, or those of the given watchers, that are lost and whose promises to others may not have ended.
    private func lostCount(among watchers: [NodeID]?, now: MonotonicTime) -> Int {
        let promiseMax = configuration.silenceMax + configuration.promiseExtensionMax
        return lost.count { entry in
            guard now - entry.at < promiseMax, watchers?.contains(entry.id) ?? true else { return false }
            // One that was found to be alive is counted as such.
            guard let index = index(of: entry.id), case .confirmedDead(let reason) = peers[index].verdict else {
                return index(of: entry.id) == nil
            }
            return reason.isProven
        }
    }

    /// Asks all others, or the other watchers, whether they hear a peer that is silent here, as long as it is a member.
    private mutating func countVotes(_ index: Int, now: MonotonicTime, actions: inout [Action]) {
        let (id, nonce) = (peers[index].id, peers[index].ballot)
        let watchers = plan.watchers(of: id)
        let voters = (watchers ?? peers.map(\.id)).filter { $0 != local && $0 != id && !provenDead.contains($0) }
        var (countedCount, uncountedCount) = (0, 0)
        for voter in voters {
            guard let vote = peers[index].votes[voter], now - vote.at <= configuration.voteLifetime else { continue }
            if vote.isCounted { countedCount += 1 } else { uncountedCount += 1 }
        }
        let isVoter = watchers?.contains(local) ?? true
        let vote = isVoter ? promises.vote(against: id, now: now) : .none
        switch vote {
        case .none: break
        case .uncounted: uncountedCount += 1
        case .counted: countedCount += 1
        }
        if vote != .none { promises.voted(against: id, now: now) }
        let count = VoteCount(
            voterCount: voters.count + (isVoter ? 1 : 0), lostCount: lostCount(among: watchers, now: now),
            watcherCount: watchers?.count, countedCount: countedCount, uncountedCount: uncountedCount)
        note(count.share, of: index, &actions)
        guard now >= peers[index].nextBallot else { return }
        peers[index].nextBallot = now + configuration.heartbeatInterval
        for voter in voters {
            guard let place = self.index(of: voter), case .alive = peers[place].verdict else { continue }
            actions.append(.send(.indirectRequest(nonce: nonce, target: id), to: voter))
        }
    }

    private mutating func note(_ share: VoteCount.Share, of index: Int, _ actions: inout [Action]) {
        guard share != peers[index].share else { return }
        peers[index].share = share
        switch share {
        case .majority: actions.append(.certain(peers[index].id))
        case .half: actions.append(.half(peers[index].id))
        case .few: actions.append(.uncertain(peers[index].id))
        }
    }

    /// The vote of this node for another one that asks. A node that was late itself does not know whether it would have
    /// heard the peer.
    private func vote(against peer: Peer, now: MonotonicTime) -> PromiseStateMachine.Vote {
        if let lastTick, now - lastTick > configuration.latenessMax { return .none }
        guard peer.isWatched, now - peer.lastHeard >= configuration.silenceMax / 2 else { return .none }
        return promises.vote(against: peer.id, now: now)
    }

    private mutating func discardSilence(now: MonotonicTime, actions: inout [Action]) {
        for index in peers.indices {
            peers[index].lastHeard = max(peers[index].lastHeard, now)
            switch peers[index].verdict {
            case .alive, .confirmedDead(.processGone), .confirmedDead(.processStopped): break
            case .suspected, .confirmedDead(.silence):
                peers[index].verdict = .alive
                peers[index].share = .few
                actions.append(.discarded(peers[index].id))
            }
        }
    }

    // MARK: Paths

    private mutating func checkPath(
        _ index: Int, isHeartbeatDue: Bool, now: MonotonicTime, actions: inout [Action]
    ) {
        let id = peers[index].id
        let nonce = nextNonce
        let steps = peers[index].path.tick(nonce: nonce, isHeartbeatDue: isHeartbeatDue, now: now)
        guard !steps.isEmpty else { return }
        nextNonce &+= 1
        let helpers = helpers(for: id)
        for step in steps {
            switch step {
            case .probe(let nonce): actions.append(.send(.probe(nonce: nonce, origin: nil), to: id))
            case .ask(let nonce, let one):
                for helper in one.map({ [$0] }) ?? helpers {
                    actions.append(.send(.indirectRequest(nonce: nonce, target: id), to: helper))
                }
            case .cut(let helper): actions.append(.pathCut(id, via: helper))
            case .restored: actions.append(.pathRestored(id))
            }
        }
    }

    /// The helper through which a peer answers while its path is cut.
    package func helper(to id: NodeID) -> NodeID? { index(of: id).flatMap { peers[$0].path.helper } }

    // MARK: Suspicion

    private mutating func suspect(
        _ index: Int, reason: SuspicionReason, now: MonotonicTime, actions: inout [Action]
    ) {
        let id = peers[index].id
        var burst = Burst(nonce: nextNonce, began: now, sentCount: 0, helpers: helpers(for: id))
        nextNonce &+= 1
        (peers[index].ballot, peers[index].votes) = (burst.nonce, [:])
        actions.append(.suspected(id, reason))
        sendProbes(of: &burst, to: index, now: now, actions: &actions)
        peers[index].verdict = .suspected(burst)
    }

    /// Sends the probes that are due: the first at once, the last when a third of the burst is left for its answer.
    /// They are spread over time, so that one short loss does not affect all of them.
    private mutating func sendProbes(
        of burst: inout Burst, to index: Int, now: MonotonicTime, actions: inout [Action]
    ) {
        let target = peers[index].id
        let gap = configuration.burstDuration / max(1, configuration.probeCount)
        while burst.sentCount < configuration.probeCount, now - burst.began >= gap * burst.sentCount {
            burst.sentCount += 1
            actions.append(.send(.probe(nonce: burst.nonce, origin: nil), to: target))
            for helper in burst.helpers {
                actions.append(.send(.indirectRequest(nonce: burst.nonce, target: target), to: helper))
            }
        }
        peers[index].probeCount = burst.sentCount
        peers[index].asked = burst.helpers
    }

    /// The peers that can be asked: those that are not suspected themselves, starting after the target, to distribute
    /// the work.
    private func helpers(for target: NodeID) -> [NodeID] {
        let candidates = peers.filter { peer in
            guard case .alive = peer.verdict else { return false }
            return peer.id != target && peer.wasHeard && peer.isWatched
        }
        let start = candidates.firstIndex { target < $0.id } ?? 0
        let rotated = candidates[start...] + candidates[..<start]
        return rotated.prefix(configuration.helperCountMax).map(\.id)
    }

    private mutating func noteRefusal(by id: NodeID, now: MonotonicTime, actions: inout [Action]) {
        guard let index = index(of: id) else { return }
        if case .confirmedDead = peers[index].verdict { return }
        if peers[index].isLinkLost {
            confirm(index, .processGone, now: now, actions: &actions)
        } else if peers[index].isWatched, case .alive = peers[index].verdict {
            suspect(index, reason: .connectionRefused, now: now, actions: &actions)
        }
    }

    /// Any byte shows that the peer runs. It shows that the peer is alive if this node's packets arrive as well, or if
    /// the peer is late: it may not have read them.
    private mutating func noteArrival(from id: NodeID, now: MonotonicTime, actions: inout [Action]) {
        guard let index = index(of: id) else { return }
        peers[index].stoppedSince = nil
        let isLate = peers[index].lateness > configuration.latenessMax
        if isLate || promises.hasContact(with: id, now: now) { noteAlive(of: id, now: now, actions: &actions) }
    }

    /// The peer is alive, even if silence had confirmed its death. The exception is a peer whose process has ended: a
    /// late datagram does not withdraw its death, only a new link does.
    private mutating func noteAlive(of id: NodeID, now: MonotonicTime, actions: inout [Action]) {
        guard let index = index(of: id) else { return }
        peers[index].lastHeard = max(peers[index].lastHeard, now)
        peers[index].wasHeard = true
        peers[index].waitCount = 0
        peers[index].stoppedSince = nil
        peers[index].share = .few
        switch peers[index].verdict {
        case .alive: break
        case .confirmedDead(.processGone) where peers[index].isLinkLost: break
        case .suspected, .confirmedDead:
            peers[index].verdict = .alive
            if !provenDead.isEmpty { findProvenDead() }
            actions.append(.recovered(id))
        }
    }

    // MARK: Datagrams

    private mutating func note(_ vitals: HeartbeatVitals?, from sender: NodeID, now: MonotonicTime) {
        guard let index = index(of: sender) else { return }
        peers[index].lastDatagram = now
        peers[index].datagramCount += 1
        if plan.isFullMesh { peers[index].exchangesHeartbeats = true }
        if !peers[index].isWatched { distant.heardDatagram(sender) }
        if let vitals { peers[index].vitals = vitals }
        promises.heard(sender, now: now)
    }

    private mutating func receive(
        _ message: HeartbeatMessage, from sender: NodeID, now: MonotonicTime, actions: inout [Action]
    ) {
        guard let index = index(of: sender) else { return }
        switch message {
        case .promise(let promise): promises.received(promise, from: sender, now: now)
        case .answer, .indirectAnswer, .unheard, .unheardUncounted: promises.answered(by: sender, now: now)
        case .heartbeat: promises.receivedHeartbeat(from: sender)
        case .probe, .indirectRequest: break
        }
        noteArrival(from: sender, now: now, actions: &actions)
        switch message {
        case .heartbeat, .promise: peers[index].exchangesHeartbeats = true
        case .probe(let nonce, let origin):
            actions.append(.send(.answer(nonce: nonce, origin: origin), to: sender))
            // The origin asks through a helper, perhaps because this node's packets do not reach it.
            if let origin { doubt(origin, now: now) }
        case .answer(let nonce, let origin):
            guard let origin, origin != local else {
                return peers[index].path.answered(nonce: nonce)
            }
            guard self.index(of: origin) != nil else { return }
            actions.append(.send(.indirectAnswer(nonce: nonce, target: sender), to: origin))
        case .indirectRequest(let nonce, let target):
            guard target != sender, let index = self.index(of: target) else { return }
            actions.append(.send(.probe(nonce: nonce, origin: sender), to: target))
            switch vote(against: peers[index], now: now) {
            case .none: return
            case .counted: actions.append(.send(.unheard(nonce: nonce, target: target), to: sender))
            case .uncounted: actions.append(.send(.unheardUncounted(nonce: nonce, target: target), to: sender))
            }
            promises.voted(against: target, now: now)
        case .unheard(let nonce, let target):
            take(voteOf: sender, against: target, nonce: nonce, isCounted: true, now: now)
        case .unheardUncounted(let nonce, let target):
            take(voteOf: sender, against: target, nonce: nonce, isCounted: false, now: now)
        case .indirectAnswer(let nonce, let target):
            guard let index = self.index(of: target) else { return }
            // An answer to an earlier burst or check does not show the present state.
            let isOfCheck = peers[index].path.answered(nonce: nonce, through: sender, now: now)
            guard case .suspected(let burst) = peers[index].verdict, burst.nonce == nonce else {
                if isOfCheck { noteAlive(of: target, now: now, actions: &actions) }
                return
            }
            doubt(target, now: now)
            noteAlive(of: target, now: now, actions: &actions)
        }
    }

    private mutating func take(
        voteOf sender: NodeID, against target: NodeID, nonce: UInt32, isCounted: Bool, now: MonotonicTime
    ) {
        guard let index = index(of: target), nonce == peers[index].ballot else { return }
        switch peers[index].verdict {
        case .suspected, .confirmedDead: peers[index].votes[sender] = (now, isCounted)
        case .alive: break
        }
    }

    // MARK: Members

    private mutating func adopt(
        _ members: [NodeID], _ plan: WatchPlan, now: MonotonicTime, actions: inout [Action]
    ) {
        if peers.isEmpty { lastTick = nil }
        self.plan = plan
        let wanted = members.filter { $0 != local }.sorted().prefix(configuration.peerCountMax)
        let kept = Set(members)
        for peer in peers where !kept.contains(peer.id) { lose(peer.id, now: now) }
        let watchers = plan.watchers(of: local)
        var next: [Peer] = []
        for id in wanted {
            var peer =
                index(of: id).map { peers[$0] } ?? Peer(id: id, lastHeard: now, configuration: configuration)
            let isWatched = watchers?.contains(id) ?? true
            if isWatched != peer.isWatched { change(&peer, isWatched: isWatched, now: now, actions: &actions) }
            next.append(peer)
        }
        peers = next
        indexes = Dictionary(next.enumerated().map { ($1.id, $0) }, uniquingKeysWith: { first, _ in first })
        watched = next.indices.filter { next[$0].isWatched }
        // The majority of another map may be another one. Decisions on the earlier map are void.
        for index in peers.indices {
            peers[index].share = .few
            switch peers[index].verdict {
            // Its promises ended with its process, so it is not lost again.
            case .confirmedDead(.processGone): actions.append(.confirmedDead(peers[index].id, .processGone))
            // It may run again. The next tick inspects it.
            case .confirmedDead(.processStopped): peers[index].verdict = .alive
            case .alive, .suspected, .confirmedDead(.silence): break
            }
        }
        findProvenDead()
        distant.setPeers(next.filter { !$0.isWatched }.map(\.id))
        checkedPaths = checkedPaths.filter { id in index(of: id).map { !peers[$0].isWatched } ?? false }
        promises.setPeers(next.map(\.id), watchers: watchers)
    }

    private func change(_ peer: inout Peer, isWatched: Bool, now: MonotonicTime, actions: inout [Action]) {
        peer.isWatched = isWatched
        peer.exchangesHeartbeats = false
        peer.lastHeard = max(peer.lastHeard, now)
        guard !isWatched else { return }
        switch peer.verdict {
        case .alive, .confirmedDead(.processGone): break
        case .suspected, .confirmedDead(.silence), .confirmedDead(.processStopped):
            // Its watchers decide.
            peer.verdict = .alive
            actions.append(.recovered(peer.id))
        }
    }

    // MARK: Evidence

    /// The current evidence about a peer; nil if it is not watched.
    package func evidence(about id: NodeID, now: MonotonicTime) -> MembershipEvidence? {
        guard let index = index(of: id) else { return nil }
        let peer = peers[index]
        return MembershipEvidence(
            silence: now - peer.lastHeard, sinceDatagram: peer.lastDatagram.map { now - $0 },
            datagramCount: peer.datagramCount, ownLateness: lateness, peerLateness: peer.lateness,
            isLinkLost: peer.isLinkLost, process: peer.process, waitCount: peer.waitCount,
            probeCount: peer.probeCount, asked: peer.asked)
    }

    private func index(of id: NodeID) -> Int? { indexes[id] }
}

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
        /// The members of the newest map that are alive, this node not among them. Proven deaths among them are
        /// confirmed again.
        case membersChanged([NodeID])
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

    /// The members that do not hear a peer, compared with all.
    private enum VoteShare: Sendable {
        case few
        case half
        case majority
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
        /// The times at which other nodes said that they do not hear it.
        var votes: [NodeID: MonotonicTime] = [:]
        /// The nonce of its last burst, with which votes are asked for.
        var ballot: UInt32 = 0
        var nextBallot: MonotonicTime = .zero
        var share = VoteShare.few
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
    }

    /// The greatest lateness of this node's ticks in the last second or two.
    package var lateness: Duration { ownLateness.value }

    /// The watched peers, by name.
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
        case .heard(let peer): noteArrival(from: peer, now: now, actions: &actions)
        case .linkUp(let id):
            guard let index = index(of: id) else { break }
            peers[index].isLinkLost = false
            noteAlive(of: id, now: now, actions: &actions)
        case .linkLost(let id):
            if let index = index(of: id) { peers[index].isLinkLost = true }
        case .connectRefused(let id): noteRefusal(by: id, now: now, actions: &actions)
        case .inspected(let id, let state): conclude(about: id, state, now: now, actions: &actions)
        case .membersChanged(let members): adopt(members, now: now, actions: &actions)
        case .excluded:
            adopt([], now: now, actions: &actions)
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

    private var provenDead: [NodeID] {
        peers.lazy.filter { if case .confirmedDead(let reason) = $0.verdict { reason.isProven } else { false } }
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
            for peer in peers {
                actions += promises.heartbeats(to: peer.id, now: now).map { .send($0, to: peer.id) }
            }
        }
        for index in peers.indices {
            judge(index, now: now, actions: &actions)
            checkPath(index, isHeartbeatDue: isHeartbeatDue, now: now, actions: &actions)
        }
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
        guard peer.datagramCount > 0 else { return configuration.firstContactTimeout }
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
        actions.append(.confirmedDead(peers[index].id, reason))
    }

    // MARK: Votes

    private mutating func lose(_ id: NodeID, now: MonotonicTime) {
        let promiseMax = configuration.silenceMax + configuration.promiseExtensionMax
        lost.removeAll { $0.id == id || now - $0.at >= promiseMax }
        lost.append((id, now))
    }

    /// The members that are lost and whose promises to others may not have ended.
    private func lostCount(now: MonotonicTime) -> Int {
        let promiseMax = configuration.silenceMax + configuration.promiseExtensionMax
        return lost.count { entry in
            guard now - entry.at < promiseMax else { return false }
            // One that was found to be alive is counted as such.
            guard let index = index(of: entry.id), case .confirmedDead(let reason) = peers[index].verdict else {
                return index(of: entry.id) == nil
            }
            return reason.isProven
        }
    }

    /// Asks all others whether they hear a peer that is silent here, as long as it is a member.
    ///
    /// Of n members, a node may answer with the promises of n / 2 others. If k of them are lost, n / 2 - k others that
    /// are alive suffice. A majority of n - 1 has one of these in common, and of n the half has as well, whatever k is.
    private mutating func countVotes(_ index: Int, now: MonotonicTime, actions: inout [Action]) {
        let (id, nonce) = (peers[index].id, peers[index].ballot)
        let gone = provenDead
        let memberCount = peers.count + 1 - gone.count
        var voteCount = peers[index].votes.count { voter, time in
            now - time <= configuration.voteLifetime && self.index(of: voter) != nil && !gone.contains(voter)
        }
        if promises.mayVote(against: id, now: now) {
            promises.voted(against: id, now: now)
            voteCount += 1
        }
        let lostCount = lostCount(now: now)
        let isMajority = voteCount * 2 > memberCount + max(0, lostCount - 1)
        let isHalf = voteCount * 2 == memberCount + lostCount
        note(isMajority ? .majority : isHalf ? .half : .few, of: index, &actions)
        guard now >= peers[index].nextBallot else { return }
        peers[index].nextBallot = now + configuration.heartbeatInterval
        for peer in peers where peer.id != id {
            guard case .alive = peer.verdict else { continue }
            actions.append(.send(.indirectRequest(nonce: nonce, target: id), to: peer.id))
        }
    }

    private mutating func note(_ share: VoteShare, of index: Int, _ actions: inout [Action]) {
        guard share != peers[index].share else { return }
        peers[index].share = share
        switch share {
        case .majority: actions.append(.certain(peers[index].id))
        case .half: actions.append(.half(peers[index].id))
        case .few: actions.append(.uncertain(peers[index].id))
        }
    }

    /// A node that was late itself does not know whether it would have heard the peer.
    private func hears(_ peer: Peer, now: MonotonicTime) -> Bool {
        if let lastTick, now - lastTick > configuration.latenessMax { return true }
        guard promises.mayVote(against: peer.id, now: now) else { return true }
        return now - peer.lastHeard < configuration.silenceMax / 2
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
            return peer.id != target && peer.wasHeard
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
        } else if case .alive = peers[index].verdict {
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
            actions.append(.recovered(id))
        }
    }

    // MARK: Datagrams

    private mutating func note(_ vitals: HeartbeatVitals?, from sender: NodeID, now: MonotonicTime) {
        guard let index = index(of: sender) else { return }
        peers[index].lastDatagram = now
        peers[index].datagramCount += 1
        if let vitals { peers[index].vitals = vitals }
        promises.heard(sender, now: now)
    }

    private mutating func receive(
        _ message: HeartbeatMessage, from sender: NodeID, now: MonotonicTime, actions: inout [Action]
    ) {
        guard index(of: sender) != nil else { return }
        switch message {
        case .promise(let promise): promises.received(promise, from: sender, now: now)
        case .answer, .indirectAnswer, .unheard: promises.answered(by: sender, now: now)
        case .heartbeat, .probe, .indirectRequest: break
        }
        noteArrival(from: sender, now: now, actions: &actions)
        switch message {
        case .heartbeat, .promise: break
        case .probe(let nonce, let origin):
            actions.append(.send(.answer(nonce: nonce, origin: origin), to: sender))
            // The origin asks through a helper, perhaps because this node's packets do not reach it.
            if let origin, let index = index(of: origin) { peers[index].path.doubted(now: now) }
        case .answer(let nonce, let origin):
            guard let origin, origin != local else {
                if let index = index(of: sender) { peers[index].path.answered(nonce: nonce) }
                return
            }
            guard index(of: origin) != nil else { return }
            actions.append(.send(.indirectAnswer(nonce: nonce, target: sender), to: origin))
        case .indirectRequest(let nonce, let target):
            guard target != sender, let index = index(of: target) else { return }
            actions.append(.send(.probe(nonce: nonce, origin: sender), to: target))
            if !hears(peers[index], now: now) {
                promises.voted(against: target, now: now)
                actions.append(.send(.unheard(nonce: nonce, target: target), to: sender))
            }
        case .unheard(let nonce, let target):
            guard let index = index(of: target), nonce == peers[index].ballot else { return }
            switch peers[index].verdict {
            case .suspected, .confirmedDead: peers[index].votes[sender] = now
            case .alive: break
            }
        case .indirectAnswer(let nonce, let target):
            guard let index = index(of: target) else { return }
            // An answer to an earlier burst or check does not show the present state.
            let isOfCheck = peers[index].path.answered(nonce: nonce, through: sender, now: now)
            guard case .suspected(let burst) = peers[index].verdict, burst.nonce == nonce else {
                if isOfCheck { noteAlive(of: target, now: now, actions: &actions) }
                return
            }
            peers[index].path.doubted(now: now)
            noteAlive(of: target, now: now, actions: &actions)
        }
    }

    // MARK: Members

    private mutating func adopt(_ members: [NodeID], now: MonotonicTime, actions: inout [Action]) {
        if peers.isEmpty { lastTick = nil }
        let wanted = members.filter { $0 != local }.sorted().prefix(configuration.peerCountMax)
        for peer in peers where !members.contains(peer.id) { lose(peer.id, now: now) }
        peers = wanted.map { id in
            peers.first { $0.id == id } ?? Peer(id: id, lastHeard: now, configuration: configuration)
        }
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
        promises.setPeers(peers.map(\.id))
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

    private func index(of id: NodeID) -> Int? { peers.firstIndex { $0.id == id } }
}

package import ApusCore
package import ApusWire

/// The failure detector of one node (D4): who is alive, as far as this node can tell.
///
/// It only raises suspicion and confirms it. Ownership changes by compare-and-swap elsewhere, so that
/// a wrong verdict here costs a hand-over and never the data.
///
/// Layers, after SWIM (Das, Gupta, Motivala 2002), Lifeguard (Dadgar, Phillips, Currey 2017) and
/// Falcon (Leners et al. 2011):
/// - **Process death.** A link that was lost, followed by a refused connection, is certain: the peer's
///   listening socket is gone. It is confirmed at once; `kill -9` is seen in milliseconds.
/// - **Silence.** No bytes of any kind for `silenceMax` raise a suspicion. A burst of direct probes, and
///   as many through each helper, must then fail. One probe each is not safe: at 5 % loss three nodes
///   evict each other every two hours; the burst brings that to none.
/// - **Own lateness.** An observer that did not run for `latenessMax` takes back every suspicion that rests
///   on silence, confirmed or not: it cannot tell the peer's silence from its own sleep.
///
/// A refused connection without a lost link before it (the peer was never linked) raises a suspicion
/// without waiting for silence, since a member listens before it joins.
///
/// Only the incarnations that ``Input/membersChanged(_:)`` names are watched and listened to; a dead
/// incarnation never returns. Members that join get `firstContactTimeout` to be heard first.
///
/// Pure: confined to whoever owns it; the caller passes the time and sends what it is told to.
package struct MembershipStateMachine: Sendable {
    package enum Input: Sendable {
        /// An authenticated datagram that is not a replay.
        case received(HeartbeatMessage, from: NodeID)
        /// Any bytes from the peer on any link.
        case heard(NodeID)
        case linkUp(NodeID)
        /// An established link ended.
        case linkLost(NodeID)
        /// The peer's machine refused a connection to its transport port.
        case connectRefused(NodeID)
        /// The members of the newest map that are alive, this node not among them.
        case membersChanged([NodeID])
        /// Time has passed; wanted every 10 ms, and no rarer than `latenessMax`.
        case tick
    }

    package enum Action: Sendable, Equatable {
        case send(HeartbeatMessage, to: NodeID)
        /// Probing began.
        case suspected(NodeID, SuspicionReason)
        /// The peer was heard: its suspicion, or its confirmed death, is taken back.
        case recovered(NodeID)
        /// This node was late; its suspicion, or a death confirmed by silence, is taken back.
        case discarded(NodeID)
        /// Every layer agrees. Whoever decides on ownership acts on it.
        case confirmedDead(NodeID, DeathReason)
    }

    package enum SuspicionReason: String, Sendable, Equatable {
        case silence
        case connectionRefused = "connection refused"
    }

    package enum DeathReason: String, Sendable, Equatable {
        /// Nothing was heard and all probes failed.
        case silence
        /// A link was lost and the next connection was refused.
        case processGone = "process gone"
    }

    /// What this node thinks of a peer, for status pages.
    package enum Health: String, Sendable, Equatable {
        case alive, suspected
        case confirmedDead = "confirmed dead"
    }

    private struct Burst: Sendable {
        var nonce: UInt32
        var began: MonotonicTime
        var sentCount: Int
        var helpers: [NodeID]
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
    }

    package let local: NodeID
    package let configuration: MembershipConfiguration
    /// Ordered by name, so that every run goes through them in the same order.
    private var peers: [Peer] = []
    private var lastTick: MonotonicTime?
    private var nextHeartbeat: MonotonicTime = .zero
    private var nextNonce: UInt32 = 1
    /// Ticks that came too late since the start.
    package private(set) var lateTickCount: UInt64 = 0

    package init(local: NodeID, configuration: MembershipConfiguration = MembershipConfiguration()) {
        self.local = local
        self.configuration = configuration
    }

    /// The peers in watch, by name.
    package var peerHealth: [(id: NodeID, health: Health)] {
        peers.map { peer in
            switch peer.verdict {
            case .alive: (peer.id, .alive)
            case .suspected: (peer.id, .suspected)
            case .confirmedDead: (peer.id, .confirmedDead)
            }
        }
    }

    /// Takes one event; the actions are to be carried out in their order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .received(let message, let sender): receive(message, from: sender, now: now, actions: &actions)
        case .heard(let peer): noteLife(of: peer, now: now, actions: &actions)
        case .linkUp(let id):
            guard let index = index(of: id) else { break }
            peers[index].isLinkLost = false
            noteLife(of: id, now: now, actions: &actions)
        case .linkLost(let id):
            if let index = index(of: id) { peers[index].isLinkLost = true }
        case .connectRefused(let id): noteRefusal(by: id, now: now, actions: &actions)
        case .membersChanged(let members): adopt(members, now: now)
        case .tick: tick(now: now, actions: &actions)
        }
        return actions
    }

    // MARK: Time

    private mutating func tick(now: MonotonicTime, actions: inout [Action]) {
        if let lastTick, now - lastTick > configuration.latenessMax {
            lateTickCount += 1
            discardSilence(now: now, actions: &actions)
        }
        lastTick = now
        if now >= nextHeartbeat {
            nextHeartbeat = now + configuration.heartbeatInterval
            for peer in peers { actions.append(.send(.heartbeat, to: peer.id)) }
        }
        for index in peers.indices { judge(index, now: now, actions: &actions) }
    }

    private mutating func judge(_ index: Int, now: MonotonicTime, actions: inout [Action]) {
        let peer = peers[index]
        switch peer.verdict {
        case .confirmedDead: break
        case .alive:
            let silenceMax = peer.wasHeard ? configuration.silenceMax : configuration.firstContactTimeout
            guard now - peer.lastHeard > silenceMax else { return }
            suspect(index, reason: .silence, now: now, actions: &actions)
        case .suspected(var burst):
            guard now - burst.began < configuration.burstDuration else {
                peers[index].verdict = .confirmedDead(.silence)
                actions.append(.confirmedDead(peer.id, .silence))
                return
            }
            sendProbes(of: &burst, to: peer.id, now: now, actions: &actions)
            peers[index].verdict = .suspected(burst)
        }
    }

    private mutating func discardSilence(now: MonotonicTime, actions: inout [Action]) {
        for index in peers.indices {
            peers[index].lastHeard = max(peers[index].lastHeard, now)
            switch peers[index].verdict {
            case .alive, .confirmedDead(.processGone): break
            case .suspected, .confirmedDead(.silence):
                peers[index].verdict = .alive
                actions.append(.discarded(peers[index].id))
            }
        }
    }

    // MARK: Suspicion

    private mutating func suspect(
        _ index: Int, reason: SuspicionReason, now: MonotonicTime, actions: inout [Action]
    ) {
        let id = peers[index].id
        var burst = Burst(nonce: nextNonce, began: now, sentCount: 0, helpers: helpers(for: id))
        nextNonce &+= 1
        actions.append(.suspected(id, reason))
        sendProbes(of: &burst, to: id, now: now, actions: &actions)
        peers[index].verdict = .suspected(burst)
    }

    /// Sends the probes that are due: the first at once, the last when a third of the burst is left for
    /// its answer. Spread over time, one short loss does not swallow them all.
    private func sendProbes(of burst: inout Burst, to target: NodeID, now: MonotonicTime, actions: inout [Action]) {
        let gap = configuration.burstDuration / max(1, configuration.probeCount)
        while burst.sentCount < configuration.probeCount, now - burst.began >= gap * burst.sentCount {
            burst.sentCount += 1
            actions.append(.send(.probe(nonce: burst.nonce, origin: nil), to: target))
            for helper in burst.helpers {
                actions.append(.send(.indirectRequest(nonce: burst.nonce, target: target), to: helper))
            }
        }
    }

    /// Peers that can be asked: those that are not suspected themselves, starting after the target so that the
    /// work is spread.
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
            peers[index].verdict = .confirmedDead(.processGone)
            actions.append(.confirmedDead(id, .processGone))
        } else if case .alive = peers[index].verdict {
            suspect(index, reason: .connectionRefused, now: now, actions: &actions)
        }
    }

    /// Any byte is life, also of a peer that is confirmed dead by silence. A process that is gone is not called back
    /// by a datagram that was under way: only a new link does that.
    private mutating func noteLife(of id: NodeID, now: MonotonicTime, actions: inout [Action]) {
        guard let index = index(of: id) else { return }
        peers[index].lastHeard = max(peers[index].lastHeard, now)
        peers[index].wasHeard = true
        switch peers[index].verdict {
        case .alive: break
        case .confirmedDead(.processGone) where peers[index].isLinkLost: break
        case .suspected, .confirmedDead:
            peers[index].verdict = .alive
            actions.append(.recovered(id))
        }
    }

    // MARK: Datagrams

    private mutating func receive(
        _ message: HeartbeatMessage, from sender: NodeID, now: MonotonicTime, actions: inout [Action]
    ) {
        guard index(of: sender) != nil else { return }
        noteLife(of: sender, now: now, actions: &actions)
        switch message {
        case .heartbeat: break
        case .probe(let nonce, let origin):
            actions.append(.send(.answer(nonce: nonce, origin: origin), to: sender))
        case .answer(let nonce, let origin):
            guard let origin, origin != local, index(of: origin) != nil else { return }
            actions.append(.send(.indirectAnswer(nonce: nonce, target: sender), to: origin))
        case .indirectRequest(let nonce, let target):
            guard target != sender, index(of: target) != nil else { return }
            actions.append(.send(.probe(nonce: nonce, origin: sender), to: target))
        case .indirectAnswer(let nonce, let target):
            // An answer to an earlier burst says nothing about now.
            guard let index = index(of: target), case .suspected(let burst) = peers[index].verdict,
                burst.nonce == nonce
            else { return }
            noteLife(of: target, now: now, actions: &actions)
        }
    }

    // MARK: Members

    private mutating func adopt(_ members: [NodeID], now: MonotonicTime) {
        let wanted = members.filter { $0 != local }.sorted().prefix(configuration.peerCountMax)
        peers = wanted.map { id in
            peers.first { $0.id == id } ?? Peer(id: id, lastHeard: now)
        }
    }

    private func index(of id: NodeID) -> Int? { peers.firstIndex { $0.id == id } }
}

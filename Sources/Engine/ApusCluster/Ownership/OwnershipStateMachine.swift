package import ApusCore
import OrderedCollections

/// Applies a node's decisions to the cluster map with compare-and-swap, one at a time (D4).
///
/// It holds the newest map from the store, a bounded queue of proposals, and the deaths that the detector confirmed. A
/// lost swap means that another node changed the map. The map is then read again and the decision is made again on it,
/// so two nodes never undo each other's changes.
///
/// **Which deaths may be declared.** Those that are certain: the peer's process cannot act, or a majority of the
/// members does not hear it. A peer that is only silent here may be on the other side of a cut network. If the sides
/// are equal (``Standing/half``), as of two members, the leases in the store decide: the death of a silent member whose
/// lease has run out, and which half of the members do not hear, is certain. Unless a death is proven, it is certain in
/// one revision of the map only: a member that hears a majority again replaces the map, and the others need new votes
/// (``PromiseStateMachine``).
///
/// **Who declares a death.** Every member that confirmed it, in the order of names with `rankDelay` between them.
/// Usually one of them swaps and the others find the death in the map. A death that the detector withdraws, or that the
/// map already shows, is dropped.
///
/// **Large clusters** (``WatchPlan``). Majorities and halves are those of a member's watchers. If half of them do not
/// hear it, its lease decides, even if this node hears all others. The standing of a node is that of its own watchers.
///
/// **Planned moves yield.** They come in a stream. A node that swaps without a pause would leave no time for another
/// node's read and swap. After each such swap, planned moves therefore wait for `plannedPace`, and the next one
/// includes all that were proposed in the meantime. A node whose planned swap came second waits too, for a time that
/// differs between nodes and revisions. Joins, drains and deaths do not wait.
///
/// **Unreachable store.** Nothing is decided. Proposals fail with 10012 after `attemptCountMax` attempts; deaths stay
/// and are tried again. A swap without an answer may have been made, or may still be made. The map is therefore read
/// before the next decision. A planned move does not fail after its attempts while its own swap may still be in the
/// store: its proposer would otherwise continue to use a shard that another node owns.
///
/// **Rolled-back store.** The current map is the newest that this node has seen, and the store may never show less. An
/// earlier revision, another map under the same revision, or a later map with lower epochs or incarnations is the sign
/// of a store that was rolled back. It is treated like another cluster's store, or a damaged or silent one: nothing is
/// decided on it. ``Action/storeChanged(_:)`` reports it, deaths wait, proposals wait and fail with 10012 after their
/// attempts, and the current map stays in force. The store is read every `retryDelay` until it is sound again.
///
/// **The own death.** When a map shows this incarnation as dead, or as another process's, ``Action/fenced`` is emitted
/// once, and no more swaps are made. Later messages of this node carry epochs that no node accepts.
///
/// Pure value: confined to its owner. The shell calls the store and passes the answers back.
package struct OwnershipStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// The wait of the second member by name before it declares a death. The third member waits twice as long.
        package var rankDelay: Duration = .milliseconds(30)
        /// The wait after the store failed or was unsound.
        package var retryDelay: Duration = .milliseconds(50)
        /// A store that has not answered for this long counts as unreadable.
        package var answerTimeout: Duration = .seconds(1)
        /// The least time between two swaps of this node for planned moves.
        package var plannedPace: Duration = .milliseconds(20)
        /// A lost swap of planned moves waits for less than this many times `plannedPace`.
        package var turnCountMax: Int = 5
        /// The interval at which the leases are read while neither side of a cut is a majority.
        package var leaseReadInterval: Duration = .milliseconds(200)
        /// Attempts of one proposal, lost swaps and failures together.
        package var attemptCountMax: Int = 40
        /// The most proposals that wait. A further one is refused with 10007.
        package var proposalCountMax: Int = 256

        package init() {}
    }

    package typealias ProposalID = UInt64

    package enum Input: Sendable {
        /// The store may hold a newer map.
        case refresh
        /// The store, or a peer, reported the store's revision. A map with it may be on its way here already.
        case reported(UInt64)
        /// A decision is proposed. ``Action/settled(_:_:)`` answers it with the same number.
        case propose(ProposalID, OwnershipDecision)
        /// The detector confirmed a death. It is certain if it is proven.
        case confirmedDead(NodeID, isCertain: Bool)
        /// The share of the members of the map with this revision that do not hear a member changed. Ignored if the map
        /// has changed in the meantime.
        case unheard(NodeID, by: Share, revision: UInt64)
        /// The answer to ``Action/readLeases``: the nodes that hold a lease in the store.
        case leases(Set<NodeID>)
        /// The detector withdrew a death.
        case recovered(NodeID)
        /// The answer to ``Action/read``.
        case read(ClusterMap)
        /// The swap was made; the value now has this revision.
        case swapWon(revision: UInt64)
        /// The store holds another revision.
        case swapLost
        /// A read or a swap failed. The swap may have been made or not.
        case storeFailed(ApusError)
        /// Time has passed. Needed every 10 ms while ``isBusy``.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Read the store; answer with `read` or `storeFailed`.
        case read
        /// Swap, if the store still holds the revision; answer with `swapWon`, `swapLost` or `storeFailed`.
        case compareAndSwap(expected: UInt64, ClusterMap)
        /// Read the leases; answer with `leases`, or not at all if they cannot be read.
        case readLeases
        /// The number of members that this node hears compared with the others changed.
        case standingChanged(Standing)
        /// This is the newest map.
        case adopt(ClusterMap)
        /// This node made the newest map. Announce it to the peers.
        case announce(revision: UInt64)
        case settled(ProposalID, Outcome)
        /// The condition of the store changed.
        case storeChanged(StoreCondition)
        /// This incarnation is dead in the map.
        case fenced
    }

    package enum Outcome: Sendable, Equatable {
        /// The decision is in this map, made now or before.
        case decided(ClusterMap)
        case failed(ApusError)
    }

    /// The condition of the store at its newest answer.
    package enum StoreCondition: Sendable, Equatable {
        case sound
        /// It failed, is damaged, or did not answer.
        case unreadable(ApusError)
        /// It is another store, or another cluster's.
        case foreign(ApusError)
        /// It holds an earlier map than this node has seen, or one that does not follow from it.
        case rolledBack(found: UInt64, seen: UInt64)
    }

    /// The size of the side of the cluster that this node hears, itself included, compared with the members that are
    /// not certainly dead.
    package enum Standing: String, Sendable, Equatable {
        case majority
        /// Half of them.
        case half
        case minority
    }

    /// A number of members compared with all.
    package enum Share: Sendable, Equatable {
        case few
        /// At least half of them, but no majority.
        case half
        case majority
    }

    private struct Death: Sendable {
        /// The time from which this node may declare it.
        var from: MonotonicTime
        var isProven: Bool
        /// The members of the newest map that do not hear it.
        var share = Share.few
        /// Its lease in the store has run out.
        var isExpired = false

        var isCertain: Bool { reason != .none }

        /// Why it may be declared; `none` if it may not.
        var reason: MapChange.Reason {
            if isProven { return .processEnded }
            if share == .majority { return .unheardByMajority }
            return share == .half && isExpired ? .leaseExpired : .none
        }
    }

    private struct Proposal: Sendable {
        var id: ProposalID
        var decision: OwnershipDecision
        var attemptCount = 0
        /// The revision that an unanswered swap expected. Until the map is past it, the swap may have been made.
        var unansweredAt: UInt64?

        /// True if it can wait for more urgent proposals.
        var isPlanned: Bool {
            switch decision {
            case .setStandby, .setSecondStandby, .handOver: true
            case .join, .declareDead, .drain, .undrain, .leave, .confirm, .cordon, .weigh, .setWatchRule: false
            }
        }
    }

    private enum Flight: Sendable {
        case idle
        case reading
        /// With the proposals that it applies. An empty list stands for deaths.
        case swapping(ClusterMap, [ProposalID])
    }

    package let configuration: Configuration
    /// This incarnation; nil until it joined.
    package private(set) var local: NodeID?
    /// The number of this process; 0 until it joined.
    private var process: UInt64 = 0
    package private(set) var map: ClusterMap
    /// The wall clock at the newest input, in Unix milliseconds. It is recorded with decisions and decides nothing.
    package var wallMilliseconds: UInt64 = 0
    package private(set) var store: StoreCondition = .sound
    private var flight: Flight = .idle
    /// The time at which the open request was sent to the store.
    private var flightSince: MonotonicTime = .zero
    private var isReadWanted = true
    /// The newest revision that was reported while a request was open.
    private var reported: UInt64 = 0
    private var proposals: [Proposal] = []
    private var deaths: OrderedDictionary<NodeID, Death> = [:]
    package private(set) var standing: Standing = .majority
    /// Which members of the newest map watch which.
    private var plan: WatchPlan
    private var leasesWantedAt: MonotonicTime = .zero
    private var idleUntil: MonotonicTime = .zero
    private var plannedFrom: MonotonicTime = .zero
    private var isFenced = false

    /// - Parameter map: An empty map of the cluster. The store is read first.
    package init(map: ClusterMap, configuration: Configuration = Configuration()) {
        self.map = map
        plan = map.watchPlan
        self.configuration = configuration
    }

    /// True if something waits for the store or for time.
    package var isBusy: Bool {
        if case .idle = flight { return isReadWanted || !proposals.isEmpty || !deaths.isEmpty }
        return true
    }

    /// Handles one event. The actions must be carried out in order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .refresh: isReadWanted = true
        case .reported(let revision): note(reported: revision)
        case .propose(let id, let decision): accept(id, decision, actions: &actions)
        case .confirmedDead(let node, let isCertain): note(deathOf: node, isCertain: isCertain, now: now)
        case .unheard(let node, let share, let revision):
            guard revision == map.revision else { break }
            if share != .few { note(deathOf: node, isCertain: false, now: now) }
            deaths[node]?.share = share
        case .leases(let holders): note(leases: holders)
        case .recovered(let node): deaths[node] = nil
        case .read(let map): finishRead(map, now: now, actions: &actions)
        case .swapWon(let revision): finishSwap(revision: revision, now: now, actions: &actions)
        case .swapLost:
            isReadWanted = true
            yieldPlanned(now: now)
            countAttempt(actions: &actions)
            noteEnd(at: .max)
        case .storeFailed(let error):
            let isForeign = error.code == .stateForeign || error.code == .wrongCluster
            note(store: isForeign ? .foreign(error) : .unreadable(error), actions: &actions)
            noteUnanswered()
            tryAgain(now: now, actions: &actions)
        case .tick: noteSilence(now: now, actions: &actions)
        }
        noteStanding(now: now, actions: &actions)
        next(now: now, actions: &actions)
        return actions
    }

    // MARK: Input

    private mutating func note(reported revision: UInt64) {
        guard revision != map.revision else { return }
        if case .idle = flight {
            isReadWanted = true
        } else {
            reported = max(reported, revision)
        }
    }

    /// The open request ended. A newer map than the store returned was reported in the meantime, or not.
    private mutating func noteEnd(at revision: UInt64) {
        if reported > revision { isReadWanted = true }
        (reported, flight) = (0, .idle)
    }

    private mutating func accept(_ id: ProposalID, _ decision: OwnershipDecision, actions: inout [Action]) {
        if isFenced {
            actions.append(.settled(id, .failed(ApusError(.fenced))))
        } else if proposals.count >= configuration.proposalCountMax {
            actions.append(.settled(id, .failed(ApusError(.overloaded))))
        } else {
            proposals.append(Proposal(id: id, decision: decision))
        }
    }

    private mutating func note(deathOf node: NodeID, isCertain: Bool, now: MonotonicTime) {
        guard map.isAlive(node), node != local else { return }
        guard deaths[node] == nil else {
            if isCertain { deaths[node]?.isProven = true }
            return
        }
        deaths[node] = Death(from: now, isProven: isCertain)
        // The rank counts the members that are left to act, so the death of the first in rank delays nothing. The
        // watchers come first: only they know of a silence.
        let watchers = plan.watchers(of: node) ?? []
        let actors = map.members.filter { $0.state.isAlive && deaths[$0.id] == nil }.map(\.id)
            .sorted { (watchers.contains($0) ? 0 : 1, $0) < (watchers.contains($1) ? 0 : 1, $1) }
        let rank = local.flatMap { actors.firstIndex(of: $0) } ?? actors.count
        deaths[node]?.from = now + configuration.rankDelay * rank
    }

    /// A silent member without a lease does not reach the store either.
    private mutating func note(leases holders: Set<NodeID>) {
        guard standing == .half || isHalfOfWatchersSilent else { return }
        for node in deaths.keys { deaths[node]?.isExpired = !holders.contains(node) }
    }

    /// The members that this node does not hear, in the order of their names.
    package var unheard: [NodeID] { deaths.keys.sorted() }

    private mutating func noteStanding(now: MonotonicTime, actions: inout [Action]) {
        guard let local, map.isAlive(local) else { return }
        let memberCount: Int
        let heardCount: Int
        if let watched = plan.watchers(of: local) {
            // This node hears nothing of the others. Its neighbours in the ring are a sample of all.
            memberCount = 1 + watched.count { deaths[$0]?.isCertain != true }
            heardCount = memberCount - watched.count { deaths[$0].map { !$0.isCertain } ?? false }
        } else {
            memberCount = map.members.count { $0.state.isAlive && deaths[$0.id]?.isCertain != true }
            heardCount = memberCount - deaths.values.count { !$0.isCertain }
        }
        let new: Standing =
            heardCount * 2 > memberCount ? .majority : heardCount * 2 == memberCount ? .half : .minority
        if new != standing {
            standing = new
            leasesWantedAt = now
            actions.append(.standingChanged(new))
        }
        guard standing == .half || isHalfOfWatchersSilent, now >= leasesWantedAt else { return }
        leasesWantedAt = now + configuration.leaseReadInterval
        actions.append(.readLeases)
    }

    /// Half of the watchers of some member do not hear it: its lease decides, whatever this node hears.
    private var isHalfOfWatchersSilent: Bool {
        !plan.isFullMesh && deaths.values.contains { $0.share == .half && !$0.isProven }
    }

    private mutating func note(store condition: StoreCondition, actions: inout [Action]) {
        guard condition != store else { return }
        store = condition
        actions.append(.storeChanged(condition))
    }

    private mutating func noteSilence(now: MonotonicTime, actions: inout [Action]) {
        if case .idle = flight { return }
        guard now - flightSince >= configuration.answerTimeout, store == .sound else { return }
        let error = ApusError(.storageFailed, "the ownership store does not answer; check its disk or its servers")
        note(store: .unreadable(error), actions: &actions)
    }

    /// The request failed. The store is read again after a wait.
    private mutating func tryAgain(now: MonotonicTime, actions: inout [Action]) {
        isReadWanted = true
        idleUntil = now + configuration.retryDelay
        countAttempt(actions: &actions)
        noteEnd(at: .max)
    }

    private mutating func finishRead(_ found: ClusterMap, now: MonotonicTime, actions: inout [Action]) {
        guard found.isSuccessor(of: map) else {
            note(store: .rolledBack(found: found.revision, seen: map.revision), actions: &actions)
            return tryAgain(now: now, actions: &actions)
        }
        noteEnd(at: found.revision)
        note(store: .sound, actions: &actions)
        adopt(found, actions: &actions)
    }

    private mutating func finishSwap(revision: UInt64, now: MonotonicTime, actions: inout [Action]) {
        guard case .swapping(var next, let ids) = flight else { return }
        noteEnd(at: revision)
        note(store: .sound, actions: &actions)
        next.revision = revision
        let done = proposals.filter { ids.contains($0.id) }
        proposals.removeAll { ids.contains($0.id) }
        if done.contains(where: \.isPlanned) { plannedFrom = now + configuration.plannedPace }
        for proposal in done { noteJoin(proposal.decision) }
        adopt(next, actions: &actions)
        for proposal in done { actions.append(.settled(proposal.id, .decided(next))) }
        actions.append(.announce(revision: revision))
    }

    /// Another node's swap came first. Nodes that lost to the same revision try again at different times.
    private mutating func yieldPlanned(now: MonotonicTime) {
        guard case .swapping(_, let ids) = flight, let local else { return }
        guard proposals.contains(where: { $0.isPlanned && ids.contains($0.id) }) else { return }
        let turnCount = UInt64(min(map.members.count { $0.state.isAlive }, configuration.turnCountMax))
        let hash = StableHash.mix(StableHash.hash(local.name.rawValue) ^ StableHash.mix(map.revision))
        plannedFrom = now + configuration.plannedPace * Int(hash % max(turnCount, 1))
    }

    private mutating func noteUnanswered() {
        guard case .swapping(_, let ids) = flight else { return }
        for index in proposals.indices where ids.contains(proposals[index].id) {
            proposals[index].unansweredAt = map.revision
        }
    }

    /// True for a planned move that may be in the store without this node's knowledge.
    private func isOpen(_ proposal: Proposal) -> Bool {
        proposal.isPlanned && proposal.unansweredAt == map.revision
    }

    /// Counts a failed attempt: of the proposals in the swap, or of the first one if the store cannot be read.
    private mutating func countAttempt(actions: inout [Action]) {
        let tried: [ProposalID]
        switch flight {
        case .idle: tried = []
        case .reading: tried = proposals.prefix(1).map(\.id)
        case .swapping(_, let ids): tried = ids
        }
        for id in tried {
            guard let index = proposals.firstIndex(where: { $0.id == id }) else { continue }
            proposals[index].attemptCount += 1
            guard proposals[index].attemptCount >= configuration.attemptCountMax, !isOpen(proposals[index]) else {
                continue
            }
            proposals.remove(at: index)
            actions.append(.settled(id, .failed(ApusError(.noOwnership))))
        }
    }

    private mutating func adopt(_ newer: ClusterMap, actions: inout [Action]) {
        guard newer.revision > map.revision else { return }
        map = newer
        plan = newer.watchPlan
        for node in deaths.keys.elements {
            guard map.isAlive(node) else {
                deaths[node] = nil
                continue
            }
            // The detector confirms proven deaths again for each map, because a stopped process may run again.
            deaths[node]?.share = .few
            deaths[node]?.isProven = false
            deaths[node]?.isExpired = false
        }
        actions.append(.adopt(newer))
        guard let local, !isFenced, !map.isAlive(local, process: process), !hasLeft(local) else { return }
        isFenced = true
        deaths = [:]
        actions.append(.fenced)
        for proposal in proposals { actions.append(.settled(proposal.id, .failed(ApusError(.fenced)))) }
        proposals = []
    }

    /// This process is the member that the decision made, or made before.
    private mutating func noteJoin(_ decision: OwnershipDecision) {
        guard case .join(let node, _, _, _, let process) = decision else { return }
        (local, self.process) = (node, process)
    }

    private func hasLeft(_ node: NodeID) -> Bool {
        map.members.contains { $0.id == node && $0.state == .left }
    }

    // MARK: The next step

    private mutating func next(now: MonotonicTime, actions: inout [Action]) {
        guard case .idle = flight, now >= idleUntil else { return }
        if isReadWanted {
            isReadWanted = false
            flight = .reading
            flightSince = now
            actions.append(.read)
            return
        }
        if let next = decideDeaths(now: now) {
            flight = .swapping(next, [])
            flightSince = now
            actions.append(.compareAndSwap(expected: map.revision, next))
            return
        }
        let isPlannedDue = now >= plannedFrom
        // Urgent proposals go first and alone. Planned moves go together.
        let urgent = proposals.first { !$0.isPlanned }
        let candidates = urgent.map { [$0] } ?? (isPlannedDue ? proposals : [])
        guard !candidates.isEmpty else { return }
        var decided = map
        var deciding: [ProposalID] = []
        for proposal in candidates {
            do {
                if let next = try decided.applying(proposal.decision, origin: origin(of: proposal.decision)) {
                    decided = next
                    deciding.append(proposal.id)
                    continue
                }
                noteJoin(proposal.decision)
                // Nothing to change: the decision is in the map already, or is obsolete.
                actions.append(.settled(proposal.id, .decided(map)))
            } catch {
                actions.append(.settled(proposal.id, .failed(error)))
            }
            proposals.removeAll { $0.id == proposal.id }
        }
        if deciding.isEmpty { return next(now: now, actions: &actions) }
        flight = .swapping(decided, deciding)
        flightSince = now
        actions.append(.compareAndSwap(expected: map.revision, decided))
    }

    /// All deaths that are due, in one map; nil if there are none. A node that has not joined declares no deaths.
    private func decideDeaths(now: MonotonicTime) -> ClusterMap? {
        guard let local, map.isAlive(local) else { return nil }
        let due = deaths.filter { $0.value.from <= now && $0.value.isCertain }
        guard let first = due.values.first else { return nil }
        // Deaths of several reasons are declared together too, so that no shard goes to another of the dead.
        let isOneReason = due.values.allSatisfy { $0.reason == first.reason }
        let origin = ChangeOrigin(
            maker: local, milliseconds: wallMilliseconds, reason: isOneReason ? first.reason : .none)
        return try? map.applying(.declareDead(Array(due.keys)), origin: origin)
    }

    private func origin(of decision: OwnershipDecision) -> ChangeOrigin {
        var maker = local
        // A node that joins is its own maker.
        if case .join(let node, _, _, _, _) = decision { maker = node }
        return ChangeOrigin(maker: maker, milliseconds: wallMilliseconds)
    }
}

package import ApusCore
import OrderedCollections

/// Turns what a node wants of the cluster map into compare-and-swaps, one at a time (D4).
///
/// It holds the newest map that the store gave out, a bounded queue of proposals, and the deaths that the detector
/// confirmed. A swap that is lost means that another node changed the map: it is read again and
/// the decision made anew on what it says now, so that two nodes never undo each other.
///
/// **Who declares a death.** Every member that confirmed it, in the order of names with `rankDelay` between
/// them, so that usually one of them swaps and the others find it done. A death that the detector takes back,
/// or that the map already shows, is dropped.
///
/// **Planned moves wait for everybody else.** They come in a stream, and a node that swaps without a pause
/// leaves no moment in which another's read and swap both fit; so after each such swap planned moves rest for
/// `plannedPace`, and all that came up meanwhile go in the next one. Joins, drains and deaths go at once.
///
/// **A store that cannot be reached.** Nothing is decided: proposals fail with 10012 after `attemptCountMax`
/// tries, deaths stay and are tried again. A swap whose answer was lost may have been made, or may yet be: the map is
/// read before the next decision, and a planned move does not fail by tries while its own swap may still stand in
/// the store. Who proposed it would otherwise go on with a shard that is another's.
///
/// **A store that is not what it was.** The map held is the newest that this node ever saw, and the store may never
/// show less: an earlier revision, another map under the same one, or a later one in which epochs or incarnations
/// went back is a store that was rolled back. As with one that is another's, damaged or silent, nothing is decided on
/// it: ``Action/storeChanged(_:)`` says so, deaths wait, proposals wait and fail with 10012 after their tries, the
/// map held stays in force, and the store is read every `retryDelay` until it is right again.
///
/// **The own death.** When a map shows this life as dead, ``Action/fenced`` is given once and no swap is
/// made any more: what this node still does carries epochs that nobody takes.
///
/// Pure: confined to whoever owns it; the shell calls the store and passes the answer back.
package struct OwnershipStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// The wait of the second member by name before it declares a death; the third waits twice as long.
        package var rankDelay: Duration = .milliseconds(30)
        /// The wait after the store failed, or was found to be wrong.
        package var retryDelay: Duration = .milliseconds(50)
        /// A store that has not answered for this long counts as one that cannot be read.
        package var answerTimeout: Duration = .seconds(1)
        /// The least time between two swaps of this node for planned moves.
        package var plannedPace: Duration = .milliseconds(20)
        /// Tries of one proposal, lost swaps and failures together.
        package var attemptCountMax: Int = 40
        /// Proposals that wait; one more is refused with 10007.
        package var proposalCountMax: Int = 256

        package init() {}
    }

    package typealias ProposalID = UInt64

    package enum Input: Sendable {
        /// The store may hold a newer map: a peer said so, or its revision moved.
        case refresh
        /// Something is wanted; ``Action/settled(_:_:)`` answers with the same number.
        case propose(ProposalID, OwnershipDecision)
        case confirmedDead(NodeID)
        /// The detector took a death back.
        case recovered(NodeID)
        /// The answer to ``Action/read``.
        case read(ClusterMap)
        /// The swap was made; the value now has this revision.
        case swapWon(revision: UInt64)
        /// The store holds another revision.
        case swapLost
        /// The answer to a read or a swap is that the store failed; a swap may have been made or not.
        case storeFailed(ApusError)
        /// Time has passed; wanted every 10 ms while ``isBusy``.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Read the store; answer with `read` or `storeFailed`.
        case read
        /// Swap, if the store still holds the revision; answer with `swapWon`, `swapLost` or `storeFailed`.
        case compareAndSwap(expected: UInt64, ClusterMap)
        /// This is the newest map.
        case adopt(ClusterMap)
        /// This node made the newest map: tell the peers.
        case announce(revision: UInt64)
        case settled(ProposalID, Outcome)
        /// The store became wrong, differently wrong, or right.
        case storeChanged(StoreCondition)
        /// This life of this node is dead in the map.
        case fenced
    }

    package enum Outcome: Sendable, Equatable {
        /// The decision stands in this map, made now or already there.
        case decided(ClusterMap)
        case failed(ApusError)
    }

    /// What the newest answer of the store showed.
    package enum StoreCondition: Sendable, Equatable {
        case sound
        /// It failed, is damaged, or does not answer.
        case unreadable(ApusError)
        /// It is another store, or another cluster's.
        case foreign(ApusError)
        /// It holds an earlier map than this node has seen, or one that does not follow from it.
        case rolledBack(found: UInt64, seen: UInt64)
    }

    private struct Proposal: Sendable {
        var id: ProposalID
        var decision: OwnershipDecision
        var attemptCount = 0
        /// The revision that a swap expected whose answer was lost: until the map is past it, it may have been made.
        var unansweredAt: UInt64?

        /// Can wait for what is more urgent.
        var isPlanned: Bool {
            switch decision {
            case .setStandby, .handOver: true
            case .join, .declareDead, .drain, .leave: false
            }
        }
    }

    private enum Flight: Sendable {
        case idle
        case reading
        /// For proposals, or with none of them for deaths.
        case swapping(ClusterMap, [ProposalID])
    }

    package let configuration: Configuration
    /// This life; nil until it joined.
    package private(set) var local: NodeID?
    package private(set) var map: ClusterMap
    package private(set) var store: StoreCondition = .sound
    private var flight: Flight = .idle
    /// When the open request went to the store.
    private var flightSince: MonotonicTime = .zero
    private var isReadWanted = true
    private var proposals: [Proposal] = []
    /// When each confirmed death may be declared by this node.
    private var deaths: OrderedDictionary<NodeID, MonotonicTime> = [:]
    private var idleUntil: MonotonicTime = .zero
    private var plannedFrom: MonotonicTime = .zero
    private var isFenced = false

    /// - Parameter map: An empty map of the cluster; the store is read first.
    package init(map: ClusterMap, configuration: Configuration = Configuration()) {
        self.map = map
        self.configuration = configuration
    }

    /// Something waits for the store or for time.
    package var isBusy: Bool {
        if case .idle = flight { return isReadWanted || !proposals.isEmpty || !deaths.isEmpty }
        return true
    }

    /// Takes one event; the actions are to be carried out in their order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .refresh: isReadWanted = true
        case .propose(let id, let decision): accept(id, decision, actions: &actions)
        case .confirmedDead(let node): note(deathOf: node, now: now)
        case .recovered(let node): deaths[node] = nil
        case .read(let map): finishRead(map, now: now, actions: &actions)
        case .swapWon(let revision): finishSwap(revision: revision, now: now, actions: &actions)
        case .swapLost:
            isReadWanted = true
            countAttempt(actions: &actions)
            flight = .idle
        case .storeFailed(let error):
            let isForeign = error.code == .stateForeign || error.code == .wrongCluster
            note(store: isForeign ? .foreign(error) : .unreadable(error), actions: &actions)
            noteUnanswered()
            tryAgain(now: now, actions: &actions)
        case .tick: noteSilence(now: now, actions: &actions)
        }
        next(now: now, actions: &actions)
        return actions
    }

    // MARK: Input

    private mutating func accept(_ id: ProposalID, _ decision: OwnershipDecision, actions: inout [Action]) {
        if isFenced {
            actions.append(.settled(id, .failed(ApusError(.fenced))))
        } else if proposals.count >= configuration.proposalCountMax {
            actions.append(.settled(id, .failed(ApusError(.overloaded))))
        } else {
            proposals.append(Proposal(id: id, decision: decision))
        }
    }

    private mutating func note(deathOf node: NodeID, now: MonotonicTime) {
        guard map.isAlive(node), node != local, deaths[node] == nil else { return }
        deaths[node] = now
        // The rank counts those who are left to act, so that the death of the first in rank delays nothing.
        let actors = map.members.filter { $0.state.isAlive && deaths[$0.id] == nil }.map(\.id).sorted()
        let rank = local.flatMap { actors.firstIndex(of: $0) } ?? actors.count
        deaths[node] = now + configuration.rankDelay * rank
    }

    private mutating func note(store condition: StoreCondition, actions: inout [Action]) {
        guard condition != store else { return }
        store = condition
        actions.append(.storeChanged(condition))
    }

    private mutating func noteSilence(now: MonotonicTime, actions: inout [Action]) {
        if case .idle = flight { return }
        guard now - flightSince >= configuration.answerTimeout, store == .sound else { return }
        let error = ApusError(.storageFailed, "the ownership store does not answer; look at the disk that it is on")
        note(store: .unreadable(error), actions: &actions)
    }

    /// The request went wrong: the store is read again after a wait.
    private mutating func tryAgain(now: MonotonicTime, actions: inout [Action]) {
        isReadWanted = true
        idleUntil = now + configuration.retryDelay
        countAttempt(actions: &actions)
        flight = .idle
    }

    private mutating func finishRead(_ found: ClusterMap, now: MonotonicTime, actions: inout [Action]) {
        guard found.isSuccessor(of: map) else {
            note(store: .rolledBack(found: found.revision, seen: map.revision), actions: &actions)
            return tryAgain(now: now, actions: &actions)
        }
        flight = .idle
        note(store: .sound, actions: &actions)
        adopt(found, actions: &actions)
    }

    private mutating func finishSwap(revision: UInt64, now: MonotonicTime, actions: inout [Action]) {
        guard case .swapping(var next, let ids) = flight else { return }
        flight = .idle
        note(store: .sound, actions: &actions)
        next.revision = revision
        let done = proposals.filter { ids.contains($0.id) }
        proposals.removeAll { ids.contains($0.id) }
        if done.contains(where: \.isPlanned) { plannedFrom = now + configuration.plannedPace }
        for case .join(let node, _, _) in done.map(\.decision) { local = node }
        adopt(next, actions: &actions)
        for proposal in done { actions.append(.settled(proposal.id, .decided(next))) }
        actions.append(.announce(revision: revision))
    }

    private mutating func noteUnanswered() {
        guard case .swapping(_, let ids) = flight else { return }
        for index in proposals.indices where ids.contains(proposals[index].id) {
            proposals[index].unansweredAt = map.revision
        }
    }

    /// True for a planned move that may stand in the store without this node's knowledge.
    private func isOpen(_ proposal: Proposal) -> Bool {
        proposal.isPlanned && proposal.unansweredAt == map.revision
    }

    /// One more try went wrong: of the proposals that swapped, or of the first where the store cannot be read.
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
        for node in deaths.keys.elements where !map.isAlive(node) { deaths[node] = nil }
        actions.append(.adopt(newer))
        guard let local, !isFenced, !map.isAlive(local), !hasLeft(local) else { return }
        isFenced = true
        deaths = [:]
        actions.append(.fenced)
        for proposal in proposals { actions.append(.settled(proposal.id, .failed(ApusError(.fenced)))) }
        proposals = []
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
        // What is urgent goes first and alone; planned moves go together.
        let urgent = proposals.first { !$0.isPlanned }
        let candidates = urgent.map { [$0] } ?? (isPlannedDue ? proposals : [])
        guard !candidates.isEmpty else { return }
        var decided = map
        var deciding: [ProposalID] = []
        for proposal in candidates {
            do {
                if let next = try decided.applying(proposal.decision) {
                    decided = next
                    deciding.append(proposal.id)
                    continue
                }
                if case .join(let node, _, _) = proposal.decision { local = node }
                // Nothing to change: it stands in the map already, or was passed over.
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

    /// All deaths that are due, in one map; nil if there are none. Before it joined a node declares nobody dead.
    private func decideDeaths(now: MonotonicTime) -> ClusterMap? {
        guard let local, map.isAlive(local) else { return nil }
        let due = deaths.filter { $0.value <= now }.map(\.key)
        guard !due.isEmpty, let next = try? map.applying(.declareDead(due)) else { return nil }
        return next
    }
}

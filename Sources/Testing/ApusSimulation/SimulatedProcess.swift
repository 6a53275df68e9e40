import ApusCluster
import ApusCore

/// One process of a node: the machines of one incarnation, and their environment.
final class SimulatedProcess {
    enum Phase {
        /// Reads the map to learn its incarnation.
        case opening
        case joining
        case member
        case stopped
    }

    /// Who waits for a proposal.
    enum Waiter {
        case join
        case drain
        case leave
        case moves([ShardMove], ShardRole)
        case confirmation(UInt64)
        case cordon
        case rule
    }

    /// The most events kept by a process that does not run. Further datagrams are lost, as in a socket's buffer.
    static let inboxCountMax = 512

    let index: Int
    /// The node's place among the names of the run.
    let nameIndex: Int
    var phase = Phase.opening
    var id: NodeID
    /// The newest map at this process.
    var view: ClusterMap
    var membership: MembershipStateMachine
    var ownership: OwnershipStateMachine
    var handover: HandoverStateMachine
    var waiters: [(id: OwnershipStateMachine.ProposalID, waiter: Waiter)] = []
    var lastProposal: OwnershipStateMachine.ProposalID = 0
    var peers: [NodeID] = []
    var linked: [NodeID] = []
    /// The nodes that forward the links to peers whose paths are cut.
    var helpers: [NodeID: NodeID] = [:]
    var nextRenewal = MonotonicTime.zero
    var nextPoll = MonotonicTime.zero
    var isPolling = false
    var pollingSince = MonotonicTime.zero
    var nextHandoverTick = MonotonicTime.zero
    var nextWrite = MonotonicTime.zero
    /// Not scheduled until this time.
    var pausedUntil: MonotonicTime?
    /// True if that is for lack of a processor.
    var isStarved = false
    /// The end of its last pause.
    var resumedAt = MonotonicTime.zero
    var inbox: [SimulationEvent] = []
    /// Runs late until this time: ticks are rare, and datagrams wait for several of them.
    var stuttersUntil = MonotonicTime.zero
    var ticksUntilRead = 0
    /// Shards whose entities are held for a hand-over: nothing is written to them.
    var held: [ShardID] = []
    /// Drains, and leaves at this time at the latest.
    var leavesAt: MonotonicTime?
    var isLeaving = false
    /// It was declared dead, or did not join, and started again in place.
    var isRestart = false
    /// The number under which it joins.
    var number: UInt64 { UInt64(index + 1) }
    /// Decides when it joins, from its first look at the map on.
    var joining: JoinStateMachine?
    /// The incarnation that it is to have; nil before its first look at the map.
    var proposed: NodeID?
    /// The member of its name is another process.
    var isTwinAlive = false
    /// It is of a version that watches all members, and that writes maps without rules.
    var isEarlier = false
    var nextRule = MonotonicTime.zero
    /// Its watchers in its newest map.
    var watchers: [NodeID] = []

    init(index: Int, nameIndex: Int, id: NodeID, map: ClusterMap, settings: SimulationSettings) {
        self.index = index
        self.nameIndex = nameIndex
        self.id = id
        view = map
        membership = MembershipStateMachine(local: id, configuration: settings.membership, host: settings.host)
        ownership = OwnershipStateMachine(map: map, configuration: settings.ownership)
        handover = HandoverStateMachine(local: id, configuration: settings.handover)
    }

    var isRunning: Bool {
        if case .stopped = phase { false } else { true }
    }

    var isMember: Bool {
        if case .member = phase { true } else { false }
    }

    /// Starts the machines of this start's incarnation.
    func open(_ id: NodeID, map: ClusterMap, settings: SimulationSettings) {
        self.id = id
        view = map
        membership = MembershipStateMachine(local: id, configuration: settings.membership, host: settings.host)
        ownership = OwnershipStateMachine(map: map, configuration: settings.ownership)
        handover = HandoverStateMachine(local: id, configuration: settings.handover)
        phase = .joining
    }

    func takeWaiter(_ id: OwnershipStateMachine.ProposalID) -> Waiter? {
        guard let index = waiters.firstIndex(where: { $0.id == id }) else { return nil }
        return waiters.remove(at: index).waiter
    }
}

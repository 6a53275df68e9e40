import ApusCluster
import ApusCore

/// One process of a node: the machines of one life, and what stands around them.
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
        case moves([ShardMove], isHandover: Bool)
    }

    /// Events that a process which does not run keeps; more datagrams are lost, as in a socket's buffer.
    static let inboxCountMax = 512

    let index: Int
    /// The node's place among the names of the run.
    let nameIndex: Int
    var phase = Phase.opening
    var id: NodeID
    /// The newest map that this process knows.
    var view: ClusterMap
    var membership: MembershipStateMachine
    var ownership: OwnershipStateMachine
    var handover: HandoverStateMachine
    var waiters: [(id: OwnershipStateMachine.ProposalID, waiter: Waiter)] = []
    var lastProposal: OwnershipStateMachine.ProposalID = 0
    var peers: [NodeID] = []
    var linked: [NodeID] = []
    var nextPoll = MonotonicTime.zero
    var isPolling = false
    var pollingSince = MonotonicTime.zero
    var nextHandoverTick = MonotonicTime.zero
    var nextWrite = MonotonicTime.zero
    /// Not run by the machine it is on, until this time.
    var pausedUntil: MonotonicTime?
    /// Whether that is for want of a processor.
    var isStarved = false
    /// When it last went on after a pause.
    var resumedAt = MonotonicTime.zero
    var inbox: [SimulationEvent] = []
    /// Runs late until this time: ticks are rare, datagrams wait for several of them.
    var stuttersUntil = MonotonicTime.zero
    var ticksUntilRead = 0
    /// Shards whose entities are held for a hand-over: nothing is written to them.
    var held: [ShardID] = []
    /// Drains, and leaves at the latest then.
    var leavesAt: MonotonicTime?
    var isLeaving = false

    init(index: Int, nameIndex: Int, id: NodeID, map: ClusterMap, settings: SimulationSettings) {
        self.index = index
        self.nameIndex = nameIndex
        self.id = id
        view = map
        membership = MembershipStateMachine(local: id, configuration: settings.membership, host: settings.host)
        ownership = OwnershipStateMachine(map: map)
        handover = HandoverStateMachine(local: id, configuration: settings.handover)
    }

    var isRunning: Bool {
        if case .stopped = phase { false } else { true }
    }

    var isMember: Bool {
        if case .member = phase { true } else { false }
    }

    /// Starts the machines of the life that this start takes.
    func open(_ id: NodeID, map: ClusterMap, settings: SimulationSettings) {
        self.id = id
        view = map
        membership = MembershipStateMachine(local: id, configuration: settings.membership, host: settings.host)
        ownership = OwnershipStateMachine(map: map)
        handover = HandoverStateMachine(local: id, configuration: settings.handover)
        phase = .joining
    }

    func takeWaiter(_ id: OwnershipStateMachine.ProposalID) -> Waiter? {
        guard let index = waiters.firstIndex(where: { $0.id == id }) else { return nil }
        return waiters.remove(at: index).waiter
    }
}

package import ApusCore

/// Decides when a node that starts may become a member (D4). A join ends the incarnation before it, so a node waits
/// where that would be wrong, or of no use.
///
/// **The others declared it dead, and it reaches none of them.** They would declare it dead again, for as long as the
/// network is cut. It joins when one of them accepts a link, or when none of them can be alive: each refuses
/// connections, or is silent and holds no lease. A member that refuses this node's certificate is alive.
///
/// **Another process is this node.** A configuration that was copied, with the certificate in it, makes two processes
/// of one node. If each joined as soon as it starts, each would end the other, for ever. A process therefore joins only
/// when nothing shows that the incarnation before it still runs:
///
/// | the address of the member of this name | the incarnation before |
/// |---|---|
/// | accepts a link as that incarnation | runs: wait |
/// | refuses connections, or another incarnation answers there | has ended: join |
/// | is silent, or refuses the certificate | runs if it holds a lease in the store: wait |
/// | is this process's own address | has ended, since this process listens there: join |
///
/// The last row is wrong where two machines advertise one address. The second process then ends the first. The first
/// starts again in place, finds that another process is alive under its name, and waits until that one has held no
/// lease for as long as a lease lasts. So they end each other once, and not for ever.
///
/// While it waits, another process may join under the incarnation that this one was to have. It then has to start
/// again (``Action/fenced``).
///
/// States: `reading` → `reaching` → `checking` → `reading` …, until ``Action/join`` or ``Action/fenced``.
///
/// Pure value: its owner reads the store, opens the links, and passes the time.
package struct JoinStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// The wait between two attempts.
        package var retryInterval: Duration = .milliseconds(500)
        /// While another process is this node, the wait doubles up to this.
        package var retryIntervalMax: Duration = .seconds(4)
        /// How long a lease in the store lasts.
        package var leaseDuration: Duration = .milliseconds(2500)

        package init() {}
    }

    /// What the address of a member says to a new link.
    package enum Answer: Sendable, Equatable {
        /// That incarnation accepts the link.
        case accepted
        /// Another incarnation of the node accepts it.
        case another
        case refused
        case silent
        /// The node answers, and does not accept this node's certificate.
        case unwelcome
    }

    package enum Action: Sendable, Equatable {
        /// Open a link to each, and close it again; answer with ``JoinStateMachine/answered(_:)``.
        case reach([Member])
        /// Read the leases, and answer with ``JoinStateMachine/leasesRead(_:now:)``.
        case readLeases
        /// Read the map after this time, and answer with ``JoinStateMachine/mapRead(_:now:)``.
        case wait(Obstacle, Duration)
        case join
        /// Another process has taken this incarnation.
        case fenced
    }

    /// The reason for which the node waits.
    package enum Obstacle: Sendable, Equatable {
        /// This member has the node's name and is another process.
        case duplicate(Member)
        /// No member accepts a link.
        case unreachable(unwelcome: [Member], silent: [Member])
    }

    private enum State: Sendable {
        case reading
        case reaching(former: Member)
        case reachingOthers
        case checking(former: Member)
        case checkingOthers(silent: [Member])
    }

    private let local: NodeID
    private let address: HostPort
    private let isRestart: Bool
    private let configuration: Configuration
    private var state = State.reading
    /// When the map was read first.
    private var began: MonotonicTime?
    /// Waits in a row for another process of this node.
    private var duplicateCount = 0

    /// - Parameters:
    ///   - local: the incarnation under which the node is to join.
    ///   - address: the node's address for other nodes. It listens there.
    ///   - isRestart: the node was declared dead, and starts again in its own process. A member of its name that is
    ///     alive is another process.
    package init(local: NodeID, address: HostPort, isRestart: Bool, configuration: Configuration = Configuration()) {
        self.local = local
        self.address = address
        self.isRestart = isRestart
        self.configuration = configuration
    }

    /// The map in the store.
    package mutating func mapRead(_ map: ClusterMap, now: MonotonicTime) -> Action {
        if began == nil { began = now }
        guard let former = map.member(named: local.name) else { return .join }
        guard former.id.incarnation < local.incarnation else { return .fenced }
        guard former.state.isAlive else {
            let others = map.membersToReach(from: local.name)
            guard !others.isEmpty else { return .join }
            state = .reachingOthers
            return .reach(others)
        }
        guard former.addresses.transport == address else {
            state = .reaching(former: former)
            return .reach([former])
        }
        guard isRestart else { return .join }
        state = .checking(former: former)
        return .readLeases
    }

    /// The answers of the members that were to be reached. If one of the others accepted, no more answers are needed.
    package mutating func answered(_ answers: [(member: Member, answer: Answer)]) -> Action {
        switch state {
        case .reaching(let former):
            switch answers.first?.answer {
            case .accepted: return wait(for: former)
            case .another, .refused: return .join
            case .silent, .unwelcome, nil:
                state = .checking(former: former)
                return .readLeases
            }
        case .reachingOthers:
            if answers.contains(where: { $0.answer == .accepted || $0.answer == .another }) { return .join }
            let unwelcome = answers.filter { $0.answer == .unwelcome }.map(\.member)
            let silent = answers.filter { $0.answer == .silent }.map(\.member)
            guard unwelcome.isEmpty else { return wait(unwelcome: unwelcome, silent: silent) }
            guard !silent.isEmpty else { return .join }
            state = .checkingOthers(silent: silent)
            return .readLeases
        case .reading, .checking, .checkingOthers:
            preconditionFailure("answers of members came in the state \(state)")
        }
    }

    /// The nodes that hold a lease in the store.
    package mutating func leasesRead(_ holders: Set<NodeID>, now: MonotonicTime) -> Action {
        switch state {
        case .checking(let former):
            if holders.contains(former.id) { return wait(for: former) }
            // It may have joined a moment ago, and not have a lease yet.
            let isNew = isRestart && now - (began ?? now) < configuration.leaseDuration
            return isNew ? wait(for: former) : .join
        case .checkingOthers(let silent):
            guard silent.contains(where: { holders.contains($0.id) }) else { return .join }
            return wait(unwelcome: [], silent: silent)
        case .reading, .reaching, .reachingOthers:
            preconditionFailure("leases came in the state \(state)")
        }
    }

    private mutating func wait(for former: Member) -> Action {
        state = .reading
        let factor = 1 << min(duplicateCount, 10)
        duplicateCount += 1
        return .wait(.duplicate(former), min(configuration.retryInterval * factor, configuration.retryIntervalMax))
    }

    private mutating func wait(unwelcome: [Member], silent: [Member]) -> Action {
        state = .reading
        duplicateCount = 0
        return .wait(.unreachable(unwelcome: unwelcome, silent: silent), configuration.retryInterval)
    }
}

package import ApusCore

/// Decides when a node that starts may become a member (D4). A join ends the incarnation before it, so a node waits
/// where that would be wrong, or of no use.
///
/// **The others declared it dead, and it reaches none of them.** They would declare it dead again, for as long as the
/// network is cut. It joins when one of them accepts a link, or when none of them can be alive: each refuses
/// connections, or is silent and holds no lease. A member that refuses this node's certificate is alive.
///
/// **Another process is this node.** A configuration that was copied, with the certificate in it, makes two processes
/// of one node. A process therefore never ends the incarnation before it only because it starts itself. That one may
/// answer for its entities with the promises of a majority (``PromiseStateMachine``), which no join can take back.
///
/// | the incarnation before | |
/// |---|---|
/// | is a process of this machine that has ended, as the data directory's record and the kernel show | join |
/// | accepts a link at its address | it runs: wait |
/// | holds a lease in the store | it runs, or has ended a moment ago: wait |
/// | holds none, and half of the members or more, without it, hold one | they hear it, or declare it dead: wait |
/// | holds none, and neither do so many of the others, for the time of a lease | nobody else can decide: join |
///
/// Nothing else shows its end. The own address does not: where two machines advertise one address, this process
/// listens there as well as the other one. A refused connection does not, since a listener may close.
///
/// In the fourth row the others vote, as about any silent member, so a member that is declared dead has no permission
/// to answer. They cannot vote if they do not hear each other, so the wait ends after ``Configuration/absenceMax``.
///
/// **What it does not cover.** A member that answers is ended by a join if it reaches neither the store nor this
/// process, and more than half of the members, it included, have lost the store for longer than a lease lasts, or it
/// has for longer than `absenceMax`. It then answers until a majority has the new map, and as long as their promises
/// last. A member that is alone in the map permits itself to answer, so there the time of a lease decides.
///
/// While it waits, another process may join under the incarnation that this one was to have. It then has to start
/// again (``Action/fenced``).
///
/// States: `reading` → `reaching` → `checking` → `reading` …, until ``Action/join`` or ``Action/fenced``. While no
/// lease is held, the address is not asked again before the end of the wait: its answer may take longer than a lease.
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
        /// A member that has held no lease for this long has ended, although the others do not declare it dead.
        package var absenceMax: Duration = .seconds(30)

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
        /// Read the map after this time, and answer with ``JoinStateMachine/mapRead(_:)``.
        case wait(Obstacle, Duration)
        case join
        /// Another process has taken this incarnation.
        case fenced
    }

    /// The reason for which the node waits.
    package enum Obstacle: Sendable, Equatable {
        /// This member has the node's name and is another process.
        case duplicate(Member)
        /// This member has the node's name, and nobody knows whether its process has ended.
        case unended(Member)
        /// No member accepts a link.
        case unreachable(unwelcome: [Member], silent: [Member])
    }

    private enum State: Sendable {
        case reading
        case reaching(former: Member, others: [NodeID])
        case reachingOthers
        case checking(former: Member, others: [NodeID])
        case checkingOthers(silent: [Member])
        /// The incarnation before has held no lease for long enough. If it is there nevertheless, it answers now.
        case reachingLast(former: Member)
    }

    /// The time in which the incarnation before holds no lease.
    private struct Absence: Sendable {
        /// When the leases were read last.
        var readAt: MonotonicTime
        var total = Duration.zero
        /// Too few others held a lease to declare it dead, when the leases were read last.
        var isUndecided: Bool
        /// The last part of the time in which that was so.
        var undecided = Duration.zero
    }

    private let local: NodeID
    private let address: HostPort
    private let endedProcesses: Set<UInt64>
    private let configuration: Configuration
    private var state = State.reading
    /// Nil while the incarnation before holds a lease, or it is not known whether it does.
    private var absence: Absence?
    /// Waits in a row for another process of this node.
    private var duplicateCount = 0

    /// - Parameters:
    ///   - local: the incarnation under which the node is to join.
    ///   - address: the node's address for other nodes. It listens there.
    ///   - endedProcesses: the numbers of processes of this node that have ended, as this machine knows
    ///     (``Member/process``).
    package init(
        local: NodeID, address: HostPort, endedProcesses: Set<UInt64> = [],
        configuration: Configuration = Configuration()
    ) {
        self.local = local
        self.address = address
        self.endedProcesses = endedProcesses
        self.configuration = configuration
    }

    /// The map in the store.
    package mutating func mapRead(_ map: ClusterMap) -> Action {
        guard let former = map.member(named: local.name) else { return .join }
        guard former.id.incarnation < local.incarnation else { return .fenced }
        guard former.state.isAlive else {
            let others = map.membersToReach(from: local.name)
            guard !others.isEmpty else { return .join }
            state = .reachingOthers
            return .reach(others)
        }
        // 0: a node of an earlier version has removed the number.
        if former.process != 0, endedProcesses.contains(former.process) { return .join }
        let others = map.members.filter { $0.state.isAlive && $0.id.name != local.name }.map(\.id)
        guard absence == nil, former.addresses.transport != address else {
            state = .checking(former: former, others: others)
            return .readLeases
        }
        state = .reaching(former: former, others: others)
        return .reach([former])
    }

    /// The answers of the members that were to be reached. If one of the others accepted, no more answers are needed.
    package mutating func answered(_ answers: [(member: Member, answer: Answer)]) -> Action {
        switch state {
        case .reaching(let former, let others):
            guard answers.first?.answer != .accepted else { return wait(for: former) }
            state = .checking(former: former, others: others)
            return .readLeases
        case .reachingLast(let former):
            guard answers.first?.answer != .accepted else { return wait(for: former) }
            return .join
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
        case .checking(let former, let others):
            guard !holders.contains(former.id) else { return wait(for: former) }
            // Of n members, half hear it or vote against it: n / 2 of the n - 1 others.
            let isUndecided = others.count { holders.contains($0) } * 2 <= others.count
            let absence = noteAbsence(isUndecided: isUndecided, now: now)
            guard absence.undecided >= configuration.leaseDuration || absence.total >= configuration.absenceMax else {
                state = .reading
                duplicateCount = 0
                return .wait(.unended(former), configuration.retryInterval)
            }
            guard former.addresses.transport != address else { return .join }
            state = .reachingLast(former: former)
            return .reach([former])
        case .checkingOthers(let silent):
            guard silent.contains(where: { holders.contains($0.id) }) else { return .join }
            return wait(unwelcome: [], silent: silent)
        case .reading, .reaching, .reachingLast, .reachingOthers:
            preconditionFailure("leases came in the state \(state)")
        }
    }

    /// The incarnation before holds no lease. Time in which the leases were not read counts little: the store may have
    /// taken none, or one of that time may have run out.
    private mutating func noteAbsence(isUndecided: Bool, now: MonotonicTime) -> Absence {
        var next = Absence(readAt: now, isUndecided: isUndecided)
        if let absence, now - absence.readAt < configuration.leaseDuration {
            let step = min(now - absence.readAt, configuration.retryInterval * 2)
            next.total = absence.total + step
            if isUndecided, absence.isUndecided { next.undecided = absence.undecided + step }
        }
        absence = next
        return next
    }

    private mutating func wait(for former: Member) -> Action {
        state = .reading
        absence = nil
        duplicateCount += 1
        let wait = Backoff.wait(
            after: duplicateCount, first: configuration.retryInterval, longest: configuration.retryIntervalMax)
        return .wait(.duplicate(former), wait)
    }

    private mutating func wait(unwelcome: [Member], silent: [Member]) -> Action {
        state = .reading
        absence = nil
        duplicateCount = 0
        return .wait(.unreachable(unwelcome: unwelcome, silent: silent), configuration.retryInterval)
    }
}

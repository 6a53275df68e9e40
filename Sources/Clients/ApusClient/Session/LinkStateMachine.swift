public import ApusCore

/// The state of a client's link to the cluster (IV-A5).
public enum LinkState: Int, Sendable, Hashable, CaseIterable {
    /// No node can be reached at the moment; the client keeps trying by itself (IV-A7).
    case offline = 0
    /// A session is open.
    case online = 1
    /// The token is not valid or has expired: register again with a new one.
    case tokenFailed = 2
    /// The same identity registered elsewhere: register again to take it back.
    case kicked = 3
}

/// Which door a client is connected to, and when it tries another (D6, D7).
///
/// One connection is active. While streams are open the node is never silent for longer than its
/// keepalive, so silence means trouble: a second connection, to another door, is opened beside the
/// first, and whichever shows life first wins. A lost connection is replaced at once by the next door;
/// when every door has failed in turn, attempts wait, longer each round, with jitter.
///
/// Pure: time and randomness come in.
public struct LinkStateMachine: Sendable {
    public typealias AttemptID = UInt64

    public struct Configuration: Sendable {
        /// Silence of a node, while a stream is open, after which another door is tried.
        public var silenceMax: Duration = .milliseconds(180)
        /// The same without a stream.
        public var idleSilenceMax: Duration = .seconds(12)
        /// How long an attempt may take before another door is tried beside it.
        public var hedgeDelay: Duration = .milliseconds(150)
        /// How long an attempt may take at all.
        public var attemptTimeout: Duration = .seconds(2)
        /// The most attempts at once.
        public var attemptsMax = 3
        /// Wait after a round in which every door failed; doubles up to ``backoffMax``, with jitter.
        public var backoffMin: Duration = .milliseconds(50)
        public var backoffMax: Duration = .seconds(2)
        /// How long a lost link may be replaced before it is called offline.
        public var offlineGrace: Duration = .milliseconds(500)
        public init() {}
    }

    /// What the shell does next, in this order.
    public enum Action: Sendable, Equatable {
        case connect(AttemptID, HostPort)
        case drop(AttemptID)
        /// Streams go over this connection from here on.
        case activate(AttemptID)
        case report(LinkState)
    }

    private struct Attempt: Sendable {
        var id: AttemptID
        var door: HostPort
        var since: MonotonicTime
    }

    private struct Active: Sendable {
        var id: AttemptID
        var door: HostPort
        var lastHeard: MonotonicTime
        /// The node asked its clients to go elsewhere.
        var isLeaving = false
    }

    public let configuration: Configuration
    public private(set) var doors: [HostPort]
    private var random: SeededRandom
    private var nextDoor = 0
    private var nextID: AttemptID = 1
    private var active: Active?
    private var attempts: [Attempt] = []
    private var failuresInRound = 0
    private var backoff: Duration
    private var notBefore = MonotonicTime.zero
    private var lostSince: MonotonicTime?
    private var reported: LinkState?
    private var isStopped = false
    /// A stream is open: silence is watched closely.
    public var hasStreams = false

    /// - Parameter seed: spreads clients over doors and time.
    public init(configuration: Configuration, doors: [HostPort], seed: UInt64) {
        self.configuration = configuration
        self.doors = doors
        random = SeededRandom(seed: seed)
        backoff = configuration.backoffMin
    }

    public var activeID: AttemptID? { active?.id }

    public mutating func start(now: MonotonicTime) -> [Action] {
        lostSince = now
        return connectNext(now: now)
    }

    /// The node said hello back.
    public mutating func welcomed(_ id: AttemptID, doors: [HostPort], now: MonotonicTime) -> [Action] {
        guard let index = attempts.firstIndex(where: { $0.id == id }), !isStopped else { return [.drop(id)] }
        let attempt = attempts.remove(at: index)
        var actions: [Action] = []
        if let active {
            // The old connection came back to life meanwhile: it stays, it has the streams.
            if now - active.lastHeard < silenceMax, !active.isLeaving { return [.drop(id)] }
            actions.append(.drop(active.id))
        }
        actions += attempts.map { .drop($0.id) }
        attempts.removeAll()
        active = Active(id: id, door: attempt.door, lastHeard: now)
        failuresInRound = 0
        backoff = configuration.backoffMin
        lostSince = nil
        learn(doors)
        actions.append(.activate(id))
        actions += report(.online)
        return actions
    }

    /// The active node goes away and names other doors: a connection there is opened first.
    public mutating func sentAway(_ id: AttemptID, doors new: [HostPort], now: MonotonicTime) -> [Action] {
        guard let door = active?.door, active?.id == id, !isStopped else { return [] }
        active?.isLeaving = true
        doors.removeAll { $0 == door }
        learn(new)
        return attempts.isEmpty ? connectNext(now: now) : []
    }

    /// Bytes came from the node.
    public mutating func heard(_ id: AttemptID, now: MonotonicTime) {
        guard active?.id == id else { return }
        active?.lastHeard = now
    }

    /// The connection or the attempt is over; `error` is what the node said, where it said something.
    public mutating func closed(_ id: AttemptID, error: ApusError?, now: MonotonicTime) -> [Action] {
        guard !isStopped else { return [] }
        let wasAttempt = attempts.contains { $0.id == id }
        attempts.removeAll { $0.id == id }
        if let end = error.flatMap({ Self.end(for: $0.code) }), wasAttempt || active?.id == id { return stop(end) }
        if let active, active.id == id {
            // The other doors first: this one is the least likely to open.
            if let index = doors.firstIndex(of: active.door) { nextDoor = index + 1 }
            self.active = nil
            lostSince = now
            failuresInRound = 0
            return attempts.isEmpty ? connectNext(now: now) : []
        }
        guard wasAttempt else { return [] }
        failuresInRound += 1
        if failuresInRound >= doors.count {
            failuresInRound = 0
            let span = backoff * (0.5 + random.nextUnit())
            notBefore = now + span
            backoff = min(backoff * 2, configuration.backoffMax)
            return []
        }
        return active == nil && attempts.isEmpty ? connectNext(now: now) : []
    }

    public mutating func tick(now: MonotonicTime) -> [Action] {
        guard !isStopped else { return [] }
        var actions: [Action] = []
        for attempt in attempts where now - attempt.since >= configuration.attemptTimeout {
            actions.append(.drop(attempt.id))
            actions += closed(attempt.id, error: nil, now: now)
        }
        let isSilent = active.map { now - $0.lastHeard >= silenceMax || $0.isLeaving } ?? true
        if !isSilent {
            actions += attempts.map { .drop($0.id) }
            attempts.removeAll()
        } else if attempts.count < configuration.attemptsMax, now >= notBefore,
            attempts.allSatisfy({ now - $0.since >= configuration.hedgeDelay })
        {
            actions += connectNext(now: now)
        }
        if let lostSince, active == nil, now - lostSince >= configuration.offlineGrace {
            actions += report(.offline)
        }
        return actions
    }

    /// The client ends the session.
    public mutating func stop() -> [Action] { stop(.offline) }

    private mutating func stop(_ state: LinkState) -> [Action] {
        isStopped = true
        var actions: [Action] = attempts.map { .drop($0.id) }
        if let active { actions.append(.drop(active.id)) }
        attempts.removeAll()
        active = nil
        return actions + report(state)
    }

    private var silenceMax: Duration { hasStreams ? configuration.silenceMax : configuration.idleSilenceMax }

    private static func end(for code: ErrorCode) -> LinkState? {
        switch code {
        case .tokenInvalid, .tokenExpired: .tokenFailed
        case .kicked: .kicked
        default: nil
        }
    }

    private mutating func report(_ state: LinkState) -> [Action] {
        guard reported != state else { return [] }
        reported = state
        return [.report(state)]
    }

    private mutating func learn(_ new: [HostPort]) {
        guard !new.isEmpty else { return }
        // A door that served before stays known, behind the ones that the cluster names.
        doors = new + doors.filter { !new.contains($0) }
        if doors.count > Self.doorsMax { doors.removeLast(doors.count - Self.doorsMax) }
        nextDoor = 0
    }
    private static let doorsMax = 32

    private mutating func connectNext(now: MonotonicTime) -> [Action] {
        guard !doors.isEmpty, now >= notBefore else { return [] }
        let busy = attempts.map(\.door) + (active.map { [$0.door] } ?? [])
        for _ in doors.indices {
            let door = doors[nextDoor % doors.count]
            nextDoor += 1
            guard !busy.contains(door) else { continue }
            let attempt = Attempt(id: nextID, door: door, since: now)
            nextID += 1
            attempts.append(attempt)
            return [.connect(attempt.id, door)]
        }
        return []
    }
}

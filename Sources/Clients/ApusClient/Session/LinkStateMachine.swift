public import ApusCore

/// The state of a client's link to the cluster (IV-A5).
public enum LinkState: Int, Sendable, Hashable, CaseIterable {
    /// No node can be reached at the moment. The client keeps trying (IV-A7).
    case offline = 0
    /// A session is open.
    case online = 1
    /// The token is not valid or has expired: register again with a new one.
    case tokenFailed = 2
    /// The same identity registered elsewhere: register again to take it back.
    case kicked = 3
}

/// Decides which node a client is connected to, and when it tries another one (D6, D7, docs/decisions/7).
///
/// One connection is active. While streams are open, the node sends at least every keepalive, so silence indicates a
/// failure. The client then opens a second connection, to another node, beside the first. The connection that receives
/// bytes first wins. A lost connection is replaced at once by one to the next endpoint. When every endpoint has failed
/// in turn, attempts wait, longer each round, with jitter.
///
/// A node with many sessions tells its clients a spread. A client that loses it without a stream waits a random time
/// within the spread, unless somebody wants the link, so that the other nodes can admit them all (docs/decisions/44).
///
/// An attempt has stages: TCP, TLS, hello. A further attempt is started if each running one takes longer for its stage
/// than the measured time. It waits before TLS, and again before its hello, while another attempt at the same stage is
/// still in time. It therefore costs a node a socket, and nothing else. Two answered hellos do no harm: the cluster
/// recognizes them as one client's, and the client closes the connection that it does not activate.
///
/// A node that leaves redirects its clients. The client moves to another node while the first one still serves it: its
/// streams are opened at the other one, and its requests are answered, before it closes the first connection.
///
/// Delays and time-outs follow the measured stages, and the allowed silence follows the round trip and the observed
/// gaps. No constant fails on a long path.
///
/// Pure value: time and randomness are passed in.
public struct LinkStateMachine: Sendable {
    public typealias AttemptID = UInt64

    public struct Configuration: Sendable {
        /// The silence beyond the node's keepalive, while a stream is open, after which another node is tried. It is
        /// longer if the connection has a long round trip or shows gaps.
        public var silenceMargin: Duration = .milliseconds(100)
        /// The longest silence that such a connection is allowed.
        public var silenceCeiling: Duration = .seconds(3)
        /// The silence, beyond two round trips, after which another node is tried while a stream is being opened.
        public var openingSilenceMax: Duration = .milliseconds(600)
        /// The same without a stream; at least two keepalives of the node.
        public var idleSilenceMax: Duration = .seconds(12)
        /// How long a stage of an attempt may take before another node is tried beside it, without a measurement (RFC
        /// 8305 §5). It doubles with each running attempt.
        public var hedgeDelayInitial: Duration = .milliseconds(250)
        /// The bounds of the measured delay.
        public var hedgeDelayMin: Duration = .milliseconds(150)
        public var hedgeDelayMax: Duration = .seconds(2)
        /// The lower bound for a client without streams whose node had a spread: a node that is slow has many clients
        /// to admit, and each attempt beside the first is one more.
        public var hedgeDelayMinOfMany: Duration = .seconds(1)
        /// The time-out of a stage: four times the measured time, within these bounds; the greater bound without a
        /// measurement.
        public var stageTimeoutMin: Duration = .seconds(2)
        public var stageTimeoutMax: Duration = .seconds(8)
        /// The most concurrent attempts.
        public var attemptsMax = 3
        /// The wait after a round in which every endpoint failed. It doubles up to ``backoffMax``, with jitter.
        public var backoffMin: Duration = .milliseconds(50)
        public var backoffMax: Duration = .seconds(2)
        /// The time in which a lost link may be replaced before the state becomes offline.
        public var offlineGrace: Duration = .milliseconds(500)
        /// How long the connection to a node that leaves stays open beside its successor, beyond four round trips.
        public var retireTimeout: Duration = .seconds(2)
        public init() {}
    }

    /// The contents of a node's welcome.
    public struct Welcome: Sendable {
        /// Endpoints of the cluster, the best first.
        public var endpoints: [HostPort]
        /// The node sends at least this often.
        public var keepalive: Duration
        /// The same while a stream is open.
        public var streamKeepalive: Duration
        /// The time over which the node's clients without streams spread their connects if it dies. The newest pong
        /// replaces it.
        public var reconnectSpread: Duration

        /// Zero stands for a default: earlier versions of nodes do not send it.
        public init(
            endpoints: [HostPort], keepalive: Duration = .zero, streamKeepalive: Duration = .zero,
            reconnectSpread: Duration = .zero
        ) {
            self.endpoints = endpoints
            self.reconnectSpread = reconnectSpread
            self.keepalive = keepalive > .zero ? keepalive : .seconds(5)
            self.streamKeepalive = streamKeepalive > .zero ? streamKeepalive : .milliseconds(80)
        }
    }

    /// The actions of the shell, to be carried out in order.
    public enum Action: Sendable, Equatable {
        /// Open a TCP connection.
        case connect(AttemptID, HostPort)
        /// Start TLS on it.
        case secure(AttemptID)
        /// Send the hello on it.
        case greet(AttemptID)
        case drop(AttemptID)
        /// Streams use this connection from now on. Send something on it, so that the node knows.
        case activate(AttemptID)
        /// Another connection is activated next. Keep this one for what still arrives on it, and call ``moved(_:)``
        /// when nothing is expected any more.
        case retire(AttemptID)
        case report(LinkState)
    }

    private enum Stage: Int, Sendable, Comparable {
        case connecting, connected, securing, secured, greeting

        /// True if the node or the network must answer.
        var isAwaited: Bool {
            switch self {
            case .connecting, .securing, .greeting: true
            case .connected, .secured: false
            }
        }

        static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }
    }

    private struct Attempt: Sendable {
        var id: AttemptID
        var endpoint: HostPort
        var stage = Stage.connecting
        /// The start of the stage.
        var since: MonotonicTime
        /// The shortest of its stages that took a whole round trip. A connect does not count, since a middlebox may
        /// answer.
        var roundTrip: Duration?
    }

    private enum Phase: Sendable {
        /// Before ``start(now:)``.
        case idle
        case running
        /// The session has ended. It does not start again.
        case stopped
    }

    private struct Active: Sendable {
        var id: AttemptID
        var endpoint: HostPort
        var lastHeard: MonotonicTime
        var line: LineWatch
        var welcome: Welcome
        /// The node accepted a stream: from now on it sends at least every stream keepalive.
        var isStreaming = false
        /// The node redirected its clients.
        var isLeaving = false
    }

    public let configuration: Configuration
    public private(set) var endpoints: [HostPort]
    private var random: SeededRandom
    private var nextEndpoint = 0
    private var nextID: AttemptID = 1
    private var active: Active?
    /// The connection to a node that leaves, and when it is closed.
    private var retiring: (id: AttemptID, until: MonotonicTime)?
    private var attempts: [Attempt] = []
    private var lastConnect = MonotonicTime.zero
    private var connects = LineEstimate()
    private var handshakes = LineEstimate()
    private var hellos = LineEstimate()
    /// Of the last active connection. Jitter mostly comes from the client's own access line.
    private var jitter = Duration.zero
    /// The refusals of the token since the last welcome: the endpoint, and the node's name if it was sent.
    private var refusals: [(endpoint: HostPort, node: String)] = []
    private var failuresInRound = 0
    private var backoff: Backoff
    private var notBefore = MonotonicTime.zero
    private var lostSince: MonotonicTime?
    private var reported: LinkState?
    private var phase = Phase.idle
    private var hasStreams = false
    /// The node that was lost had a spread, and no other has admitted this client since.
    private var isOneOfMany = false

    /// Makes a machine that has not started.
    ///
    /// - Parameters:
    ///   - configuration: the delays and bounds.
    ///   - endpoints: the endpoints to start with.
    ///   - seed: distributes clients over endpoints and time.
    public init(configuration: Configuration, endpoints: [HostPort], seed: UInt64) {
        self.configuration = configuration
        self.endpoints = endpoints
        random = SeededRandom(seed: seed)
        backoff = Backoff(first: configuration.backoffMin, longest: configuration.backoffMax)
    }

    public var activeID: AttemptID? { active?.id }
    /// The number of connections that are being made.
    public var attemptCount: Int { attempts.count }

    /// Connects. Has no effect on a machine that was started before.
    public mutating func start(now: MonotonicTime) -> [Action] {
        guard phase == .idle else { return [] }
        phase = .running
        lostSince = now
        return connectNext(now: now)
    }

    // MARK: - Attempts

    /// The attempt's TCP connection is established.
    public mutating func connected(_ id: AttemptID, now: MonotonicTime) -> [Action] {
        guard let index = index(of: id, in: .connecting) else { return [] }
        connects.measured(now - attempts[index].since)
        attempts[index].stage = .connected
        attempts[index].since = now
        return advance(now: now)
    }

    /// The attempt's TLS handshake is complete.
    public mutating func secured(_ id: AttemptID, now: MonotonicTime) -> [Action] {
        guard let index = index(of: id, in: .securing) else { return [] }
        let span = now - attempts[index].since
        handshakes.measured(span)
        attempts[index].roundTrip = span
        attempts[index].stage = .secured
        attempts[index].since = now
        return advance(now: now)
    }

    /// The node answered the hello.
    public mutating func welcomed(_ id: AttemptID, _ welcome: Welcome, now: MonotonicTime) -> [Action] {
        guard let index = index(of: id, in: .greeting), phase != .stopped else { return [.drop(id)] }
        let attempt = attempts.remove(at: index)
        let span = now - attempt.since
        hellos.measured(span)
        let roundTrip = min(span, attempt.roundTrip ?? span)
        var actions: [Action] = []
        if let active {
            // The old connection has recovered in the meantime. It stays, since it has the streams.
            if !isSilent(active, now: now) { return [.drop(id)] }
            jitter = active.line.jitter
            actions += active.isLeaving ? retire(active.id, roundTrip, now: now) : [.drop(active.id)]
        }
        actions += dropAttempts()
        active = Active(
            id: id, endpoint: attempt.endpoint, lastHeard: now,
            line: LineWatch(roundTrip: roundTrip, jitter: jitter), welcome: welcome)
        failuresInRound = 0
        isOneOfMany = false
        refusals = []
        backoff.reset()
        lostSince = nil
        learn(welcome.endpoints)
        actions.append(.activate(id))
        actions += report(.online)
        return actions
    }

    /// The connection or the attempt has ended. `error` and `node` are what the node sent, if anything.
    public mutating func closed(
        _ id: AttemptID, error: ApusError?, node: String = "", now: MonotonicTime
    ) -> [Action] {
        guard phase != .stopped else { return [] }
        if retiring?.id == id { retiring = nil }
        let attempt = attempts.first { $0.id == id }
        attempts.removeAll { $0.id == id }
        guard let endpoint = attempt?.endpoint ?? (active?.id == id ? active?.endpoint : nil) else { return [] }
        if let error, let end = end(by: error.code, endpoint: endpoint, node: node) { return stop(end) }
        if let active, active.id == id {
            // The other endpoints first: this one is the least likely to accept.
            if let index = endpoints.firstIndex(of: active.endpoint) { nextEndpoint = index + 1 }
            jitter = active.line.jitter
            self.active = nil
            lostSince = now
            failuresInRound = 0
            // Where the node has ended this connection alone, there are no others to be spread from.
            let isNodeGone = node.isEmpty || error?.code == .shuttingDown
            let spread = isNodeGone ? active.welcome.reconnectSpread : .zero
            isOneOfMany = spread > .zero
            if !hasStreams { notBefore = now + spread * random.nextUnit() }
            return attempts.isEmpty ? connectNext(now: now) : advance(now: now)
        }
        failuresInRound += 1
        if failuresInRound >= endpoints.count {
            failuresInRound = 0
            notBefore = now + backoff.next() * (0.5 + random.nextUnit())
            return advance(now: now)
        }
        return active == nil && attempts.isEmpty ? connectNext(now: now) : advance(now: now)
    }

    // MARK: - The active connection

    /// The active node is leaving and names other endpoints. A connection there is opened first.
    public mutating func redirected(_ id: AttemptID, endpoints new: [HostPort], now: MonotonicTime) -> [Action] {
        guard let endpoint = active?.endpoint, active?.id == id, phase != .stopped else { return [] }
        active?.isLeaving = true
        endpoints.removeAll { $0 == endpoint }
        learn(new)
        return attempts.isEmpty ? connectNext(now: now) : []
    }

    /// - Parameter roundTrip: That of the next connection. Opening a stream takes one, and frames arrive after it.
    private mutating func retire(_ id: AttemptID, _ roundTrip: Duration, now: MonotonicTime) -> [Action] {
        let earlier = retiring.map { [Action.drop($0.id)] } ?? []
        retiring = (id, now + configuration.retireTimeout + roundTrip * 4)
        return earlier + [.retire(id)]
    }

    /// Nothing is expected on a connection that was retired.
    public mutating func moved(_ id: AttemptID) -> [Action] {
        guard retiring?.id == id else { return [] }
        retiring = nil
        return [.drop(id)]
    }

    /// Bytes arrived from the node.
    public mutating func heard(_ id: AttemptID, now: MonotonicTime) {
        guard var active, active.id == id else { return }
        if active.isStreaming {
            active.line.heard(after: now - active.lastHeard, keepalive: active.welcome.streamKeepalive)
        }
        active.lastHeard = now
        self.active = active
    }

    /// The node answered a ping after this time.
    public mutating func ponged(_ id: AttemptID, roundTrip: Duration, reconnectSpread: Duration = .zero) {
        guard active?.id == id else { return }
        active?.line.measured(roundTrip: roundTrip)
        active?.welcome.reconnectSpread = reconnectSpread
    }

    /// Somebody waits for the link: a client that waits for its turn connects now.
    public mutating func wanted(now: MonotonicTime) -> [Action] {
        // A round that failed has its own wait.
        guard phase == .running, active == nil, backoff.isFirst else { return [] }
        notBefore = min(notBefore, now)
        return attempts.isEmpty ? connectNext(now: now) : []
    }

    /// Streams are open from now on, or none is. The node has the time of an answer from here on.
    public mutating func streamsWanted(_ isWanted: Bool, now: MonotonicTime) {
        guard hasStreams != isWanted else { return }
        hasStreams = isWanted
        active?.isStreaming = false
        if isWanted { active?.lastHeard = now }
    }

    /// The node accepted a stream: its shorter keepalive applies.
    public mutating func streamOpened(_ id: AttemptID, now: MonotonicTime) {
        guard hasStreams, active?.id == id, active?.isStreaming == false else { return }
        active?.isStreaming = true
        active?.lastHeard = now
    }

    // MARK: - Time

    public mutating func tick(now: MonotonicTime) -> [Action] {
        guard phase != .stopped else { return [] }
        var actions: [Action] = []
        if let retiring, now >= retiring.until { actions += moved(retiring.id) }
        for attempt in attempts where attempt.stage.isAwaited && now - attempt.since >= timeout(attempt.stage) {
            timedOut(attempt.stage)
            actions.append(.drop(attempt.id))
            actions += closed(attempt.id, error: nil, now: now)
        }
        if let active, !isSilent(active, now: now) {
            actions += dropAttempts()
        } else {
            actions += advance(now: now)
            if attempts.allSatisfy({ isOverdue($0, now: now) }), isHedgeDue(now: now) {
                actions += connectNext(now: now)
            }
        }
        if let lostSince, active == nil, now - lostSince >= configuration.offlineGrace {
            actions += report(.offline)
        }
        return actions
    }

    /// The time of the next ``tick(now:)`` if nothing happens before; nil before ``start(now:)`` and after the end of
    /// the session.
    ///
    /// While bytes arrive from the active node, this is when its silence would be too long, so an undisturbed client
    /// sleeps.
    public func nextTick(now: MonotonicTime) -> MonotonicTime? {
        guard phase == .running else { return nil }
        // What is due already is done at the next tick.
        let soon = now + Self.tickDelay
        var times = retiring.map { [max($0.until, soon)] } ?? []
        if let active, !isSilent(active, now: now) {
            times.append(attempts.isEmpty ? active.lastHeard + silenceMax(of: active) : soon)
        } else {
            // These may have had their effect, or wait for something else.
            var hints = [nextHedge, notBefore]
            for attempt in attempts where attempt.stage.isAwaited {
                hints.append(attempt.since + delay(attempt.stage))
                times.append(max(attempt.since + timeout(attempt.stage), soon))
            }
            if attempts.isEmpty { times.append(max(notBefore, soon)) }
            if let lostSince, active == nil, reported != .offline {
                times.append(max(lostSince + configuration.offlineGrace, soon))
            }
            times += hints.filter { $0 > now }
        }
        return times.min()
    }
    /// How soon ``tick(now:)`` is wanted if there is something to do already.
    private static let tickDelay = Duration.milliseconds(20)

    /// The client ends the session.
    public mutating func stop() -> [Action] { stop(.offline) }

    private mutating func stop(_ state: LinkState) -> [Action] {
        phase = .stopped
        var actions = dropAttempts()
        for id in [active?.id, retiring?.id] { actions += id.map { [.drop($0)] } ?? [] }
        (active, retiring) = (nil, nil)
        return actions + report(state)
    }

    /// The longest silence of the active node before another one is tried.
    public var silenceMax: Duration? { active.map { silenceMax(of: $0) } }

    private func silenceMax(of active: Active) -> Duration {
        let way = active.line.roundTrip * 2
        guard hasStreams else { return max(configuration.idleSilenceMax, active.welcome.keepalive * 2) + way }
        guard active.isStreaming else { return configuration.openingSilenceMax + way }
        let seen = way + active.line.jitter * 3 / 2
        return active.welcome.streamKeepalive
            + min(max(configuration.silenceMargin, seen), configuration.silenceCeiling)
    }

    private func isSilent(_ active: Active, now: MonotonicTime) -> Bool {
        active.isLeaving || now - active.lastHeard >= silenceMax(of: active)
    }

    // MARK: - Stages

    /// Lets waiting attempts continue, the most advanced first, unless a more advanced one is still in time.
    private mutating func advance(now: MonotonicTime) -> [Action] {
        if let active, !isSilent(active, now: now) { return [] }
        var actions: [Action] = []
        for stage in [Stage.secured, .connected] {
            guard let index = attempts.firstIndex(where: { $0.stage == stage }) else { continue }
            let next: Stage = stage == .secured ? .greeting : .securing
            let isLed = attempts.contains { $0.stage >= next && !isOverdue($0, now: now) }
            guard !isLed else { continue }
            attempts[index].stage = next
            attempts[index].since = now
            actions.append(next == .greeting ? .greet(attempts[index].id) : .secure(attempts[index].id))
        }
        return actions
    }

    private func index(of id: AttemptID, in stage: Stage) -> Int? {
        attempts.firstIndex { $0.id == id && $0.stage == stage }
    }

    private func estimate(_ stage: Stage) -> LineEstimate {
        switch stage {
        case .connecting, .connected: connects
        case .securing, .secured: handshakes
        case .greeting: hellos
        }
    }

    private mutating func timedOut(_ stage: Stage) {
        switch stage {
        case .connecting, .connected: connects.timedOut()
        case .securing, .secured: handshakes.timedOut()
        case .greeting: hellos.timedOut()
        }
    }

    /// How long the stage may take before another attempt overtakes this one.
    private func delay(_ stage: Stage) -> Duration {
        let isPatient = isOneOfMany && !hasStreams
        let bounds = (
            isPatient ? configuration.hedgeDelayMinOfMany : configuration.hedgeDelayMin, configuration.hedgeDelayMax
        )
        if let measured = estimate(stage).delay { return min(max(measured, bounds.0), bounds.1) }
        // A stage without a measurement is assumed to take at least as long as a measured one.
        let others = [connects, handshakes, hellos].compactMap(\.delay)
        return min(max(configuration.hedgeDelayInitial, isPatient ? bounds.0 : .zero, others.max() ?? .zero), bounds.1)
    }

    private func timeout(_ stage: Stage) -> Duration {
        guard estimate(stage).isMeasured else { return configuration.stageTimeoutMax }
        return min(max(delay(stage) * 4, configuration.stageTimeoutMin), configuration.stageTimeoutMax)
    }

    private func isOverdue(_ attempt: Attempt, now: MonotonicTime) -> Bool {
        attempt.stage.isAwaited && now - attempt.since >= delay(attempt.stage)
    }

    /// True if the last attempt had the time of a connect, which grows with the number of attempts.
    private func isHedgeDue(now: MonotonicTime) -> Bool {
        attempts.isEmpty || attempts.count < configuration.attemptsMax && now >= nextHedge
    }

    private var nextHedge: MonotonicTime {
        lastConnect + delay(.connecting) * (1 << max(0, attempts.count - 1))
    }

    private mutating func dropAttempts() -> [Action] {
        defer { attempts = [] }
        return attempts.map { .drop($0.id) }
    }

    // MARK: - Ends

    /// The state in which the error ends the session (``ErrorCode/endings``); nil if the client keeps trying.
    private mutating func end(by code: ErrorCode, endpoint: HostPort, node: String) -> LinkState? {
        if code.ends(.session) { return code == .kicked ? .kicked : .tokenFailed }
        guard code.ends(.sessionByTwoNodes) else { return nil }
        refusals.removeAll { $0.endpoint == endpoint }
        refusals.append((endpoint, node.isEmpty ? endpoint.description : node))
        let areAll = endpoints.allSatisfy { known in refusals.contains { $0.endpoint == known } }
        return areAll || Set(refusals.map(\.node)).count >= Self.refusalsNeeded ? .tokenFailed : nil
    }
    /// The number of nodes that must agree before a token is given up.
    private static let refusalsNeeded = 2

    private mutating func report(_ state: LinkState) -> [Action] {
        guard reported != state else { return [] }
        reported = state
        return [.report(state)]
    }

    // MARK: - Endpoints

    private mutating func learn(_ new: [HostPort]) {
        guard !new.isEmpty else { return }
        // An endpoint that worked before stays known, after those that the cluster names.
        endpoints = new + endpoints.filter { !new.contains($0) }
        if endpoints.count > Self.endpointsMax { endpoints.removeLast(endpoints.count - Self.endpointsMax) }
        nextEndpoint = 0
    }
    private static let endpointsMax = 32

    private mutating func connectNext(now: MonotonicTime) -> [Action] {
        guard !endpoints.isEmpty, now >= notBefore else { return [] }
        let refused = refusals.map(\.endpoint)
        var free = endpoints.filter { endpoint in
            active?.endpoint != endpoint && !attempts.contains { $0.endpoint == endpoint }
        }
        // The network path may have failed silently while the node is up.
        if free.isEmpty, attempts.isEmpty, let active { free = endpoints.filter { $0 == active.endpoint } }
        // An endpoint that refused the token is used again only if no other is left.
        let isAnyWilling = free.contains { !refused.contains($0) }
        for _ in endpoints.indices {
            let endpoint = endpoints[nextEndpoint % endpoints.count]
            nextEndpoint += 1
            guard free.contains(endpoint), !isAnyWilling || !refused.contains(endpoint) else { continue }
            let attempt = Attempt(id: nextID, endpoint: endpoint, since: now)
            nextID += 1
            attempts.append(attempt)
            lastConnect = now
            return [.connect(attempt.id, endpoint)]
        }
        return []
    }
}

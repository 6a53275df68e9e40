public import ApusContract
public import ApusCore
import ApusTLS
import ApusWire
import Foundation
public import Logging
public import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// The configuration of a client.
public struct ClientConfiguration: Sendable {
    /// Endpoints to start with. The cluster reports the others.
    public var endpoints: [HostPort]
    /// PEM file of the authority that signed the endpoints' certificates.
    public var authorityFile: String
    /// The signed token that identifies the client (IV-A2).
    public var token: String
    public var role: ClientRole
    /// Software and version, for operators.
    public var agent: String
    /// The policy for trying other endpoints.
    public var link = LinkStateMachine.Configuration()
    /// The cluster receives reports of what the session's players play (IV-G4): times and counts, and no content.
    public var reportsPlays = true

    public init(endpoints: [HostPort], authorityFile: String, token: String, role: ClientRole, agent: String = "apus") {
        self.endpoints = endpoints
        self.authorityFile = authorityFile
        self.token = token
        self.role = role
        self.agent = agent
    }
}

/// A client's session with the cluster. It keeps one connection to an endpoint, replaces the connection when its node
/// fails, and moves its streams to the new one (IV-A4 to IV-A7).
///
/// Concurrency model: everything happens on ``eventLoop``. Public methods hop to it, and callbacks are called on it. A
/// callback must not block.
public final class ClientSession: @unchecked Sendable {  // SAFETY: state is confined to `eventLoop`.
    public let eventLoop: any EventLoop
    let log: Logger
    let configuration: ClientConfiguration
    private let tls: TLSClientContext
    /// Shared by the session's connections, so that each can resume the TLS session of an earlier one.
    private let resumption = TLSResumption()
    private var machine: LinkStateMachine
    private var connections: [LinkStateMachine.AttemptID: ClientConnection] = [:]
    private(set) var active: ClientConnection?
    /// The connection to a node that leaves, until nothing is expected on it any more.
    private var retiring: ClientConnection?
    private var streams: [any SessionStream] = []
    private var ticket = Data()
    /// Identifies all connections of this session as one client to the cluster (docs/decisions/7).
    private let instance = UInt64.random(in: 1...(.max))
    private var isStarted = false
    /// The next check of the link.
    private var alarm: (at: MonotonicTime, task: Scheduled<Void>)?
    private var nextPing = MonotonicTime.zero
    private var pingInterval = ClientSession.pingIntervalMin
    /// What is heard, by topic.
    var topics: [String: TopicSubscription] = [:]
    /// Topics whose events the node stops while the device sleeps.
    var pausedTopics: Set<String> = []
    /// What waits for its answer.
    let commandsInProgress = CommandsInProgress()
    /// Accepted calls, by id, whose notice is not confirmed yet. Each stays for ``acceptanceDelay`` at most.
    let acceptances = Mutex<Set<String>>([])
    let openCalls = Mutex(OpenCalls())
    private let onLinkState: @Sendable (LinkState, ApusError?) -> Void
    /// Called with the endpoint of each connection that becomes the session's.
    private var watchers: [UUID: @Sendable (HostPort) -> Void] = [:]
    /// Called with each change of the link's state.
    private var linkWatchers: [UUID: @Sendable (LinkState) -> Void] = [:]
    private var lastError: ApusError?
    /// Why the cluster has refused the token.
    private(set) var refusal: ApusError?

    /// The first interval between pings of a connection, which measure the round trip. The interval then doubles.
    private static let pingIntervalMin = Duration.seconds(1)
    /// The longest time without a message of the client.
    private static let pingIntervalMax = Duration.seconds(8)
    /// The same while a stream is open: the node then sends all the time, and the kernel acknowledges.
    private static let streamPingIntervalMax = Duration.seconds(40)

    /// A logger that discards everything.
    public static let loggingDisabled = Logger(label: "apus.client") { _ in SwiftLogNoOpLogHandler() }

    /// Makes a session, which connects once ``start()`` is called.
    ///
    /// - Parameters:
    ///   - configuration: the endpoints to start with, and the client's identity.
    ///   - eventLoop: runs the session; nil: one of the loops that swift-nio's users of the process share.
    ///   - log: for events of the session. Tokens and payloads are never logged.
    ///   - onLinkState: called on the event loop at every change, with the last error.
    /// - Throws: 10022 if the authority's file cannot be used.
    public init(
        configuration: ClientConfiguration, eventLoop: (any EventLoop)? = nil,
        log: Logger = ClientSession.loggingDisabled,
        onLinkState: @escaping @Sendable (LinkState, ApusError?) -> Void = { _, _ in }
    ) throws(ApusError) {
        self.configuration = configuration
        self.eventLoop = eventLoop ?? MultiThreadedEventLoopGroup.singleton.next()
        self.log = log
        self.onLinkState = onLinkState
        tls = try TLSClientContext(authorityFile: configuration.authorityFile)
        machine = LinkStateMachine(
            configuration: configuration.link, endpoints: configuration.endpoints, seed: UInt64.random(in: 0...(.max)))
    }

    /// Starts to connect. Has no effect the second time.
    public func start() {
        eventLoop.execute { [self] in
            guard !isStarted else { return }
            isStarted = true
            run(machine.start(now: .now()))
        }
    }

    /// Ends the session and every stream.
    public func close() {
        eventLoop.execute { [self] in
            lastError = ApusError(.cancelled)
            run(machine.stop())
            streams.removeAll()
        }
    }

    /// Calls `onActive` on the event loop with the endpoint of each connection that becomes the session's.
    package func watchConnections(_ onActive: @escaping @Sendable (HostPort) -> Void) {
        eventLoop.execute { self.watchers[UUID()] = onActive }
    }

    /// The endpoint of each connection that becomes the session's from now on; the newest of those that wait for the
    /// consumer.
    package func newConnections() -> AsyncStream<HostPort> {
        let (stream, feed) = AsyncStream<HostPort>.makeStream(bufferingPolicy: .bufferingNewest(1))
        let id = UUID()
        feed.onTermination = { [weak self, eventLoop] _ in
            eventLoop.execute { [weak self] in self?.watchers[id] = nil }
        }
        eventLoop.execute { self.watchers[id] = { feed.yield($0) } }
        return stream
    }

    /// The changes of the link's state from now on; the newest of those that wait for the consumer.
    package func linkStates() -> AsyncStream<LinkState> {
        let (stream, feed) = AsyncStream<LinkState>.makeStream(bufferingPolicy: .bufferingNewest(1))
        let id = UUID()
        feed.onTermination = { [weak self, eventLoop] _ in
            eventLoop.execute { [weak self] in self?.linkWatchers[id] = nil }
        }
        eventLoop.execute { self.linkWatchers[id] = { feed.yield($0) } }
        return stream
    }

    /// The endpoint of the node that the session is connected to; nil if it is connected to none.
    package func currentEndpoint() async -> HostPort? { try? await eventLoop.submit { self.active?.endpoint }.get() }

    // MARK: - Streams, on the loop

    func add(_ stream: any SessionStream) {
        eventLoop.assertInEventLoop()
        streams.append(stream)
        machine.streamsWanted(true, now: .now())
        if let active { stream.attach(to: active, from: nil) }
        wanted()
        schedule()
    }

    /// Somebody waits for the link.
    func wanted() {
        if active == nil { run(machine.wanted(now: .now())) }
    }

    func remove(_ stream: any SessionStream) {
        eventLoop.assertInEventLoop()
        streams.removeAll { $0 === stream }
        checkRetired()
        let now = MonotonicTime.now()
        machine.streamsWanted(!streams.isEmpty, now: now)
        // Without a stream the node expects messages more often than a stream's interval allows.
        if streams.isEmpty { nextPing = min(nextPing, now + Self.pingIntervalMax) }
        schedule()
    }

    // MARK: - The machine

    private func run(_ actions: [LinkStateMachine.Action]) {
        for action in actions {
            switch action {
            case .connect(let id, let endpoint): connect(id, endpoint)
            case .secure(let id): connections[id]?.secure(tls: tls, resumption: resumption)
            case .greet(let id): connections[id]?.greet(hello)
            case .drop(let id):
                let connection = connections.removeValue(forKey: id)
                if connection === active { active = nil }
                if connection === retiring { retiring = nil }
                connection?.close()
            case .activate(let id): activate(id)
            case .retire(let id): retiring = connections[id]
            case .report(let state):
                if state == .tokenFailed { refusal = lastError ?? ApusError(.tokenInvalid) }
                onLinkState(state, lastError)
                for watcher in linkWatchers.values { watcher(state) }
            }
        }
        schedule()
    }

    /// Sets the alarm if it would come too late. An alarm that comes too early sets the next one.
    private func schedule() {
        let now = MonotonicTime.now()
        guard let tick = machine.nextTick(now: now) else {
            alarm?.task.cancel()
            alarm = nil
            return
        }
        let next = active == nil ? tick : min(tick, nextPing)
        if let alarm, alarm.at <= next { return }
        alarm?.task.cancel()
        let delay = TimeAmount(max(.zero, next - now))
        let task = eventLoop.assumeIsolated().scheduleTask(in: delay) { [weak self] () -> Void in self?.tick() }
        alarm = (next, task)
    }

    private func connect(_ id: LinkStateMachine.AttemptID, _ endpoint: HostPort) {
        let connection = ClientConnection(id: id, endpoint: endpoint, eventLoop: eventLoop)
        connection.owner = self
        connections[id] = connection
        connection.connect(timeout: configuration.link.stageTimeoutMax)
    }

    private var hello: ClientHello {
        .with {
            $0.version = 1
            $0.versionMin = 1
            $0.role = configuration.role
            $0.token = configuration.token
            $0.ticket = ticket
            $0.agent = configuration.agent
            $0.instance = instance
        }
    }

    private func activate(_ id: LinkStateMachine.AttemptID) {
        guard let connection = connections[id] else { return }
        log.debug("The client is connected", metadata: [LogKey.address: "\(connection.endpoint)"])
        active = connection
        for watcher in watchers.values { watcher(connection.endpoint) }
        for stream in streams { stream.attach(to: connection, from: retiring) }
        for topic in topics.keys.sorted() { subscribe(topic, on: connection) }
        // Notifies the node that this connection was chosen, and measures the round trip.
        pingInterval = Self.pingIntervalMin
        ping(connection, now: .now())
        checkRetired()
    }

    /// Closes the connection to a node that leaves once every stream has moved and every request on it was answered.
    func checkRetired() {
        guard let retiring, !retiring.hasCalls, !streams.contains(where: \.isMoving) else { return }
        run(machine.moved(retiring.id))
    }

    private func ping(_ connection: ClientConnection, now: MonotonicTime) {
        connection.ping(now: now)
        nextPing = now + pingInterval
        pingInterval = min(pingInterval * 2, streams.isEmpty ? Self.pingIntervalMax : Self.streamPingIntervalMax)
    }

    private func tick() {
        alarm = nil
        let now = MonotonicTime.now()
        if let active, now >= nextPing { ping(active, now: now) }
        run(machine.tick(now: now))
    }
}

/// A stream of a session, across its connections. Confined to the session's event loop.
protocol SessionStream: AnyObject {
    /// A new connection is active. The stream must be opened on it, from its current position. Until it is, the stream
    /// goes on at the retiring connection, if there is one.
    func attach(to connection: ClientConnection, from retiring: ClientConnection?)
    /// True while the stream uses a retiring connection. Its end is reported by ``ClientSession/checkRetired()``.
    var isMoving: Bool { get }
    /// A frame or a tell arrived, for this stream or for another.
    func received(_ frame: LinkFrame, on connection: ClientConnection)
    func becameWritable(_ connection: ClientConnection)
}

extension ClientSession: ClientConnectionOwner {
    func connected(_ connection: ClientConnection) { run(machine.connected(connection.id, now: .now())) }

    func secured(_ connection: ClientConnection) { run(machine.secured(connection.id, now: .now())) }

    func welcomed(_ connection: ClientConnection, _ message: ClientWelcome) {
        let welcome = LinkStateMachine.Welcome(
            endpoints: message.endpoints.compactMap { HostPort($0) },
            keepalive: .milliseconds(Int64(message.keepaliveMs)),
            streamKeepalive: .milliseconds(Int64(message.streamKeepaliveMs)),
            reconnectSpread: .milliseconds(Int64(message.reconnectSpreadMs)))
        let actions = machine.welcomed(connection.id, welcome, now: .now())
        // The session of a connection that is not activated ends with it. Its ticket would resume that session.
        if actions.contains(.activate(connection.id)) { ticket = message.ticket }
        run(actions)
    }

    func ponged(_ connection: ClientConnection, _ pong: ClientPong, roundTrip: Duration) {
        machine.ponged(
            connection.id, roundTrip: roundTrip, reconnectSpread: .milliseconds(Int64(pong.reconnectSpreadMs)))
        // On a faster connection than assumed, the allowed silence is shorter too.
        schedule()
    }

    func streamOpened(_ connection: ClientConnection) {
        machine.streamOpened(connection.id, now: .now())
        schedule()
    }

    func received(_ frame: LinkFrame, on connection: ClientConnection) {
        guard connection === active else {
            if connection === retiring { for stream in streams { stream.received(frame, on: connection) } }
            return
        }
        if frame.kind == .tell, frame.method == ClientMethod.event.rawValue { return heard(frame.payload) }
        if frame.kind == .tell, frame.method == ClientMethod.endpointsChanged.rawValue {
            guard let message = try? ClientEndpointsChanged(bounded: frame.payload),
                message.leaving
            else { return }
            run(
                machine.redirected(connection.id, endpoints: message.endpoints.compactMap { HostPort($0) }, now: .now())
            )
            return
        }
        for stream in streams { stream.received(frame, on: connection) }
    }

    func answered(_ connection: ClientConnection) {
        if connection === retiring { checkRetired() }
    }

    func heard(_ connection: ClientConnection) {
        machine.heard(connection.id, now: .now())
        // The attempts beside it are not needed any more.
        if active === connection, machine.attemptCount > 0 { schedule() }
    }

    func becameWritable(_ connection: ClientConnection) {
        for stream in streams { stream.becameWritable(connection) }
    }

    func closed(_ connection: ClientConnection, error: ApusError?, node: String) {
        connections[connection.id] = nil
        if connection === active { active = nil }
        if connection === retiring { retiring = nil }
        if let error { lastError = error }
        // The token itself decides at the next node, not the session that it had opened.
        if let code = error?.code, code.ends(.sessionByTwoNodes) || code == .deviceDisabled { ticket = Data() }
        run(machine.closed(connection.id, error: error, node: node, now: .now()))
    }
}

package import ApusCore
import ApusListener
package import ApusTracing
import ApusWire
package import Logging
package import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The control lanes to one incarnation of a peer. Look it up once and use it for many calls.
package struct PeerRoute: Sendable {
    let lanes: [ControlLink]

    /// The lane for this number. Messages with one number keep their order.
    private func lane(_ number: Int) -> ControlLink { lanes[number % lanes.count] }

    /// Runs tasks on a lane's event loop. A task that calls this peer often should run there: its calls are sent and
    /// its answers arrive without a change of threads.
    package func executor(lane number: Int) -> LoopTaskExecutor { lane(number).executor }

    /// Sends a request over the lane of this number. The closure appends the payload to the output.
    ///
    /// - Parameters:
    ///   - byteCount: the number of bytes that the closure appends.
    ///   - trace: the trace that the request continues.
    /// - Returns: the request. Its outcome must be awaited once.
    package func request(
        lane number: Int, method: UInt16, byteCount: Int, deadline: MonotonicTime, trace: TraceContext? = nil,
        _ write: (inout ByteBuffer) -> Void
    ) -> SentRequest {
        let link = lane(number)
        let span = trace == nil ? nil : link.startSpan(of: method, trace)
        return SentRequest(
            link: link, state: link.request(method: method, byteCount: byteCount, deadline: deadline, span, write),
            span: span)
    }

    /// As ``Transport/tell(_:method:payload:)``, over the lane of this number. The closure is as in
    /// ``request(lane:method:byteCount:deadline:_:)``.
    package func tell(
        lane number: Int, method: UInt16, byteCount: Int, _ write: (inout ByteBuffer) -> Void
    ) throws(ApusError) {
        try lane(number).tell(method: method, byteCount: byteCount, write)
    }
}

/// A request that was sent, or that failed to be sent.
package struct SentRequest: Sendable {
    fileprivate let link: ControlLink
    fileprivate let state: ControlLink.OnSend
    fileprivate let span: TraceSpan?

    /// The outcome, as ``Transport/call(_:method:payload:timeout:)``. Must be awaited once.
    package func outcome() async -> CallOutcome {
        let outcome: CallOutcome
        switch state {
        case .refused(let code): outcome = .failed(code)
        case .sent(let correlation): outcome = await withUnsafeContinuation { link.wait(for: correlation, $0) }
        }
        if let span { span.end(outcome) }
        return outcome
    }
}

extension TraceSpan {
    /// Notes the number of a failure.
    func note(_ outcome: CallOutcome) {
        if case .failure(let failure) = outcome { fail(failure.error.code) }
    }

    /// Ends the span of a call.
    func end(_ outcome: CallOutcome) {
        note(outcome)
        end()
    }
}

/// The links between this node and the others: mutual TLS 1.3, with control lanes and a media lane to each peer (D3).
///
/// Every node dials its own connections. Its control lanes carry its calls and tells, and the answers to them. Its
/// media lane carries frames in both directions, and is passed to the ``MediaLaneDelegate`` of both nodes. Each lane
/// keeps the order of each sender. Messages to a node itself use the first control lane. The messages of a shard use
/// one of them, so the calls of a pair of nodes are not bound to one core per side.
///
/// Concurrency model: one `Mutex` guards the peers and the accepted connections. Connections are on event loops of the
/// group, which the transport does not own.
package final class Transport: Sendable {
    struct PeerLinks {
        var peer: Peer
        /// The control lanes. The first one carries messages to the node itself.
        var control: [ControlLink]
        var dialers: [LinkDialer]
        /// The node through which the peer is dialled; nil if it is dialled directly.
        var helper: NodeName?
        /// The wire version of the newest link; nil before the first.
        var version: UInt32?
    }

    struct Accepted {
        var channel: any Channel
        /// Nil until the handshake is complete.
        var peer: NodeID?
    }

    struct State {
        enum Phase { case idle, running, stopped }
        var phase = Phase.idle
        var wanted: [Peer] = []
        var links: [NodeName: PeerLinks] = [:]
        var listener: (any Channel)?
        var accepted: [ObjectIdentifier: Accepted] = [:]
        var ended = EndedIncarnations()
        var handshakingCount = 0
        var forwardedCount = 0
    }

    let configuration: TransportConfiguration
    let identity: NodeID
    let cluster: ClusterID
    let group: any EventLoopGroup
    let loops: [any EventLoop]
    let control: any ControlHandler
    let media: any MediaLaneDelegate
    let onEvent: @Sendable (TransportEvent) -> Void
    let logger: Logger
    /// Nil if this node does not trace. A request then has no trace context, and that of a received one is skipped.
    package let tracer: SpanTracer?
    let metrics = TransportMetrics()
    let state = Mutex(State())
    let secrets = Mutex<TransportSecrets?>(nil)
    /// For log messages that unauthenticated peers can cause.
    let limited: LogLimiter
    let executors = LoopExecutors()

    /// - Parameters:
    ///   - identity: this incarnation of this node. Its name is the name in the node's certificate.
    ///   - group: the event loops to use. They must outlive the transport.
    ///   - onEvent: called on event loops; must not block.
    ///   - limited: for log messages that unauthenticated peers can cause. Its owner reports what was suppressed.
    ///   - tracer: records the calls of traced tasks, and those of other nodes.
    package init(
        configuration: TransportConfiguration, identity: NodeID, cluster: ClusterID, group: any EventLoopGroup,
        control: any ControlHandler, media: any MediaLaneDelegate,
        onEvent: @escaping @Sendable (TransportEvent) -> Void, logger: Logger, limited: LogLimiter? = nil,
        tracer: SpanTracer? = nil
    ) {
        self.configuration = configuration
        self.identity = identity
        self.cluster = cluster
        self.group = group
        loops = group.makeIterator().map { $0 }
        self.control = control
        self.media = media
        self.onEvent = onEvent
        self.logger = logger
        self.tracer = tracer
        self.limited = limited ?? LogLimiter(logger)
    }

    /// Opens the listener for other nodes and dials the peers that were set.
    ///
    /// - Returns: the bound address, with its actual port.
    /// - Throws: 10019 if the address is in use, 10022 if a certificate cannot be read or the address cannot be bound,
    ///   10017 after ``stop()``.
    package func start() async throws(ApusError) -> HostPort {
        let secrets = try TransportSecrets(
            unchecked: configuration.tls, revoked: configuration.revoked, forwardingKey: configuration.forwardingKey)
        self.secrets.withLock { $0 = secrets }
        let listener = try await listen()
        let wanted = state.withLock { state -> [Peer]? in
            guard state.phase == .idle else { return nil }
            state.phase = .running
            state.listener = listener
            return state.wanted
        }
        guard let wanted else {
            listener.close(promise: nil)
            throw ApusError(.shuttingDown)
        }
        keepOpen(listener)
        setPeers(wanted)
        let bound = HostPort(host: configuration.bind.host, port: listener.localAddress?.port ?? 0)
        logger.info("The node transport is open", metadata: [LogKey.address: "\(bound)"])
        return bound
    }

    /// Sets the peers. The transport dials both lanes to each new peer and closes the links to peers that are no longer
    /// in the list. If a peer's incarnation or address changed, its links are replaced. Calls in flight on a closed
    /// link fail with 10008. Before ``start()`` the list is only stored.
    ///
    /// An incarnation that was in the list and is in it no more has ended, as has each one before an incarnation in the
    /// list. Nothing that it sends later is received: what it sent before it ended may wait in its machine, behind a
    /// path that is cut, until others have carried out the same requests.
    package func setPeers(_ peers: [Peer]) {
        let peers = peers.filter { $0.id.name != identity.name }
        let (dropped, added, ended) = state.withLock { state -> ([PeerLinks], [PeerLinks], [any Channel]) in
            state.ended.update(from: state.wanted, to: peers)
            state.wanted = peers
            guard state.phase == .running else { return ([], [], []) }
            var dropped: [PeerLinks] = []
            var added: [PeerLinks] = []
            for (name, links) in state.links where !peers.contains(links.peer) {
                dropped.append(links)
                state.links[name] = nil
            }
            for peer in peers where state.links[peer.id.name] == nil {
                let links = makeLinks(to: peer)
                added.append(links)
                state.links[peer.id.name] = links
            }
            let ended = state.accepted.values.filter { $0.peer.map(state.ended.contains) ?? false }.map(\.channel)
            return (dropped, added, ended)
        }
        for channel in ended { channel.pipeline.fireUserInboundEventTriggered(PeerEnded()) }
        for links in dropped {
            for link in links.control { link.end() }
            for dialer in links.dialers { _ = dialer.stop() }
        }
        for links in added { for dialer in links.dialers { dialer.start() } }
    }

    /// The wire version that this node and a peer speak with each other; nil if no link to this incarnation was up yet.
    package func wireVersion(of peer: NodeID) -> UInt32? {
        state.withLock { state in
            state.links[peer.name].flatMap { $0.peer.id == peer ? $0.version : nil }
        }
    }

    func note(_ version: UInt32, of peer: NodeID) {
        state.withLock { state in
            guard state.links[peer.name]?.peer.id == peer else { return }
            state.links[peer.name]?.version = version
        }
    }

    /// Sends a request and waits for the answer, for at most `timeout`.
    ///
    /// - Throws: 10010 without a link, 10007 if a limit is reached, 10005 after the deadline, 10006 if the task was
    ///   cancelled, 10008 if the link was lost in flight, or the peer's refusal.
    package func ask(
        _ peer: NodeName, method: UInt16, payload: ByteBuffer, timeout: Duration
    ) async throws(ApusError) -> ByteBuffer {
        switch await call(peer, method: method, payload: payload, timeout: timeout) {
        case .reply(let reply): return reply
        case .failure(let failure): throw failure.error
        }
    }

    /// As ``ask(_:method:payload:timeout:)``, with all details of a refusal.
    package func call(
        _ peer: NodeName, method: UInt16, payload: ByteBuffer, timeout: Duration
    ) async -> CallOutcome {
        guard let link = link(to: peer) else { return .failed(.noRoute) }
        return await link.call(method: method, payload: payload, deadline: .now() + timeout)
    }

    /// Sends a message without an answer. It is lost if the link is lost.
    ///
    /// - Parameter lane: messages with one number keep their order.
    /// - Throws: 10010 without a link, 10007 if a limit is reached, 10002 if the message is too large.
    package func tell(_ peer: NodeName, lane: Int = 0, method: UInt16, payload: ByteBuffer) throws(ApusError) {
        guard let link = link(to: peer, lane: lane) else { throw ApusError(.noRoute) }
        try link.tell(method: method, byteCount: payload.readableBytes) { $0.writeImmutableBuffer(payload) }
    }

    /// Closes the listener and every link. Returns when all are closed. Calls in flight fail with 10008.
    package func stop() async {
        let (links, listener, accepted) = state.withLock { state in
            state.phase = .stopped
            defer {
                state.links = [:]
                state.listener = nil
            }
            return (Array(state.links.values), state.listener, state.accepted.values.map(\.channel))
        }
        var closing: [EventLoopFuture<Void>] = []
        if let listener { closing.append(listener.close()) }
        for peer in links {
            for link in peer.control { link.end() }
            for dialer in peer.dialers { closing.append(dialer.stop()) }
        }
        for channel in accepted { closing.append(channel.close()) }
        // Closing a channel that is closing by itself is not an error.
        try? await EventLoopFuture.andAllComplete(closing, on: group.next()).get()
    }

    /// The route to a peer, for callers that use it often; nil if it is not a peer. After the peer was removed or
    /// replaced, the route fails with 10010 for good: look it up again.
    package func route(to peer: NodeName) -> PeerRoute? {
        state.withLock { $0.links[peer].map { PeerRoute(lanes: $0.control) } }
    }

    /// The address at which this node reached that incarnation of a peer: the dialled address of the control link that
    /// is up, where the peer presented its certificate. Nil if no link is up, or if it goes through another node.
    package func linkedAddress(of peer: NodeID) -> HostPort? {
        guard let links = state.withLock({ $0.links[peer.name] }), links.peer.id == peer, links.helper == nil,
            links.control.first?.isOpen == true
        else { return nil }
        return links.peer.address
    }

    /// True if every control lane to the peer is up.
    package func isLinked(to peer: NodeName) -> Bool {
        state.withLock { $0.links[peer]?.control }?.allSatisfy(\.isOpen) ?? false
    }

    private func link(to peer: NodeName, lane: Int = 0) -> ControlLink? {
        state.withLock { state in
            guard let lanes = state.links[peer]?.control, !lanes.isEmpty else { return nil }
            return lanes[lane % lanes.count]
        }
    }
}

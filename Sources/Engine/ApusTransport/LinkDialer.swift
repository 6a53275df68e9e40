import ApusCore
import ApusTLS
import ApusWire
import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Keeps one lane to one peer connected. Runs a ``DialStateMachine`` on an event loop.
///
/// Concurrency model: everything runs on ``loop``. The `Mutex` only makes the state accessible there.
final class LinkDialer: Sendable {
    /// What a dial needs, and what is called with its result. Called on the loop.
    struct Delegate: Sendable {
        /// Makes the TLS handler of a connection. True: another node forwards the connection to the peer.
        var makeTLS: @Sendable (Bool) throws -> TLSHandler
        var makeHandshake: @Sendable () -> HandshakeStateMachine
        /// The certificates that are refused now.
        var revoked: @Sendable () -> RevokedCertificates
        var makeLane: @Sendable (LinkPeer, any Channel) -> any ChannelHandler
        var rejected: @Sendable (RejectReason, any Error) -> Void
        /// A report of the machine: up, lost or refused.
        var report: @Sendable (DialStateMachine.Action) -> Void
    }

    private struct State {
        var machine: DialStateMachine
        var channel: (any Channel)?
        /// Of the current attempt: the handshake is complete; another incarnation answered at the address.
        var isEstablished = false
        var isRefused = false
        /// The address of the node that forwards the connection; nil if the peer is dialled directly.
        var helper: HostPort?
    }

    let loop: any EventLoop
    private let address: HostPort
    private let configuration: TransportConfiguration
    private let delegate: Delegate
    private let state: Mutex<State>

    init(loop: any EventLoop, address: HostPort, configuration: TransportConfiguration, delegate: Delegate) {
        self.loop = loop
        self.address = address
        self.configuration = configuration
        self.delegate = delegate
        let machine = DialStateMachine(
            backoffMin: configuration.reconnectBackoffMin, backoffMax: configuration.reconnectBackoffMax)
        state = Mutex(State(machine: machine))
    }

    func start() { loop.execute { self.handle { $0.started() } } }

    /// Ends the link for good. Returns at once. The future succeeds when the connection is closed.
    func stop() -> EventLoopFuture<Void> {
        loop.submit {
            self.handle { $0.stopped() }
            return self.state.withLock { $0.channel }
        }.flatMap { channel in
            channel?.closeFuture ?? self.loop.makeSucceededVoidFuture()
        }
    }

    /// Dials at the helper's address from now on, or directly with nil. A present connection is closed.
    func setWay(via helper: HostPort?) {
        loop.execute {
            let channel = self.state.withLock { state in
                state.helper = helper
                return state.channel
            }
            if let channel { discardUnsent(channel) }
            self.handle { $0.rerouted() }
        }
    }

    /// Ends the present connection if the peer's certificate is in the list, and reports it as refused.
    func end(if revoked: RevokedCertificates) {
        loop.execute {
            guard let channel = self.state.withLock({ $0.channel }),
                let certificate = NodeCertificate.ofPeer(channel), revoked.contains(certificate)
            else { return }
            self.delegate.rejected(.revoked, ApusError(.certificateRevoked))
            self.close()
        }
    }

    private func handle(_ input: (inout DialStateMachine) -> [DialStateMachine.Action]) {
        loop.assertInEventLoop()
        for action in state.withLock({ input(&$0.machine) }) {
            switch action {
            case .connect: connect()
            case .retry(let wait): loop.scheduleTask(in: TimeAmount(wait)) { self.handle { $0.waited() } }
            case .reportUp, .reportLost, .reportRefused: delegate.report(action)
            case .close: close()
            }
        }
    }

    private func close() {
        if let channel = state.withLock({ $0.channel }) { closeAtOnce(channel) }
    }

    private func connect() {
        let helper = state.withLock { state in
            state.channel = nil
            state.isEstablished = false
            state.isRefused = false
            return state.helper
        }
        let address = helper ?? self.address
        let bootstrap = ClientBootstrap(group: loop)
            .connectTimeout(TimeAmount(configuration.connectTimeout))
            .channelOption(.tcpOption(.tcp_nodelay), value: 1)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture { try self.initialize(channel, isForwarded: helper != nil) }
            }
        let connecting: EventLoopFuture<any Channel>
        if let literal = try? SocketAddress(ipAddress: address.host, port: address.port) {
            connecting = bootstrap.connect(to: literal)
        } else {
            connecting = bootstrap.connect(host: address.host, port: address.port)
        }
        connecting.whenComplete { result in
            switch result {
            case .success(let channel): self.connected(channel)
            case .failure(let error):
                // The helper's refusal says nothing about the peer.
                let isRefused = helper == nil && Self.isRefusal(error)
                self.handle { $0.dialFailed(refused: isRefused, jitter: .random(in: 0..<1)) }
            }
        }
    }

    private func connected(_ channel: any Channel) {
        state.withLock { $0.channel = channel }
        channel.closeFuture.whenComplete { _ in
            let (isEstablished, isRefused) = self.state.withLock { state in
                state.channel = nil
                return (state.isEstablished, state.isRefused)
            }
            let jitter = Double.random(in: 0..<1)
            if isEstablished {
                self.handle { $0.lost(at: .now(), jitter: jitter) }
            } else {
                self.handle { $0.dialFailed(refused: isRefused, jitter: jitter) }
            }
        }
        // The peer may have been removed while TCP connected.
        self.handle { $0.isStopped ? [.close] : [] }
    }

    private func initialize(_ channel: any Channel, isForwarded: Bool) throws {
        closeOnExec(channel)
        let outcome = HandshakeHandler.Outcome(
            established: { peer, channel in
                self.state.withLock { $0.isEstablished = true }
                let lane = self.delegate.makeLane(peer, channel)
                self.handle { $0.established(at: .now()) }
                return lane
            },
            failed: { reason, error in
                if reason == .incarnation { self.state.withLock { $0.isRefused = true } }
                self.delegate.rejected(reason, error)
            })
        let handshake = HandshakeHandler(
            machine: delegate.makeHandshake(), timeout: TimeAmount(configuration.handshakeTimeout),
            revoked: delegate.revoked, outcome: outcome)
        try channel.pipeline.syncOperations.addHandlers([delegate.makeTLS(isForwarded), handshake])
    }

    static func isRefusal(_ error: any Error) -> Bool {
        switch error {
        case let error as IOError: error.errnoCode == ECONNREFUSED
        case let error as NIOConnectionError:
            !error.connectionErrors.isEmpty && error.connectionErrors.allSatisfy { isRefusal($0.error) }
        default: false
        }
    }
}

/// Makes the end of a connection discard what was not sent yet, and reset the connection (SO_LINGER, socket(7)). The
/// kernel would otherwise deliver a request of a connection that was given up when its path works again, long after the
/// request was sent again on another connection and carried out. Call on the channel's loop.
func discardUnsent(_ channel: any Channel) {
    guard let socket = channel as? any SocketOptionProvider else { return }
    // It fails if the socket is closed already.
    _ = socket.setSoLinger(linger(l_onoff: 1, l_linger: 0))
}

/// Closes a connection without TLS's farewell, which a path that is cut would delay. Call on the channel's loop.
func closeAtOnce(_ channel: any Channel) {
    let pipeline = channel.pipeline.syncOperations
    if let tls = try? pipeline.context(handlerType: TLSHandler.self) {
        tls.close(promise: nil)
    } else {
        channel.close(promise: nil)
    }
}

/// Sets close-on-exec, so that child processes do not inherit the socket. Call on the channel's loop.
func closeOnExec(_ channel: any Channel) {
    try? channel.pipeline.syncOperations.withUnsafeTransportIfAvailable(of: NIOBSDSocket.Handle.self) { handle in
        _ = fcntl(handle, F_SETFD, FD_CLOEXEC)
    }
}

import ApusChannels
package import ApusClientAPI
package import ApusCluster
package import ApusCore
package import ApusMediaAccess
import ApusSessions
package import ApusTLS
import Glibc
package import Logging
package import NIOCore
import NIOPosix
import ServiceLifecycle
import Synchronization

/// The listener for devices and apps: TLS 1.3, length-prefixed frames, one session per connection (D6).
/// Concurrency model: connections are confined to their event loops. Work that waits for other nodes runs in tasks of
/// ``run()``'s group, on the connection's loop.
package final class Gateway: Service, Sendable {
    package let configuration: GatewayConfiguration
    package let metrics = GatewayMetrics()
    let node: NodeID
    let sessions: SessionService
    let channels: ChannelService
    /// Who may publish and play what.
    let media: MediaAccess
    /// The requests and events of clients other than streams.
    let clients: ClientServices
    let view: ClusterView
    let log: Logger
    /// For messages that unauthenticated clients can cause.
    let limited: LogLimiter
    private nonisolated(unsafe) var loops: [GatewayLoop] = []  // SAFETY: written by `init` alone, unshared.
    private let listeners: Listeners
    /// The certificate and keys of new connections; nil before ``start()``.
    private let tls = Mutex<TLSServerContext?>(nil)
    private let ticketKeys: TLSTicketKeys?
    /// The admitted clients' connections, by account.
    private let accounts: Mutex<AccountShares>

    /// - Parameter ticketKeys: the cluster's ticket keys. If nil, TLS sessions are not resumed.
    package init(
        configuration: GatewayConfiguration, media: MediaAccess, clients: ClientServices, view: ClusterView,
        group: any EventLoopGroup, ticketKeys: TLSTicketKeys?, log: Logger, limited: LogLimiter
    ) {
        self.ticketKeys = ticketKeys
        self.configuration = configuration
        accounts = Mutex(AccountShares(capacity: configuration.connectionsMax))
        (sessions, channels, self.media) = (media.sessions, media.channels, media)
        self.clients = clients
        self.view = view
        self.log = log
        self.limited = limited
        node = view.local
        let eventLoops = Array(group.makeIterator())
        listeners = Listeners(placement: configuration.placement, loopCount: eventLoops.count, log: limited)
        loops = eventLoops.indices.map { GatewayLoop(eventLoop: eventLoops[$0], index: $0, service: self) }
    }

    /// Opens the listener.
    /// - Returns: the address that it is bound to.
    /// - Throws: 10019 if the address cannot be bound; 10022 if the certificate cannot be read.
    package func start() async throws(ApusError) -> HostPort {
        use(
            try TLSServerContext(
                certificateFile: configuration.certificateFile, keyFile: configuration.keyFile, tickets: ticketKeys))
        do {
            let address = try await listeners.open(configuration.bind, on: loops.map(\.eventLoop)) { [self] eventLoop in
                bootstrap(on: eventLoop)
            }
            for loop in loops { loop.eventLoop.execute { loop.start() } }
            return HostPort(host: configuration.bind.host, port: address?.port ?? 0)
        } catch let error as IOError where error.errnoCode == EADDRINUSE {
            throw ApusError(.addressInUse, "the client endpoint \(configuration.bind) is in use by another process")
        } catch {
            throw ApusError(.addressInUse, "the client endpoint \(configuration.bind) cannot be opened: \(error)")
        }
    }

    /// RFC 5482: the kernel ends a connection whose peer has acknowledged nothing for this long.
    private static let userTimeout = ChannelOptions.Types.SocketOption(
        level: .tcp, name: NIOBSDSocket.Option(rawValue: TCP_USER_TIMEOUT))

    /// Uses another certificate and other ticket keys for new connections from now on. Open connections keep theirs.
    package func use(_ new: TLSServerContext) { tls.withLock { $0 = new } }

    private func bootstrap(on eventLoop: any EventLoop) -> ServerBootstrap {
        ServerBootstrap(group: eventLoop)
            .serverChannelOption(.backlog, value: Listeners.backlog)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
            .childChannelOption(Self.userTimeout, value: Int(configuration.idleTimeout.milliseconds))
            .childChannelOption(
                .writeBufferWaterMark,
                value: .init(low: configuration.outboundByteCountMax / 4, high: configuration.outboundByteCountMax)
            )
            .childChannelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture {
                    guard let loop = loops.first(where: { $0.eventLoop === channel.eventLoop }),
                        let tls = tls.withLock({ $0 })
                    else {
                        throw ApusError(.internalFailure)
                    }
                    var refusal: ApusError?
                    switch loop.admission {
                    case .serve: break
                    case .refuse(let error): refusal = error
                    case .close:
                        metrics.closed(code: ErrorCode.tooManyConnections.number)
                        throw ApusError(.tooManyConnections)
                    }
                    let endpoint = loop.takeEndpoint(tls)
                    try channel.pipeline.syncOperations.addHandler(endpoint)
                    try channel.pipeline.syncOperations.addHandler(
                        ClientHandler(gateway: loop, endpoint: endpoint, refusal: refusal))
                }
            }
    }

    /// Runs the work of connections until the node shuts down, then closes every connection.
    package func run() async throws {
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                for loop in loops { group.addTask(executorPreference: loop.executor) { await loop.runWork() } }
            }
        } onGracefulShutdown: { [self] in
            stop()
        }
    }

    /// Closes the listener and every connection with 10017, so that clients connect to another node.
    package func stop() {
        listeners.close()
        for loop in loops {
            loop.eventLoop.execute { loop.closeAll(ApusError(.shuttingDown)) }
            loop.endWork()
        }
    }

    /// Asks every client, a few at a time, to connect to another endpoint, and waits until they have. Each opens its
    /// new connection first. Returns after ``GatewayConfiguration/leaveTimeout`` even if some clients remain.
    package func sendClientsAway() async {
        let endpoints = otherEndpoints()
        for loop in loops { loop.eventLoop.execute { loop.sendAllAway(to: endpoints) } }
        let deadline = MonotonicTime.now() + configuration.leaveTimeout
        while MonotonicTime.now() < deadline, await connectionCount() > 0 {
            guard (try? await Task.sleep(for: .milliseconds(20))) != nil else { return }
        }
    }

    /// Asks no more clients to leave: those that ``sendClientsAway()`` has not asked yet stay.
    package func keepClients() {
        for loop in loops { loop.eventLoop.execute { loop.keepAll() } }
    }

    /// Asks every client, a few at a time, to connect to one of these nodes. A client that reaches none of them stays.
    package func askClientsToLeave(for names: [NodeName]) {
        let endpoints = otherEndpoints { names.contains($0) }
        guard !endpoints.isEmpty else { return }
        for loop in loops { loop.eventLoop.execute { loop.sendAllAway(to: endpoints) } }
    }

    private func connectionCount() async -> Int {
        var sum = 0
        for loop in loops { sum += (try? await loop.eventLoop.submit { loop.connectionCount }.get()) ?? 0 }
        return sum
    }

    /// The numbers of sessions by role and of viewers, for the status page.
    package func counts() async -> (devices: Int, apps: Int, viewers: Int) {
        var sum = (devices: 0, apps: 0, viewers: 0)
        for loop in loops {
            let counts = try? await loop.eventLoop.submit { loop.counts }.get()
            sum.devices += counts?.devices ?? 0
            sum.apps += counts?.apps ?? 0
            sum.viewers += counts?.viewers ?? 0
        }
        return sum
    }

    var loopCount: Int { loops.count }

    /// Counts the connection of an admitted client. Returns false, and counts nothing, if the account already has its
    /// share.
    func takePlace(for account: AccountID) -> Bool { accounts.withLock { $0.take(1, for: account) } }

    /// Uncounts the connection of an admitted client that ended.
    func givePlace(of account: AccountID) { accounts.withLock { $0.change(by: -1, of: account) } }

    /// The time over which this node's clients without streams are to spread their connects if it dies, in
    /// milliseconds.
    var reconnectSpreadMs: UInt32 {
        UInt32(configuration.reconnectSpread(sessions: accounts.withLock { $0.used }).milliseconds)
    }

    /// Updates a loop's load, which decides where the next connections go.
    func report(_ load: LoopPlacement.Load, of index: Int) { listeners.report(load, of: index) }

    /// The client endpoints of the cluster, this node's first.
    func endpoints() -> [String] { view.addresses().map(\.clients.description) }

    /// The client endpoints of the other nodes.
    func otherEndpoints(where isWanted: (NodeName) -> Bool = { _ in true }) -> [String] {
        view.otherAddresses(where: isWanted).map(\.clients.description)
    }

    /// The client endpoints of the cluster. Those of the channel's owner and standby come first, so a client that loses
    /// this node resumes where the frames already are.
    func endpoints(of channel: ChannelID) -> [String] {
        view.addresses(of: channel.shard).map(\.clients.description)
    }
}

import ApusClientAPI
package import ApusCore
import ApusListener
import ApusTransport
import HTTPTypes
import Hummingbird
import HummingbirdCore
package import Logging
package import NIOCore
import NIOPosix
import ServiceLifecycle

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The HTTP listener. It serves the services' requests over REST and WebSocket (`/v1/…`, `/v1/ws`), EVS (`/v1/evs`),
/// and `/healthz`, `/metrics`, `/v1/status` and `/v1/admin/…` for operators and their tools.
/// A service: ``run()`` binds and serves. On graceful shutdown it finishes requests in progress. Tokens are accepted
/// over TLS from anywhere, and by default over plain HTTP only from this machine.
///
/// Concurrency: sockets and handlers on the group's event loops, which are the listener's alone: a handler that waits
/// for nothing needs no other thread.
package struct HTTPListener: Service {
    private let configuration: HTTPConfiguration
    private let sources: HTTPSources
    private let group: any EventLoopGroup
    private let onListening: @Sendable (HostPort) -> Void
    private let logger: Logger
    private let limited: LogLimiter
    /// Nil for plain HTTP.
    private let certificate: HTTPCertificate?
    /// Nil if the node has no clients.
    private let webSockets: WebSockets?
    private let executors = LoopExecutors()

    /// - Parameters:
    ///   - limited: for messages that unauthenticated clients can cause; its owner reports dropped ones.
    ///   - onListening: called once with the bound address, when requests are accepted.
    /// - Throws: 10022 if the certificate cannot be read.
    package init(
        configuration: HTTPConfiguration, sources: HTTPSources, group: any EventLoopGroup, logger: Logger,
        limited: LogLimiter? = nil, onListening: @escaping @Sendable (HostPort) -> Void = { _ in }
    ) throws(ApusError) {
        self.configuration = configuration
        self.sources = sources
        self.group = group
        self.logger = logger
        let limited = limited ?? LogLimiter(logger)
        self.limited = limited
        certificate = try configuration.tls.map { files throws(ApusError) in try HTTPCertificate(files) }
        self.onListening = onListening
        webSockets = sources.clients.flatMap { [executors] clients in
            clients.webSockets.map {
                WebSockets(
                    clients, sessions: $0, configuration: configuration, executors: executors, limited: limited)
            }
        }
    }

    /// Uses another certificate for new connections. Open connections keep theirs. Has no effect for plain HTTP.
    package func use(_ new: HTTPCertificate.Content) { certificate?.use(new) }

    /// Asks the clients of WebSockets to connect to other nodes, and waits until they have.
    package func sendClientsAway() async { await webSockets?.sendClientsAway() }

    /// Serves until graceful shutdown or cancellation.
    ///
    /// - Throws: 10019 with the address if it is in use, 10018 for any other error of binding.
    package func run() async throws {
        var quiet = logger
        // Hummingbird logs each start and each request at info, which would flood a node's log.
        quiet.logLevel = max(logger.logLevel, .warning)
        let bind = configuration.bind
        let onListening = onListening
        let webSockets = webSockets
        let reserve = ReservedDescriptors(count: configuration.descriptorsReserved)
        let limited = limited
        let deadlines = ConnectionDeadlines(
            connectionsMax: configuration.connectionsMax, timeout: configuration.requestTimeout,
            requestTimeoutMax: sources.clients?.services.configuration.requestTimeoutMax ?? .zero)
        let application = Application(
            responder: HTTPRoutes(
                sources: sources, configuration: configuration, logger: logger, limited: limited,
                replies: webSockets?.replies
            )
            .responder(),
            server: HTTPServerBuilder { [configuration, certificate, webSockets, executors] responder in
                HTTPChannel(
                    responder: responder, configuration: configuration, certificate: certificate,
                    deadlines: deadlines, webSockets: webSockets, executors: executors)
            },
            configuration: ApplicationConfiguration(
                address: .hostname(bind.host, port: bind.port), serverName: "apus",
                availableConnectionsDelegate: MaximumAvailableConnections(
                    configuration.connectionsMax + (webSockets == nil ? 0 : configuration.webSocketsMax), logger: quiet)
            ),
            onServerRunning: { channel in
                // It is the first handler, so errors of the listener reach it before any other.
                try? await channel.pipeline.addHandler(
                    ListenerGuard(
                        listener: "http", policy: .serve, reserve: reserve, log: limited), position: .first
                ).get()
                onListening(HostPort(host: bind.host, port: channel.localAddress?.port ?? bind.port))
            },
            eventLoopGroupProvider: .shared(group), logger: quiet)
        do {
            try await withGracefulShutdownHandler {
                try await withThrowingDiscardingTaskGroup { group in
                    group.addTask { await webSockets?.run() }
                    try await application.run()
                    webSockets?.close()
                }
            } onGracefulShutdown: {
                webSockets?.close()
            }
        } catch let error as IOError where error.errnoCode == EADDRINUSE {
            throw ApusError(.addressInUse, "the HTTP address \(bind) is in use by another process")
        } catch let error as IOError {
            throw ApusError(.internalFailure, "the HTTP address \(bind) cannot be bound: \(error)")
        }
    }
}

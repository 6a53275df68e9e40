package import ApusCore
import ApusListener
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

/// The door for operators and their tools: `/healthz`, `/metrics`, `/v1/status`, `/v1/admin/…`, and for clients that
/// need no more than leave to use the relay: `/v1/relay/credentials`.
///
/// A service: ``run()`` binds, serves, and on graceful shutdown finishes what is under way. Plain HTTP;
/// its default address is the machine's own, and a proxy in front gives it TLS where others must reach it.
///
/// Concurrency: sockets on the group's event loops, handlers on the cooperative pool.
package struct HTTPDoor: Service {
    private let configuration: HTTPConfiguration
    private let sources: HTTPSources
    private let group: any EventLoopGroup
    private let onListening: @Sendable (HostPort) -> Void
    private let logger: Logger
    private let limited: LogLimiter

    /// - Parameters:
    ///   - limited: for messages that unauthenticated clients can cause; its owner reports what was left out.
    ///   - onListening: called once with the bound address, when requests are taken.
    package init(
        configuration: HTTPConfiguration, sources: HTTPSources, group: any EventLoopGroup, logger: Logger,
        limited: LogLimiter? = nil, onListening: @escaping @Sendable (HostPort) -> Void = { _ in }
    ) {
        self.configuration = configuration
        self.sources = sources
        self.group = group
        self.logger = logger
        self.limited = limited ?? LogLimiter(logger)
        self.onListening = onListening
    }

    /// Serves until graceful shutdown or cancellation.
    ///
    /// - Throws: 10019 with the address where it is in use, 10018 for any other failure to bind.
    package func run() async throws {
        var quiet = logger
        // Hummingbird names each start and each request at info; a node's log stays readable without.
        quiet.logLevel = max(logger.logLevel, .warning)
        let bind = configuration.bind
        let onListening = onListening
        let reserve = ReservedDescriptors(count: configuration.descriptorsReserved)
        let limited = limited
        let deadlines = ConnectionDeadlines(
            connectionsMax: configuration.connectionsMax, timeout: configuration.requestTimeout)
        let application = Application(
            responder: HTTPRoutes(
                sources: sources, bodyByteCountMax: configuration.bodyByteCountMax,
                isTokenTakenFromAnywhere: configuration.isTokenTakenFromAnywhere, logger: logger,
                limited: limited
            ).router().buildResponder(),
            server: .http1(configuration: channelConfiguration(deadlines)),
            configuration: ApplicationConfiguration(
                address: .hostname(bind.host, port: bind.port), serverName: "apus",
                availableConnectionsDelegate: MaximumAvailableConnections(configuration.connectionsMax, logger: quiet)),
            onServerRunning: { channel in
                // The first handler: errors of the listener come to it before any other.
                try? await channel.pipeline.addHandler(
                    ListenerGuard(
                        listener: "http", policy: .serve, reserve: reserve, log: limited), position: .first
                ).get()
                onListening(HostPort(host: bind.host, port: channel.localAddress?.port ?? bind.port))
            },
            eventLoopGroupProvider: .shared(group), logger: quiet)
        do {
            try await application.run()
        } catch let error as IOError where error.errnoCode == EADDRINUSE {
            throw ApusError(.addressInUse, "the HTTP address \(bind) is in use by another process")
        } catch let error as IOError {
            throw ApusError(.internalFailure, "the HTTP address \(bind) cannot be bound: \(error)")
        }
    }

    private func channelConfiguration(_ deadlines: ConnectionDeadlines) -> HTTP1Channel.Configuration {
        HTTP1Channel.Configuration(
            additionalChannelHandlers: [deadlines.handler()],
            httpDecoderConfiguration: HTTP1Channel.Configuration.DecoderConfiguration(
                maxHeaderFieldSize: configuration.headerByteCountMax,
                maxHeaderListSize: configuration.headerByteCountMax, maxHeaderFieldCount: 64))
    }
}

import ApusClientAPI
import ApusContract
package import ApusCore
import ApusCrypto
package import ApusHTTP
import ApusListener
import ApusRelay
package import ApusRelayService
import ApusTraversal
import Foundation
package import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import UnixSignals

/// Ends its group at the first SIGTERM or SIGINT after ``init()``, including one that arrives before the group runs.
private struct EndSignals: Service {
    private let signals: UnixSignalsSequence

    init() async { signals = await UnixSignalsSequence(trapping: .sigterm, .sigint) }

    func run() async throws {
        for await _ in signals.cancelOnGracefulShutdown() { return }
    }
}

/// A standalone relay, with an optional listener for operators: `/healthz`, `/metrics`, `/v1/status`.
package struct RelayNode: Sendable {
    private let service: RelayService
    private let conditions: NodeConditions
    private let httpConnectionsMax: Int
    private let endpoint: HostPort?
    private let metrics: PrometheusMetrics
    private let log: Logger
    private let read: RelaySource
    private let operatorToken: String
    private let started = MonotonicTime.now()

    /// If `endpoint` is nil, there is no listener for operators.
    ///
    /// - Parameters:
    ///   - metrics: the process's metrics, already installed in the `MetricsSystem`.
    ///   - read: reads the configuration and the keys again at a SIGHUP.
    /// - Throws: 10022 if the limit of open files is too low.
    package init(
        configuration: RelayConfiguration, keys: RelayKeys, endpoint: HostPort?, metrics: PrometheusMetrics,
        log: Logger,
        read: @escaping RelaySource
    ) throws(ApusError) {
        var configuration = configuration
        httpConnectionsMax = try configuration.fitDescriptors(log: log)
        conditions = NodeConditions(log: log)
        service = RelayService(configuration: configuration, keys: keys, conditions: conditions, log: log)
        self.endpoint = endpoint
        self.metrics = metrics
        self.log = log
        self.read = read
        operatorToken = keys.operatorToken
    }

    /// Relays until SIGTERM or SIGINT.
    /// - Throws: 10019 if an address is in use, 10022 if no address can be used for relaying, 10018 for any other
    ///   system error.
    package func run() async throws {
        let reload = await RelayReload(relay: service, log: log, read: read)
        // Trapped before the relay opens, so that a signal after that always leads to an orderly shutdown.
        let ending = await EndSignals()
        try service.start()
        defer { service.stop() }
        var quiet = log
        quiet.logLevel = .warning
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let limited = LogLimiter(log)
        let endpoints: [any Service] =
            try endpoint.map { bind throws -> [any Service] in
                var configuration = HTTPConfiguration(bind: bind)
                configuration.connectionsMax = httpConnectionsMax
                return [
                    try HTTPListener(
                        configuration: configuration, sources: sources, group: group, logger: log, limited: limited)
                ]
            } ?? []
        let watch = DescriptorWatch(conditions: conditions, limited: limited)
        let manager = ServiceNotifier(environment: ProcessInfo.processInfo.environment)
        let watchdog: [any Service] = manager.map { [RelayWatchdog(notifier: $0, relay: service)] } ?? []
        let services = endpoints + [watch, reload, service] + watchdog
        do {
            let end = ServiceGroupConfiguration.ServiceConfiguration(
                service: ending, successTerminationBehavior: .gracefullyShutdownGroup)
            try await ServiceGroup(
                configuration: ServiceGroupConfiguration(
                    services: services.map { .init(service: $0) } + [end], logger: quiet)
            ).run()
        } catch {
            try? await group.shutdownGracefully()
            throw error
        }
        try? await group.shutdownGracefully()
    }

    private var sources: HTTPSources {
        var sources = HTTPSources(
            health: { await health() }, status: { await status() }, metrics: { metrics.text() },
            authorizeAdmin: { token throws(ApusError) in try authorize(token) },
            drain: { () throws(ApusError) in try drain() })
        sources.relaySessions = { selection throws(ApusError) in try await service.sessions(selection) }
        sources.endRelaySessions = { selection throws(ApusError) in try await service.end(selection) }
        return sources
    }

    /// Authorizes everyone who can read the relay's key. Digests are compared, so that timing reveals nothing about the
    /// token.
    private func authorize(_ token: String) throws(ApusError) -> AuditActor {
        let digests = (SHA256.hash(data: Array(token.utf8)), SHA256.hash(data: Array(operatorToken.utf8)))
        guard ConstantTime.isEqual(digests.0, digests.1) else {
            throw ApusError(.notAllowed, "the token is not that of this relay's operator")
        }
        return AuditActor(access: "operator", account: "relay", role: "admin")
    }

    /// Refuses new allocations from now on. Existing ones end with their lifetimes.
    private func drain() throws(ApusError) {
        guard service.order(.drain(nil)) else { throw ApusError(.unavailable, "the relay does not answer") }
        log.notice("The relay is draining and refuses new allocations")
    }

    private func health() async -> NodeHealth {
        let standing = await service.standing()
        let isThere = standing != nil
        return NodeHealth(
            healthy: isThere, state: isThere ? (standing?.isDraining == true ? "draining" : "up") : "stopped",
            reason: isThere ? nil : "the relay does not answer",
            conditions: conditions.all)
    }

    private func status() async -> NodeStatus {
        let standing = await service.standing()
        return NodeStatus(
            name: "relay", incarnation: 1, state: standing == nil ? "stopped" : "up",
            addresses: .init(
                transport: "", clients: "", http: endpoint?.description ?? "",
                relay: service.endpointsForPeers.first?.address.description),
            shards: .init(owned: 0, standby: 0), sessions: .init(devices: 0, apps: 0), viewers: 0, channels: [],
            revision: 0, members: [], uptime_s: (MonotonicTime.now() - started).milliseconds / 1000,
            relay: standing.map { NodeStatus.Relay($0, standby: nil) }, conditions: conditions.all)
    }
}

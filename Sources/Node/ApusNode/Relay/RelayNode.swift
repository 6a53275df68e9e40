package import ApusCore
import ApusHTTP
import ApusTraversal
package import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import UnixSignals

/// A relay that runs alone, with a door for operators where one is asked for: `/healthz`, `/metrics`, `/v1/status`.
package struct RelayNode: Sendable {
    private let service: RelayService
    private let conditions: NodeConditions
    private let httpConnectionsMax: Int
    private let door: HostPort?
    private let metrics: PrometheusMetrics
    private let log: Logger
    private let started = MonotonicTime.now()

    /// - Parameters:
    ///   - door: where operators come; nil for no door.
    ///   - metrics: the process's metrics, already made its `MetricsSystem`.
    /// - Throws: 10022 where the limit of open files is too low.
    package init(
        configuration: RelayConfiguration, keys: RelayKeys, door: HostPort?, metrics: PrometheusMetrics, log: Logger
    ) throws(ApusError) {
        var configuration = configuration
        httpConnectionsMax = try configuration.fitDescriptors(log: log)
        service = RelayService(configuration: configuration, keys: keys, log: log)
        conditions = NodeConditions(log: log)
        self.door = door
        self.metrics = metrics
        self.log = log
    }

    /// Relays until SIGTERM or SIGINT.
    ///
    /// - Throws: 10019 where an address is in use, 10022 where no address can be relayed from, 10018 for any other
    ///   refusal of the system.
    package func run() async throws {
        try service.start()
        defer { service.stop() }
        var quiet = log
        quiet.logLevel = .warning
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let doors: [any Service] =
            door.map { bind -> [any Service] in
                var configuration = HTTPConfiguration(bind: bind)
                configuration.connectionsMax = httpConnectionsMax
                return [HTTPDoor(configuration: configuration, sources: sources, group: group, logger: log)]
            } ?? []
        let watch = DescriptorWatch(conditions: conditions, limited: LogLimiter(log))
        let services = doors + [watch, service]
        do {
            try await ServiceGroup(
                configuration: ServiceGroupConfiguration(
                    services: services.map { .init(service: $0) }, gracefulShutdownSignals: [.sigterm, .sigint],
                    logger: quiet)
            ).run()
        } catch {
            try? await group.shutdownGracefully()
            throw error
        }
        try? await group.shutdownGracefully()
    }

    private var sources: HTTPSources {
        HTTPSources(
            health: { await health() }, status: { await status() }, metrics: { metrics.text() },
            authorizeAdmin: { _ throws(ApusError) in throw ApusError(.notAllowed, "a relay alone has no operators") },
            drain: { () throws(ApusError) in throw ApusError(.unavailable, "a relay alone has nowhere to drain to") },
            relayCredentials: { _ throws(ApusError) in
                throw ApusError(.unavailable, "a relay alone knows no clients; who has its secret issues credentials")
            })
    }

    private func health() async -> NodeHealth {
        let isThere = await service.standing() != nil
        return NodeHealth(
            healthy: isThere, state: isThere ? "up" : "stopped", reason: isThere ? nil : "the relay does not answer",
            conditions: conditions.all)
    }

    private func status() async -> NodeStatus {
        let standing = await service.standing()
        return NodeStatus(
            name: "relay", incarnation: 1, state: standing == nil ? "stopped" : "up",
            addresses: .init(
                transport: "", clients: "", http: door?.description ?? "",
                relay: service.doorsForPeers.first?.address.description),
            shards: .init(owned: 0, standby: 0), sessions: .init(devices: 0, apps: 0), viewers: 0, channels: [],
            revision: 0, members: [], uptime_s: (MonotonicTime.now() - started).milliseconds / 1000,
            relay: standing.map { NodeStatus.Relay($0, standby: nil) }, conditions: conditions.all)
    }
}

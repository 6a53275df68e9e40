import ApusChannels
import ApusCluster
import ApusCore
import ApusGateway
package import ApusHTTP
package import ApusNodeConfiguration
import ApusRelayService
import ApusSessions
import ApusStorage
import ApusThreads
import ApusTransport
import CoreMetrics
import Foundation
package import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle

/// One node: the only place that joins the parts.
/// The start order is stores, incarnation, listeners, membership. The HTTP listener opens first, so operators see a
/// node that waits to join. A node becomes a member once its listeners are open.
/// It stops in reverse: shards first, then clients, then links.
package struct NodeServer: Sendable {
    private let configuration: NodeConfiguration
    private let log: Logger
    private let metrics: PrometheusMetrics

    /// - Parameter metrics: the process's metrics, already installed in the `MetricsSystem`.
    package init(configuration: NodeConfiguration, metrics: PrometheusMetrics, log: Logger) {
        self.configuration = configuration
        self.metrics = metrics
        self.log = log
    }

    /// Runs until SIGTERM or SIGINT, then hands over its shards and leaves the cluster.
    /// - Parameters:
    ///   - reload: reads the configuration again at a SIGHUP, for its keys and certificates; see ``NodeReload``.
    ///   - fenced: called if the cluster declared this incarnation dead. It must restart the process and must not
    ///     continue with its state.
    /// - Throws: 10019, 10020, 10021, 10022 with the cause and its place; 10025 if another process of this node joined
    ///   first: restart the process.
    package func run(
        reload: @escaping NodeConfigurationSource, fenced: @escaping @Sendable () -> Void
    ) async throws {
        let lock = try await DataDirectory(path: configuration.dataDirectory).claim(
            cluster: configuration.cluster, node: configuration.node)
        defer { lock.release() }
        if !configuration.ignoredKeys.isEmpty {
            log.warning(
                "The configuration has keys of an earlier release, which have no effect; remove them",
                metadata: [LogKey.keys: "\(configuration.ignoredKeys.joined(separator: " "))"])
        }
        let fitted = try configuration.fittingDescriptors(log: log)
        let parts = try await NodeParts(fitted, metrics: metrics, log: log, fenced: fenced)
        let reloading = await NodeReload(parts, log: log, read: reload)
        let outcome: Result<Void, any Error>
        do {
            try await run(parts, reloading)
            outcome = .success(())
        } catch {
            outcome = .failure(error)
        }
        await parts.close()
        try outcome.get()
        log.notice("The node has left")
    }

    private func run(_ parts: NodeParts, _ reloading: NodeReload) async throws {
        let membership = NodeMembership(parts: parts, cluster: configuration.cluster, log: log, quiet: quiet)
        let running: [any Service] = [reloading] + parts.services + [membership]
        let stop = ServiceGroupConfiguration.ServiceConfiguration(
            service: try StopRequest(), successTerminationBehavior: .gracefullyShutdownGroup)
        let group = ServiceGroup(
            configuration: ServiceGroupConfiguration(
                services: [stop] + running.map { .init(service: NamedService(service: $0)) }, logger: quiet))
        try await group.run()
    }

    /// The service group logs every step at debug; the node's own messages suffice.
    private var quiet: Logger {
        var quiet = log
        quiet.logLevel = .warning
        return quiet
    }
}

/// A service that describes itself by its type. The service group makes the description of each service that it starts;
/// by default that is the text of everything that the service holds.
private struct NamedService: Service, CustomStringConvertible {
    let service: any Service
    var description: String { "\(type(of: service))" }

    func run() async throws { try await service.run() }
}

/// Joins the cluster, and runs the services of a member, until the node stops.
private struct NodeMembership: Service {
    let parts: NodeParts
    let cluster: ClusterID
    let log: Logger
    /// For the service group.
    let quiet: Logger

    func run() async throws {
        do {
            try await cancelWhenGracefulShutdown { try await parts.open() }
        } catch let error as ApusError where error.code == .cancelled {
            return
        }
        log.notice(
            "The node is up",
            metadata: [LogKey.node: "\(parts.cluster.identity)", LogKey.cluster: "\(cluster)"])
        let group = ServiceGroup(
            configuration: ServiceGroupConfiguration(
                services: parts.memberServices.map { .init(service: NamedService(service: $0)) }, logger: quiet))
        try await group.run()
    }
}

/// Ends at the first SIGTERM or SIGINT.
private struct StopRequest: Service {
    private let requests: AsyncStream<Void>

    init() throws(ApusError) {
        let (requests, continuation) = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))
        self.requests = requests
        try StopSignals.install { continuation.yield() }
    }

    func run() async throws {
        for await _ in requests { return }
    }
}

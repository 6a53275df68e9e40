import ApusChannels
import ApusCluster
import ApusCore
import ApusGateway
package import ApusHTTP
package import ApusNodeConfiguration
import ApusRelayService
import ApusSessions
import ApusStorage
import ApusTransport
import CoreMetrics
import Foundation
package import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import UnixSignals

/// One node: the only place that joins the parts.
/// The start order is stores, incarnation, listeners, membership. A node becomes a member once its listeners are open.
/// It stops in reverse: shards first, then clients, then links.
package struct NodeServer: Sendable {
    private let configuration: NodeConfiguration
    private let services: [any NodeService]
    private let log: Logger
    private let metrics: PrometheusMetrics

    /// - Parameters:
    ///   - services: the additional services that the node carries.
    ///   - metrics: the process's metrics, already installed in the `MetricsSystem`.
    package init(
        configuration: NodeConfiguration, services: [any NodeService] = [], metrics: PrometheusMetrics, log: Logger
    ) {
        self.configuration = configuration
        self.services = services
        self.metrics = metrics
        self.log = log
    }

    /// Runs until SIGTERM or SIGINT, then hands over its shards and leaves the cluster.
    /// - Parameters:
    ///   - reload: reads the configuration again at a SIGHUP, for its keys and certificates; see ``NodeReload``.
    ///   - fenced: called if the cluster declared this incarnation dead. It must restart the process and must not
    ///     continue with its state.
    /// - Throws: 10019, 10020, 10021, 10022 with the cause and its place.
    package func run(
        reload: @escaping NodeConfigurationSource, fenced: @escaping @Sendable () -> Void
    ) async throws {
        try DataDirectory(path: configuration.dataDirectory).claim(
            cluster: configuration.cluster, node: configuration.node)
        let fitted = try configuration.fittingDescriptors(log: log)
        let parts = try await NodeParts(
            fitted, carrying: services, metrics: metrics, log: log, fenced: fenced)
        let reloading = await NodeReload(parts, log: log, read: reload)
        do {
            try await parts.open()
        } catch {
            await parts.close()
            throw error
        }
        log.notice(
            "The node is up",
            metadata: [LogKey.node: "\(parts.cluster.identity)", LogKey.cluster: "\(configuration.cluster)"])
        let group = ServiceGroup(
            configuration: ServiceGroupConfiguration(
                services: ([reloading] + parts.services).map { .init(service: NamedService(service: $0)) },
                gracefulShutdownSignals: [.sigterm, .sigint],
                logger: quiet))
        try await group.run()
        await parts.close()
        log.notice("The node has left")
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

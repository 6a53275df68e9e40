import ApusChannels
import ApusCluster
package import ApusCore
import ApusGateway
import ApusHTTP
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
///
/// Order of the start: stores, the incarnation, doors, membership. A node takes part once its doors are
/// open; it leaves in reverse: its shards go first, then its clients, then its links.
package struct NodeServer: Sendable {
    private let configuration: NodeConfiguration
    private let services: [any NodeService]
    private let log: Logger
    private let metrics: PrometheusMetrics

    /// - Parameters:
    ///   - services: what the node carries beside its own.
    ///   - metrics: the process's metrics, already made its `MetricsSystem`.
    package init(
        configuration: NodeConfiguration, services: [any NodeService] = [], metrics: PrometheusMetrics, log: Logger
    ) {
        self.configuration = configuration
        self.services = services
        self.metrics = metrics
        self.log = log
    }

    /// Runs until SIGTERM or SIGINT, then hands over and leaves.
    ///
    /// - Parameters:
    ///   - reload: reads the configuration anew at a SIGHUP, for the relay's secrets, users, lists and certificate.
    ///   - fenced: called where the cluster declared this life dead; it must start the process
    ///     anew and not return to what was.
    /// - Throws: 10019, 10020, 10021, 10022 with what is wrong and where.
    package func run(
        reload: @escaping @Sendable () throws(ApusError) -> NodeConfiguration, fenced: @escaping @Sendable () -> Void
    ) async throws {
        try DataDirectory(path: configuration.dataDirectory).claim(
            cluster: configuration.cluster, node: configuration.node)
        let fitted = try configuration.fittingDescriptors(log: log)
        let parts = try await NodeParts(
            fitted, carrying: services, metrics: metrics, log: log, fenced: fenced)
        let reloading = await RelayReload(relay: parts.relay, http: parts.http, log: log) { () throws(ApusError) in
            let new = try reload()
            return (new.relay, try new.relayKeys())
        }
        do {
            try await parts.open()
        } catch {
            await parts.close()
            throw error
        }
        log.notice(
            "The node is up.",
            metadata: [LogKey.node: "\(parts.cluster.identity)", LogKey.cluster: "\(configuration.cluster)"])
        let group = ServiceGroup(
            configuration: ServiceGroupConfiguration(
                services: ([reloading] + parts.services).map { .init(service: $0) },
                gracefulShutdownSignals: [.sigterm, .sigint],
                logger: quiet))
        try await group.run()
        await parts.close()
        log.notice("The node has left.")
    }

    /// The service group names every step at debug; a node's own lines are enough.
    private var quiet: Logger {
        var quiet = log
        quiet.logLevel = .warning
        return quiet
    }
}

package import ApusCore
import ApusHTTP
package import ApusListener
import ApusGateway
import ApusRelayService
import ApusTransport
package import Logging
import NIOCore

extension DescriptorPlan {
    /// SQLite files with their logs and indexes, heartbeats, the state directory, standard input and output.
    private static let filesOfNode = 24

    /// The descriptors of the links to other nodes, six per node by default. Node links have no limit of their own.
    static func links(limit: Int) -> Int { min(256, max(24, limit / 32)) }

    static func fixedOfNode(_ configuration: NodeConfiguration, _ around: Surroundings) -> Int {
        let threads = configuration.threadCount == 0 ? around.coreCount : configuration.threadCount
        // Each event loop also has a descriptor of the client listener.
        var fixed = around.inUse + filesOfNode + threads * (perLoop + 1) + perLoop + links(limit: around.limit)
        // The listeners for nodes and for operators, and the reserves of all listeners.
        fixed += 2 + 8 + HTTPConfiguration(bind: configuration.http).descriptorsReserved
        return configuration.relay.isEnabled ? fixed + fixedOfRelay(configuration.relay, around) : fixed
    }
}

extension NodeConfiguration {
    /// Returns this configuration with limits that fit the process's limit of open files. Raises that limit as far as
    /// the system allows, and logs what was lowered.
    /// - Throws: 10022 if not even the minimums fit.
    package func fittingDescriptors(log: Logger) throws(ApusError) -> NodeConfiguration {
        let limit = DescriptorLimit.raise()
        let around = DescriptorPlan.Surroundings(
            limit: limit, inUse: DescriptorLimit.inUse() ?? 16, coreCount: System.coreCount,
            relayAddressCount: relay.isEnabled ? relay.endpoints().count : 0)
        let (configuration, lowered) = try fitting(around)
        DescriptorPlan.say(lowered, limit: limit, log)
        return configuration
    }

    /// Returns this configuration with limits that fit, and what was lowered.
    /// - Throws: 10022 if not even the minimums fit.
    package func fitting(
        _ around: DescriptorPlan.Surroundings
    ) throws(ApusError) -> (configuration: NodeConfiguration, lowered: [DescriptorPlan.Lowered]) {
        let planes = relay.threadCount == 0 ? around.coreCount : relay.threadCount
        var shares = [
            DescriptorShare("http.connections_max", wanted: httpListener.connectionsMax, minimum: 16, weight: 4),
            DescriptorShare("transport.handshaking_max", wanted: transport.handshakingMax, minimum: 8, weight: 2),
            DescriptorShare("gateway.refusals_max", wanted: gateway.refusalsMax, minimum: 4, weight: 1),
            DescriptorShare("gateway.connections_max", wanted: gateway.connectionsMax, minimum: 16, weight: 8),
            DescriptorShare("http.websockets_max", wanted: httpListener.webSocketsMax, minimum: 0, weight: 2),
        ]
        if relay.isEnabled { shares += DescriptorPlan.shares(of: relay, planes: planes) }
        let granted = try DescriptorBudget.split(
            limit: around.limit, fixed: DescriptorPlan.fixedOfNode(self, around), shares: shares)
        var fitted = self
        fitted.httpListener.connectionsMax = granted[0]
        fitted.transport.handshakingMax = granted[1]
        fitted.gateway.refusalsMax = granted[2]
        fitted.gateway.connectionsMax = granted[3]
        fitted.httpListener.webSocketsMax = granted[4]
        // Unauthenticated clients must never fill the listener: beyond this limit the oldest is closed.
        fitted.gateway.unauthenticatedMax = min(gateway.unauthenticatedMax, max(1, granted[3] / 2))
        var lowered = DescriptorPlan.lowered([
            ("http.connections_max", httpListener.connectionsMax, fitted.httpListener.connectionsMax),
            ("transport.handshaking_max", transport.handshakingMax, fitted.transport.handshakingMax),
            ("gateway.refusals_max", gateway.refusalsMax, fitted.gateway.refusalsMax),
            ("gateway.connections_max", gateway.connectionsMax, fitted.gateway.connectionsMax),
            ("http.websockets_max", httpListener.webSocketsMax, fitted.httpListener.webSocketsMax),
            ("gateway.unauthenticated_max", gateway.unauthenticatedMax, fitted.gateway.unauthenticatedMax),
        ])
        if relay.isEnabled { lowered += fitted.relay.take(granted.dropFirst(5), planes: planes) }
        return (fitted, lowered)
    }
}

package import ApusCore
import ApusGateway
import ApusHTTP
import ApusListener
import ApusTransport
import Logging
import NIOCore

/// Fits the limits of a node that use descriptors to the limit of open files.
/// Pure. The caller passes the limit and the number of open descriptors.
package struct DescriptorPlan: Sendable, Equatable {
    /// A limit that does not fit, and its lowered value.
    package struct Lowered: Sendable, Equatable, CustomStringConvertible {
        package let key: String
        package let from: Int
        package let to: Int
        package var description: String { "\(key) \(from) to \(to)" }
    }

    /// The inputs of the plan, at the start of the process.
    package struct Surroundings: Sendable {
        package var limit: Int
        package var inUse: Int
        package var coreCount: Int
        /// The number of addresses at which the relay listens without TLS.
        package var relayAddressCount: Int

        package init(limit: Int, inUse: Int, coreCount: Int, relayAddressCount: Int) {
            self.limit = limit
            self.inUse = inUse
            self.coreCount = coreCount
            self.relayAddressCount = relayAddressCount
        }
    }

    /// The epoll, wake-up and timer descriptors of an event loop or of a plane.
    private static let perLoop = 3
    /// UDP and TCP, or DTLS and TLS.
    private static let listenersPerRelayAddress = 2
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

    static func fixedOfRelay(_ relay: RelayConfiguration, _ around: Surroundings) -> Int {
        let planes = relay.threadCount == 0 ? around.coreCount : relay.threadCount
        // TLS and DTLS listen at the same hosts unless others are configured.
        let secureCount = relay.secureAddresses.isEmpty ? around.relayAddressCount : relay.secureAddresses.count
        let addressCount = around.relayAddressCount + (relay.certificateFile.isEmpty ? 0 : secureCount)
        // A plane's epoll, timer, wake-up and reserves, and its listeners; the control thread's epoll and wake-up.
        return planes * (perLoop + 4 + listenersPerRelayAddress * addressCount) + 2
    }

    static func shares(of relay: RelayConfiguration, planes: Int) -> [DescriptorShare] {
        [
            DescriptorShare("relay.allocations_max", wanted: relay.allocationsMax, minimum: 8, weight: 8),
            DescriptorShare("relay.streams_max", wanted: relay.streamsMax, minimum: 8, weight: 2),
            DescriptorShare("relay.tcp_peers_max", wanted: relay.tcpPeersMax, minimum: 4, weight: 1),
            DescriptorShare(
                "relay.connected_flows_max", wanted: relay.connectedFlowsMax * planes, minimum: 0, weight: 1),
        ]
    }
}

extension RelayConfiguration {
    /// Applies the granted limits, in the order of ``DescriptorPlan``'s shares.
    fileprivate mutating func take(_ granted: ArraySlice<Int>, planes: Int) -> [DescriptorPlan.Lowered] {
        let all = Array(granted)
        let before = self
        (allocationsMax, streamsMax, tcpPeersMax) = (all[0], all[1], all[2])
        connectedFlowsMax = all[3] / planes
        return DescriptorPlan.lowered([
            ("relay.allocations_max", before.allocationsMax, allocationsMax),
            ("relay.streams_max", before.streamsMax, streamsMax),
            ("relay.tcp_peers_max", before.tcpPeersMax, tcpPeersMax),
            ("relay.connected_flows_max", before.connectedFlowsMax, connectedFlowsMax),
        ])
    }

    /// Lowers the limits of a standalone relay so that they fit, and logs what was lowered.
    /// - Returns: the connections of the HTTP listener.
    /// - Throws: 10022 if not even the minimums fit.
    mutating func fitDescriptors(log: Logger) throws(ApusError) -> Int {
        let limit = DescriptorLimit.raise()
        let around = DescriptorPlan.Surroundings(
            limit: limit, inUse: DescriptorLimit.inUse() ?? 16, coreCount: System.coreCount,
            relayAddressCount: endpoints().count)
        let (http, lowered) = try fit(around)
        DescriptorPlan.say(lowered, limit: limit, log)
        return http
    }

    /// Fits the limits of a standalone relay. Returns that of the HTTP listener, and what was lowered.
    package mutating func fit(
        _ around: DescriptorPlan.Surroundings
    ) throws(ApusError) -> (httpConnections: Int, lowered: [DescriptorPlan.Lowered]) {
        let planes = threadCount == 0 ? around.coreCount : threadCount
        let http = DescriptorShare("http", wanted: 256, minimum: 8, weight: 4)
        // An event loop for operators, with its listener and its reserve.
        let fixed = around.inUse + 12 + DescriptorPlan.fixedOfRelay(self, around)
        let granted = try DescriptorBudget.split(
            limit: around.limit, fixed: fixed, shares: [http] + DescriptorPlan.shares(of: self, planes: planes))
        return (granted[0], take(granted.dropFirst(), planes: planes))
    }
}

extension NodeConfiguration {
    /// Returns this configuration with limits that fit the process's limit of open files. Raises that limit as far as
    /// the system allows, and logs what was lowered.
    /// - Throws: 10022 if not even the minimums fit.
    func fittingDescriptors(log: Logger) throws(ApusError) -> NodeConfiguration {
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

extension DescriptorPlan {
    static func lowered(_ bounds: [(key: String, from: Int, to: Int)]) -> [Lowered] {
        bounds.filter { $0.to < $0.from }.map { Lowered(key: $0.key, from: $0.from, to: $0.to) }
    }

    static func say(_ lowered: [Lowered], limit: Int, _ log: Logger) {
        guard !lowered.isEmpty else { return }
        log.warning(
            "Limits were lowered to fit the limit of open files",
            metadata: [
                LogKey.limit: "\(limit)", LogKey.reason: "\(lowered.map(\.description).joined(separator: ", "))",
            ])
    }
}

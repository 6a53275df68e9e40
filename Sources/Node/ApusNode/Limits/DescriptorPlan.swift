package import ApusCore
import ApusGateway
import ApusHTTP
import ApusListener
import ApusTransport
import Logging
import NIOCore

/// The bounds of a node that take descriptors, compared with the limit of open files and with each other.
///
/// Pure; the limit and what is open come from the caller.
package struct DescriptorPlan: Sendable, Equatable {
    /// A bound that does not fit, and what it is lowered to.
    package struct Lowered: Sendable, Equatable, CustomStringConvertible {
        package let key: String
        package let from: Int
        package let to: Int
        package var description: String { "\(key) \(from) to \(to)" }
    }

    /// What is open at the start, and what the bounds are asked of.
    package struct Surroundings: Sendable {
        package var limit: Int
        package var inUse: Int
        package var coreCount: Int
        /// Addresses at which the relay listens without TLS.
        package var relayAddressCount: Int

        package init(limit: Int, inUse: Int, coreCount: Int, relayAddressCount: Int) {
            self.limit = limit
            self.inUse = inUse
            self.coreCount = coreCount
            self.relayAddressCount = relayAddressCount
        }
    }

    /// Epoll, wake-up and timer of an event loop or of a plane.
    private static let perLoop = 3
    /// UDP and TCP, or DTLS and TLS.
    private static let listenersPerRelayAddress = 2
    /// SQLite files with their logs and indexes, heartbeats, the state directory, standard input and output.
    private static let filesOfNode = 24

    /// Descriptors of the links to other nodes, six to each unless configured; node links have no bound of their own.
    static func links(limit: Int) -> Int { min(256, max(24, limit / 32)) }

    static func fixedOfNode(_ configuration: NodeConfiguration, _ around: Surroundings) -> Int {
        let threads = configuration.threadCount == 0 ? around.coreCount : configuration.threadCount
        // An event loop has a descriptor of the client listener, too.
        var fixed = around.inUse + filesOfNode + threads * (perLoop + 1) + perLoop + links(limit: around.limit)
        // Listeners for nodes and for operators; what is reserved at all listeners.
        fixed += 2 + 8 + HTTPConfiguration(bind: configuration.http).descriptorsReserved
        return configuration.relay.isEnabled ? fixed + fixedOfRelay(configuration.relay, around) : fixed
    }

    static func fixedOfRelay(_ relay: RelayConfiguration, _ around: Surroundings) -> Int {
        let planes = relay.threadCount == 0 ? around.coreCount : relay.threadCount
        // TLS and DTLS listen at the same hosts unless others are named.
        let secureCount = relay.secureAddresses.isEmpty ? around.relayAddressCount : relay.secureAddresses.count
        let addressCount = around.relayAddressCount + (relay.certificateFile.isEmpty ? 0 : secureCount)
        // A plane's poll, clock, wake-up and spares, and its listeners; control's poll and wake-up.
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
    /// Takes what was granted, in the order of ``DescriptorPlan``'s shares.
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

    /// Lowers what does not fit for a relay that runs alone; says so in one line.
    ///
    /// - Returns: connections of the HTTP listener.
    /// - Throws: 10022 where not even the least fits.
    mutating func fitDescriptors(log: Logger) throws(ApusError) -> Int {
        let limit = DescriptorLimit.raise()
        let around = DescriptorPlan.Surroundings(
            limit: limit, inUse: DescriptorLimit.inUse() ?? 16, coreCount: System.coreCount,
            relayAddressCount: doors().count)
        let (http, lowered) = try fit(around)
        DescriptorPlan.say(lowered, limit: limit, log)
        return http
    }

    /// The bounds of a relay that runs alone; answers the HTTP listener's, and what was lowered.
    package mutating func fit(
        _ around: DescriptorPlan.Surroundings
    ) throws(ApusError) -> (httpConnections: Int, lowered: [DescriptorPlan.Lowered]) {
        let planes = threadCount == 0 ? around.coreCount : threadCount
        let http = DescriptorShare("http", wanted: 256, minimum: 8, weight: 4)
        // An event loop for operators, with its listener and what is reserved.
        let fixed = around.inUse + 12 + DescriptorPlan.fixedOfRelay(self, around)
        let granted = try DescriptorBudget.split(
            limit: around.limit, fixed: fixed, shares: [http] + DescriptorPlan.shares(of: self, planes: planes))
        return (granted[0], take(granted.dropFirst(), planes: planes))
    }
}

extension NodeConfiguration {
    /// This configuration with bounds that fit the process's limit of open files, which is raised as far as the system
    /// allows; says in one line what was lowered.
    ///
    /// - Throws: 10022 where not even the least fits.
    func fittingDescriptors(log: Logger) throws(ApusError) -> NodeConfiguration {
        let limit = DescriptorLimit.raise()
        let around = DescriptorPlan.Surroundings(
            limit: limit, inUse: DescriptorLimit.inUse() ?? 16, coreCount: System.coreCount,
            relayAddressCount: relay.isEnabled ? relay.doors().count : 0)
        let (configuration, lowered) = try fitting(around)
        DescriptorPlan.say(lowered, limit: limit, log)
        return configuration
    }

    /// This configuration with bounds that fit, and what was lowered.
    ///
    /// - Throws: 10022 where not even the least fits.
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
        // Clients that have not said who they are must never fill the listener: the oldest makes room.
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
            "Bounds are lowered to what the limit of open files allows",
            metadata: [
                LogKey.limit: "\(limit)", LogKey.reason: "\(lowered.map(\.description).joined(separator: ", "))",
            ])
    }
}

package import ApusCore
package import ApusListener
package import Logging
import NIOCore

extension DescriptorPlan {
    /// UDP and TCP, or DTLS and TLS.
    private static let listenersPerRelayAddress = 2

    /// The descriptors of a relay that no limit bounds.
    package static func fixedOfRelay(_ relay: RelayConfiguration, _ around: Surroundings) -> Int {
        let planes = relay.threadCount == 0 ? around.coreCount : relay.threadCount
        // TLS and DTLS listen at the same hosts unless others are configured.
        let secureCount = relay.secureAddresses.isEmpty ? around.relayAddressCount : relay.secureAddresses.count
        let addressCount = around.relayAddressCount + (relay.certificateFile.isEmpty ? 0 : secureCount)
        // A plane's epoll, timer, wake-up and reserves, and its listeners; the control thread's epoll and wake-up.
        return planes * (perLoop + 4 + listenersPerRelayAddress * addressCount) + 2
    }

    /// The relay's limits that use descriptors.
    package static func shares(of relay: RelayConfiguration, planes: Int) -> [DescriptorShare] {
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
    package mutating func take(_ granted: ArraySlice<Int>, planes: Int) -> [DescriptorPlan.Lowered] {
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
    package mutating func fitDescriptors(log: Logger) throws(ApusError) -> Int {
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

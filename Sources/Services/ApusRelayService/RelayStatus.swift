package import ApusContract
package import ApusCore
package import ApusRelay

extension NodeStatus.Relay {
    /// The relay's status for operators.
    package init(_ standing: RelayStanding, standby: NodeName?) {
        self.init(
            allocations: standing.allocations, mirrors: standing.mirrors, standby: standby?.rawValue,
            draining: standing.isDraining, traffic: NodeStatus.RelayTraffic(standing.traffic),
            user_count: standing.userCount,
            users: standing.users.map {
                NodeStatus.RelayUser(
                    user: $0.user, allocations: $0.allocations, traffic: NodeStatus.RelayTraffic($0.traffic))
            })
    }
}

extension NodeStatus.RelayTraffic {
    init(_ traffic: ApusRelay.RelayTraffic) {
        self.init(
            packets_up: traffic.upPackets, bytes_up: traffic.upBytes, packets_down: traffic.downPackets,
            bytes_down: traffic.downBytes, dropped: traffic.dropped)
    }
}

// What the cluster's other nodes are at: no peers but at the ports of relays (D8).
extension TurnServerStateMachine {
    /// The cluster's other nodes are at these addresses, and at no others any more.
    ///
    /// What allocations have of them already is judged anew: channels to what may be no peer now are unbound, and
    /// permissions reach the ports of relays alone, or wherever they may where a node has gone. TCP connections to what
    /// may be no peer now are closed.
    ///
    /// - Parameters:
    ///   - reached: where this node reaches the others itself.
    ///   - told: what they say of themselves.
    ///   - relays: of these, where their allocations are; nil: anywhere.
    public mutating func othersAreAt(
        reached: [TransportAddress], told: [TransportAddress], relays: [TransportAddress]? = nil
    ) -> [TurnAction] {
        let before = configuration.peers
        configuration.peers.setOthers(reached: reached, told: told, relays: relays)
        guard !configuration.peers.hasOthers(of: before) else { return [] }
        return judgeAnew(before)
    }

    /// Brings what allocations have in line with the rules for peers, which have changed.
    mutating func judgeAnew(_ before: PeerPolicy) -> [TurnAction] {
        var actions: [TurnAction] = []
        for id in allocations.keys.sorted(by: { $0.rawValue < $1.rawValue }) {
            guard let allocation = allocations[id] else { continue }
            for channel in allocation.channels where configuration.peers.refusal(of: channel.peer) != nil {
                actions.append(.unbindChannel(id, channel.number))
            }
            let peers = configuration.peers
            allocations[id]?.channels.removeAll { peers.refusal(of: $0.peer) != nil }
            for permission in allocation.permissions {
                let host = permission.host
                let isRefused = peers.refusal(ofHost: host) != nil
                guard isRefused || before.ports(of: host) != peers.ports(of: host) else { continue }
                actions.append(.revoke(id, host))
                if !isRefused { actions.append(.permit(id, host, ports: peers.ports(of: host))) }
            }
            allocations[id]?.permissions.removeAll { peers.refusal(ofHost: $0.host) != nil }
            actions += closeRefusedPeers(of: allocation)
        }
        return actions
    }
}

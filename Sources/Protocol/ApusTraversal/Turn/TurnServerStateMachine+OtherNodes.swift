// What the cluster's other nodes are at: no peers but at the ports of relays (D8).
extension TurnServerStateMachine {
    /// The cluster's other nodes are at these addresses, and at no others any more.
    ///
    /// What allocations have of them already is judged anew, in steps (``judgeMore()``): channels to what may be no
    /// peer now are unbound, and permissions reach the ports of relays alone, or wherever they may where a node has
    /// gone. TCP connections to what may be no peer now are closed.
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
        return configuration.peers.hasOthers(of: before) ? [] : judgeAnew()
    }
}

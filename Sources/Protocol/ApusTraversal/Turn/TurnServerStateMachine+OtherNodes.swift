// The addresses of the cluster's other nodes. They may be peers only at the ports of relays (D8).
extension TurnServerStateMachine {
    /// Replaces the addresses of the cluster's other nodes.
    ///
    /// Existing allocations are checked again, in steps (``judgeMore()``). Channels to peers that are refused now are
    /// unbound. Permissions are restricted to the ports of relays, or extended again if a node has gone. TCP
    /// connections to peers that are refused now are closed.
    ///
    /// - Parameters:
    ///   - reached: the addresses at which this node reaches the others itself.
    ///   - reported: the addresses that they report.
    ///   - relays: those of them that have allocations; nil: any.
    public mutating func othersAreAt(
        reached: [TransportAddress], reported: [TransportAddress], relays: [TransportAddress]? = nil
    ) -> [TurnAction] {
        let before = configuration.peers
        configuration.peers.setOthers(reached: reached, reported: reported, relays: relays)
        return configuration.peers.hasOthers(of: before) ? [] : judgeAnew()
    }
}

public import ApusCore

// Rules that an operator changes while the relay runs (D8).
extension TurnServerStateMachine {
    /// Takes other secrets, users and rules for peers, of the same realm. No allocation ends.
    ///
    /// What allocations have is judged anew: channels, permissions and TCP connections to peers that are refused now
    /// are taken back. A client whose user or secret is gone is refused at its next request; its allocation ends with
    /// its lifetime.
    public mutating func rulesChanged(
        credentials: RelayCredentials, users: StaticUsers, peers: PeerPolicy, at now: MonotonicTime
    ) -> [TurnAction] {
        configuration.credentials = credentials
        configuration.users = users
        let before = configuration.peers
        configuration.peers = peers
        configuration.peers.keepOthers(of: before)
        return judgeAnew(before)
    }
}

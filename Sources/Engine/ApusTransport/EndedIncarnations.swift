import ApusCore

/// The newest incarnation of each node that has ended. Nothing is received from it, or from an earlier one.
///
/// It has one number for each name that was ever a peer, so it is as bounded as the members of the cluster's map.
struct EndedIncarnations: Sendable {
    private var newest: [NodeName: UInt64] = [:]

    func contains(_ node: NodeID) -> Bool { newest[node.name].map { node.incarnation <= $0 } ?? false }

    /// The peers changed. An incarnation that is a peer has not ended, whatever was known before.
    mutating func update(from earlier: [Peer], to peers: [Peer]) {
        for peer in earlier where !peers.contains(where: { $0.id == peer.id }) {
            newest[peer.id.name] = max(newest[peer.id.name] ?? 0, peer.id.incarnation)
        }
        for peer in peers where peer.id.incarnation > 0 { newest[peer.id.name] = peer.id.incarnation - 1 }
    }
}

/// The event by which a lane's handler learns that the peer's incarnation has ended. It drops all input from then on.
struct PeerEnded: Sendable {
    /// The connection stays open for this time, so that a node that left receives the answers to its last requests.
    static let grace = Duration.seconds(1)
}

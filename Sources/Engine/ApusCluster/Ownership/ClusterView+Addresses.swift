package import ApusCore

// The order in which clients try the cluster's nodes. Each listener shows its clients the addresses of its own kind.
extension ClusterView {
    /// The addresses of the nodes that are up, this node's first.
    package func addresses() -> [NodeAddresses] { addresses(first: [local.name]) }

    /// The same, those of the shard's owner and standby first: a client that loses this node resumes where the state
    /// already is.
    package func addresses(of shard: ShardID) -> [NodeAddresses] {
        let view = lookUp(shard)
        return addresses(first: [view.owner, view.standby].compactMap { $0?.id.name })
    }

    /// Those of the other nodes.
    package func otherAddresses(where isWanted: (NodeName) -> Bool = { _ in true }) -> [NodeAddresses] {
        let others = map.members.filter { $0.state == .up && $0.id.name != local.name && isWanted($0.id.name) }
        // Cordoned nodes last: clients try them if no other node takes them.
        return (others.filter(\.acceptsShards) + others.filter(\.isCordoned)).map(\.addresses)
    }

    private func addresses(first names: [NodeName]) -> [NodeAddresses] {
        let alive = map.members.filter { $0.state == .up }
        let first = names.compactMap { name in alive.first { $0.id.name == name } }
        // In random order: the clients of a dead node spread over all others.
        // Cordoned nodes come last.
        let rest = alive.filter { !names.contains($0.id.name) }.shuffled()
            .sorted { !$0.isCordoned && $1.isCordoned }
        return (first + rest).map(\.addresses)
    }
}

package import ApusCore
package import ApusTraversal

/// Where the cluster's other nodes are, for what may be a peer (D8).
///
/// A node that wants in says itself at which address it is. That closes at once; it opens a special range only where
/// this node has reached the other one at that address, with its certificate shown.
///
/// Pure; its owner is one thread.
package struct RelayPlaces: Sendable, Equatable {
    /// One other node that is alive, as the map has it.
    package struct Member: Sendable, Equatable {
        package var id: NodeID
        /// Where it is reached; nil for a name.
        package var transport: TransportAddress?
        /// Its other listeners.
        package var listeners: [TransportAddress]

        package init(id: NodeID, transport: TransportAddress?, listeners: [TransportAddress]) {
            self.id = id
            self.transport = transport?.host
            self.listeners = listeners.map(\.host)
        }
    }

    private var members: [Member] = []
    private var proven: [NodeID: TransportAddress] = [:]
    /// What the nodes say of themselves.
    package var told: [TransportAddress] = []
    /// Of all addresses, where they say that their allocations are.
    package var relays: [TransportAddress] = []

    package init() {}

    /// The map has changed. What was reached stays so for as long as the node is alive and at the same address.
    package mutating func membersChanged(_ members: [Member]) {
        self.members = members
        proven = proven.filter { id, address in members.contains { $0.id == id && $0.transport == address } }
    }

    /// This node has a link of its own to that incarnation of a node, at that address.
    package mutating func reached(_ node: NodeID, at address: TransportAddress) {
        guard members.contains(where: { $0.id == node && $0.transport == address.host }) else { return }
        proven[node] = address.host
    }

    /// Nodes that have not been reached yet.
    package var unreached: [NodeID] { members.filter { $0.transport != nil && proven[$0.id] == nil }.map(\.id) }

    /// Where nodes have been reached, in the order of the map.
    package var reached: [TransportAddress] { members.compactMap { proven[$0.id] } }

    /// Every other address that nodes say is theirs.
    package var claimed: [TransportAddress] {
        members.flatMap { member in
            (proven[member.id] == nil ? member.transport.map { [$0] } ?? [] : []) + member.listeners
        } + told
    }
}

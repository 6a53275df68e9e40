package import ApusCore
package import ApusTraversal

/// The addresses of the cluster's other nodes, for the peer policy (D8).
///
/// A node reports its own addresses. A report restricts at once. It opens a special range only if this node has reached
/// the other one at that address and checked its certificate.
///
/// Pure value; its owner is one thread.
package struct RelayPlaces: Sendable, Equatable {
    /// One other live node, from the map.
    package struct Member: Sendable, Equatable {
        package var id: NodeID
        /// Its transport address; nil if that is a name.
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
    /// The addresses that the node reports.
    package var reported: [TransportAddress] = []
    /// Those of them that have allocations, according to the node.
    package var relays: [TransportAddress] = []

    package init() {}

    /// The map changed. A reached address stays as long as the node is alive at the same address.
    package mutating func membersChanged(_ members: [Member]) {
        self.members = members
        proven = proven.filter { id, address in members.contains { $0.id == id && $0.transport == address } }
    }

    /// This node has its own link to that incarnation of a node, at that address.
    package mutating func reached(_ node: NodeID, at address: TransportAddress) {
        guard members.contains(where: { $0.id == node && $0.transport == address.host }) else { return }
        proven[node] = address.host
    }

    /// Nodes that have not been reached yet.
    package var unreached: [NodeID] { members.filter { $0.transport != nil && proven[$0.id] == nil }.map(\.id) }

    /// The reached addresses, in the order of the map.
    package var reached: [TransportAddress] { members.compactMap { proven[$0.id] } }

    /// All other addresses that nodes report.
    package var claimed: [TransportAddress] {
        members.flatMap { member in
            (proven[member.id] == nil ? member.transport.map { [$0] } ?? [] : []) + member.listeners
        } + reported
    }
}

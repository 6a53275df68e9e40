package import ApusCore
package import ApusTraversal

/// What a node of the cluster says of its relay, about once a second.
package struct RelayTidings: Sendable, Equatable {
    /// Where clients come in.
    package var doors: [RelayDoor]
    /// The name in the certificate of its TLS doors; empty where there is none.
    package var domain: String
    package var isDraining: Bool
    /// Allocations of users; of all where ``isWhole``, of those that changed otherwise. 0: none any more.
    package var usage: [RelayUsage]
    package var isWhole: Bool

    package init(
        doors: [RelayDoor], domain: String = "", isDraining: Bool = false, usage: [RelayUsage] = [],
        isWhole: Bool = true
    ) {
        self.doors = doors
        self.domain = domain
        self.isDraining = isDraining
        self.usage = usage
        self.isWhole = isWhole
    }
}

/// The relays of a cluster as one node knows them: who lives, where their doors are, what their users have (D8).
///
/// The standby of a node is the next one that lives and relays, in the order of the names (`n2` after `n1`, `n10` after
/// `n9`), so that it is the second door of the clients that were given this node's door first. Everybody knows
/// everybody's standby from the same facts. What a node told is forgotten with that life of it.
///
/// Pure; its owner is one thread.
package struct RelayRoster: Sendable {
    /// Users that are counted of one node at most; more are not counted.
    package static let usersMax = 16_384

    private struct Peer: Sendable {
        var tidings: RelayTidings
        var counts: [String: Int]
    }

    private let local: NodeID
    /// Members that live, with whether they take new work, in the order of their names.
    private var members: [(id: NodeID, isUp: Bool)] = []
    private var peers: [NodeID: Peer] = [:]

    package init(local: NodeID) { self.local = local }

    /// Who lives, as the newest map says.
    package mutating func membersChanged(_ members: [(id: NodeID, isUp: Bool)]) {
        self.members = members.sorted { Self.order($0.id.name, $1.id.name) }
        peers = peers.filter { id, _ in members.contains { $0.id == id } }
    }

    /// A node told of its relay. Nothing of a life that is over, or not known yet.
    package mutating func told(_ tidings: RelayTidings, by node: NodeID) {
        guard members.contains(where: { $0.id == node }), node != local else { return }
        var counts = tidings.isWhole ? [:] : peers[node]?.counts ?? [:]
        for entry in tidings.usage {
            guard entry.allocations > 0 else {
                counts[entry.user] = nil
                continue
            }
            if counts[entry.user] != nil || counts.count < Self.usersMax { counts[entry.user] = entry.allocations }
        }
        peers[node] = Peer(tidings: tidings, counts: counts)
    }

    /// The other members that live, in the order of their names.
    package var others: [NodeID] { members.map(\.id).filter { $0 != local } }

    /// The node that holds the mirrors of this one; nil where no other relays.
    package var standby: NodeID? {
        let ring = members.map(\.id)
        guard let own = ring.firstIndex(of: local) else { return nil }
        let after = ring[(own + 1)...] + ring[..<own]
        return after.first { id in
            let isUp = members.contains { $0.id == id && $0.isUp }
            return isUp && peers[id].map { !$0.tidings.isDraining && !$0.tidings.doors.isEmpty } == true
        }
    }

    /// Where clients are sent when this node leaves: its standby, which has their allocations.
    package var alternate: RelayAlternate? {
        guard let standby, let tidings = peers[standby]?.tidings else { return nil }
        return RelayAlternate(doors: tidings.doors, domain: tidings.domain.isEmpty ? nil : tidings.domain)
    }

    /// Allocations of users at all other nodes that live.
    package var countsElsewhere: [String: Int] {
        peers.values.reduce(into: [:]) { sum, peer in sum.merge(peer.counts) { $0 + $1 } }
    }

    private static func order(_ left: NodeName, _ right: NodeName) -> Bool {
        (left.rawValue.utf8.count, left.rawValue) < (right.rawValue.utf8.count, right.rawValue)
    }
}

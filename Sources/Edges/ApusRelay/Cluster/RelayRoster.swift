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
    /// What clients are told, where that is not the first of ``doors``: a name, or an address before a NAT.
    package var advertised: HostPort?
    /// Of the node's machine, for which the port says nothing; at most ``RelayRoster/addressesMax``.
    package var addresses: [TransportAddress]
    /// Where the node's allocations are, as peers see them, without ports; at most ``RelayRoster/addressesMax``. Empty
    /// for a node that does not say: at any of its addresses.
    package var relays: [TransportAddress]

    package init(
        doors: [RelayDoor], domain: String = "", isDraining: Bool = false, usage: [RelayUsage] = [],
        isWhole: Bool = true, advertised: HostPort? = nil, addresses: [TransportAddress] = [],
        relays: [TransportAddress] = []
    ) {
        self.doors = doors
        self.domain = domain
        self.isDraining = isDraining
        self.usage = usage
        self.isWhole = isWhole
        self.advertised = advertised
        self.addresses = addresses
        self.relays = relays
    }

    /// Where clients find this node's relay (RFC 7065): over UDP, TCP and TLS, as far as the doors are there. DTLS is
    /// left out: no browser has it for this.
    package var urls: [String] {
        let kinds: [(RelayFlow.Transport, scheme: String, transport: String)] = [
            (.udp, "turn", "udp"), (.tcp, "turn", "tcp"), (.tls, "turns", "tcp"),
        ]
        return kinds.compactMap { kind, scheme, transport in
            guard let door = doors.first(where: { $0.transport == kind })?.address else { return nil }
            var place = HostPort(host: door.hostDescription, port: Int(door.port))
            if let advertised {
                // What is told is the port of the plain doors; that of TLS has no other name than its own.
                place.host = advertised.host
                if kind != .tls { place.port = advertised.port }
            }
            return "\(scheme):\(place)?transport=\(transport)"
        }
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
    /// Addresses of one node's machine that are known at most.
    package static let addressesMax = 64

    private struct Peer: Sendable {
        var tidings: RelayTidings
        var counts: [String: Int]
    }

    /// Nodes whose relays one client is told of; browsers grow slow with more.
    package static let clientNodesMax = 3

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

    /// A node told of its relay; true for the first time. Nothing of a life that is over, or not known yet.
    @discardableResult
    package mutating func told(_ tidings: RelayTidings, by node: NodeID) -> Bool {
        guard members.contains(where: { $0.id == node }), node != local else { return false }
        let isFirst = peers[node] == nil
        var counts = tidings.isWhole ? [:] : peers[node]?.counts ?? [:]
        for entry in tidings.usage {
            guard entry.allocations > 0 else {
                counts[entry.user] = nil
                continue
            }
            if counts[entry.user] != nil || counts.count < Self.usersMax { counts[entry.user] = entry.allocations }
        }
        peers[node] = Peer(tidings: tidings, counts: counts)
        return isFirst
    }

    /// The other members that live, in the order of their names.
    package var others: [NodeID] { members.map(\.id).filter { $0 != local } }

    /// The node that holds the mirrors of this one; nil if no other relays.
    package var standby: NodeID? { open.first }

    /// The other nodes whose relays take clients, the one after this node first.
    private var open: [NodeID] {
        let ring = members.map(\.id)
        guard let own = ring.firstIndex(of: local) else { return [] }
        let after = ring[(own + 1)...] + ring[..<own]
        return after.filter { id in
            let isUp = members.contains { $0.id == id && $0.isUp }
            return isUp && peers[id].map { !$0.tidings.isDraining && !$0.tidings.doors.isEmpty } == true
        }
    }

    /// Where a client of this node finds relays: this node's first unless it leaves, then its standby's, which has the
    /// mirrors, then others'. Of ``clientNodesMax`` nodes at most.
    package func clientURLs(own: RelayTidings) -> [String] {
        let others = open.compactMap { peers[$0]?.tidings }
        let all = (own.isDraining ? [] : [own]) + others
        return all.filter { !$0.urls.isEmpty }.prefix(Self.clientNodesMax).flatMap(\.urls)
    }

    /// Addresses of the other nodes as they told them: of their machines, doors and relays, each once, in the order of
    /// the nodes' names.
    package var addressesElsewhere: [TransportAddress] {
        elsewhere { $0.addresses + $0.doors.map(\.address) + $0.relays }
    }

    /// Those of ``addressesElsewhere`` at which allocations may be.
    package var relaysElsewhere: [TransportAddress] {
        elsewhere { $0.relays.isEmpty ? $0.addresses + $0.doors.map(\.address) : $0.relays }
    }

    private func elsewhere(_ pick: (RelayTidings) -> [TransportAddress]) -> [TransportAddress] {
        var seen: Set<TransportAddress> = []
        return others.compactMap { peers[$0]?.tidings }.flatMap(pick).map(\.host).filter { seen.insert($0).inserted }
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

package import ApusCore
package import ApusTraversal

/// A node's report about its relay, sent about once a second.
package struct RelayReport: Sendable, Equatable {
    /// The endpoints for clients.
    package var endpoints: [RelayEndpoint]
    /// The name in the certificate of its TLS endpoints; empty if there is none.
    package var domain: String
    package var isDraining: Bool
    /// Allocations per user: of all users if ``isWhole``, otherwise of those whose number changed. 0: none any more.
    package var usage: [RelayUsage]
    package var isWhole: Bool
    /// The address for clients, if it is not the first of ``endpoints``: a name, or an address before a NAT.
    package var advertised: HostPort?
    /// Addresses of the node's machine, whose ports are ignored; at most ``RelayRoster/addressesMax``.
    package var addresses: [TransportAddress]
    /// The addresses with the node's allocations, as peers see them, without ports; at most
    /// ``RelayRoster/addressesMax``. Empty if the node does not report them: any of its addresses.
    package var relays: [TransportAddress]

    package init(
        endpoints: [RelayEndpoint], domain: String = "", isDraining: Bool = false, usage: [RelayUsage] = [],
        isWhole: Bool = true, advertised: HostPort? = nil, addresses: [TransportAddress] = [],
        relays: [TransportAddress] = []
    ) {
        self.endpoints = endpoints
        self.domain = domain
        self.isDraining = isDraining
        self.usage = usage
        self.isWhole = isWhole
        self.advertised = advertised
        self.addresses = addresses
        self.relays = relays
    }

    /// The URLs of this node's relay (RFC 7065): over UDP, TCP and TLS, as far as these endpoints exist. DTLS is
    /// omitted, because no browser supports it here.
    package var urls: [String] {
        let kinds: [(RelayFlow.Transport, scheme: String, transport: String)] = [
            (.udp, "turn", "udp"), (.tcp, "turn", "tcp"), (.tls, "turns", "tcp"),
        ]
        return kinds.compactMap { kind, scheme, transport in
            guard let endpoint = endpoints.first(where: { $0.transport == kind })?.address else { return nil }
            var place = HostPort(host: endpoint.hostDescription, port: Int(endpoint.port))
            if let advertised {
                // The advertised port is that of the plain endpoints. The TLS endpoint is advertised only with its own
                // port.
                place.host = advertised.host
                if kind != .tls { place.port = advertised.port }
            }
            return "\(scheme):\(place)?transport=\(transport)"
        }
    }
}

/// The relays of a cluster as one node sees them: the live members, their endpoints, and their users' allocations (D8).
///
/// The standby of a node is the next live node with a relay, in the order of the names (`n2` after `n1`, `n10` after
/// `n9`). It is therefore the second endpoint of clients whose first endpoint is this node. All nodes derive the
/// standbys from the same data. A node's reports are discarded with its incarnation.
///
/// Pure value; its owner is one thread.
package struct RelayRoster: Sendable {
    /// The most users counted per node. Further ones are not counted.
    package static let usersMax = 16_384
    /// The most addresses of one node's machine.
    package static let addressesMax = 64

    private struct Peer: Sendable {
        var report: RelayReport
        var counts: [String: Int]
    }

    /// The most nodes in one client's list of relays. Browsers become slow with more.
    package static let clientNodesMax = 3

    private let local: NodeID
    /// Live members, in the order of their names, and whether they accept new work.
    private var members: [(id: NodeID, isUp: Bool)] = []
    private var peers: [NodeID: Peer] = [:]

    package init(local: NodeID) { self.local = local }

    /// The live members of the newest map.
    package mutating func membersChanged(_ members: [(id: NodeID, isUp: Bool)]) {
        self.members = members.sorted { Self.order($0.id.name, $1.id.name) }
        peers = peers.filter { id, _ in members.contains { $0.id == id } }
    }

    /// A node reported about its relay. Returns true the first time. Ignored if the incarnation has ended or is
    /// unknown.
    @discardableResult
    package mutating func reported(_ report: RelayReport, by node: NodeID) -> Bool {
        guard members.contains(where: { $0.id == node }), node != local else { return false }
        let isFirst = peers[node] == nil
        var counts = report.isWhole ? [:] : peers[node]?.counts ?? [:]
        for entry in report.usage {
            guard entry.allocations > 0 else {
                counts[entry.user] = nil
                continue
            }
            if counts[entry.user] != nil || counts.count < Self.usersMax { counts[entry.user] = entry.allocations }
        }
        peers[node] = Peer(report: report, counts: counts)
        return isFirst
    }

    /// The other live members, in the order of their names.
    package var others: [NodeID] { members.map(\.id).filter { $0 != local } }

    /// The node that stores the mirrors of this one; nil if no other node has a relay.
    package var standby: NodeID? { open.first }

    /// The other nodes whose relays accept clients, the one after this node first.
    private var open: [NodeID] {
        let ring = members.map(\.id)
        guard let own = ring.firstIndex(of: local) else { return [] }
        let after = ring[(own + 1)...] + ring[..<own]
        return after.filter { id in
            let isUp = members.contains { $0.id == id && $0.isUp }
            return isUp && peers[id].map { !$0.report.isDraining && !$0.report.endpoints.isEmpty } == true
        }
    }

    /// The relay URLs for a client of this node: this node's first unless it is leaving, then its standby's, which has
    /// the mirrors, then others'. At most ``clientNodesMax`` nodes.
    package func clientURLs(own: RelayReport) -> [String] {
        let others = open.compactMap { peers[$0]?.report }
        let all = (own.isDraining ? [] : [own]) + others
        return all.filter { !$0.urls.isEmpty }.prefix(Self.clientNodesMax).flatMap(\.urls)
    }

    /// The addresses that the other nodes report: of machines, endpoints and relays, each once, in the order of the
    /// nodes' names.
    package var addressesElsewhere: [TransportAddress] {
        elsewhere { $0.addresses + $0.endpoints.map(\.address) + $0.relays }
    }

    /// Those of ``addressesElsewhere`` that may have allocations.
    package var relaysElsewhere: [TransportAddress] {
        elsewhere { $0.relays.isEmpty ? $0.addresses + $0.endpoints.map(\.address) : $0.relays }
    }

    private func elsewhere(_ pick: (RelayReport) -> [TransportAddress]) -> [TransportAddress] {
        var seen: Set<TransportAddress> = []
        return others.compactMap { peers[$0]?.report }.flatMap(pick).map(\.host).filter { seen.insert($0).inserted }
    }

    /// The destination of clients when this node leaves: its standby, which has their mirrors.
    package var alternate: RelayAlternate? {
        guard let standby, let report = peers[standby]?.report else { return nil }
        return RelayAlternate(endpoints: report.endpoints, domain: report.domain.isEmpty ? nil : report.domain)
    }

    /// The users' allocations at all other live nodes.
    package var countsElsewhere: [String: Int] {
        peers.values.reduce(into: [:]) { sum, peer in sum.merge(peer.counts) { $0 + $1 } }
    }

    private static func order(_ left: NodeName, _ right: NodeName) -> Bool {
        (left.rawValue.utf8.count, left.rawValue) < (right.rawValue.utf8.count, right.rawValue)
    }
}

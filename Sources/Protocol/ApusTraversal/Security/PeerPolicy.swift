/// The peers to which a relay may send (D8). Special addresses and the cluster's own addresses are refused.
///
/// A relay is inside a network that its clients are outside of. Without this rule any client could reach the machines
/// behind it (Slack 2020, CVE-2020-26262, CVE-2026-27624). Refused are all ranges of IANA's special-purpose registries
/// (RFC 6890 and later entries), multicast, reserved space and the addresses of this cluster. An address that embeds an
/// IPv4 address (v4-mapped, NAT64, 6to4, Teredo) is also checked by that one. A configuration can open ranges by name,
/// for use inside a LAN and for tests.
///
/// An operator's lists take precedence over the ranges, and allowed entries over denied ones. The checks are made in
/// this order: addresses of this node, addresses of other nodes (which only restrict the later checks), allowed,
/// denied, special ranges, everything else. A list cannot open the cluster's own addresses, or loopback and unspecified
/// ones, which belong to the machine too.
public struct PeerPolicy: Sendable {
    /// A range that can be opened by name.
    public enum Range: String, Sendable, Hashable, CaseIterable {
        case unspecified, loopback
        case `private`
        case linkLocal = "link-local"
        case carrierGrade = "carrier-grade-nat"
        case documentation, benchmarking, multicast, reserved
        case nat64
        case sixToFour = "6to4"
        case teredo
    }

    /// The reason for which a peer is refused.
    public enum Refusal: Sendable, Hashable {
        case special(Range)
        /// An address of this cluster, at a port that is not a relay's, or by an address that only the cluster uses.
        case own
        /// The operator's list denies it.
        case denied
        /// Port 0, to which nothing can be sent.
        case noPort
        /// A cloud service that gives machines their secrets. It is never a peer, whatever range is open.
        case metadata
    }

    struct Entry: Sendable {
        let high: UInt64
        let low: UInt64
        let bits: Int
        let range: Range
    }

    /// The most entries of one list.
    public static let rulesMax = 256
    /// The result of ``ports(of:)`` for a host whose ports must be checked individually.
    public static let judgedPorts: ClosedRange<UInt16> = 0...0

    private let opened: Set<Range>
    private let allowed: [PeerRule]
    private let denied: [PeerRule]
    private let own: Set<TransportAddress>
    private let hidden: Set<TransportAddress>
    /// The own addresses that have allocations.
    private let relays: Set<TransportAddress>
    private let relayPorts: ClosedRange<UInt16>
    /// Networks that a NAT64 translates, in addition to the well-known ones.
    private let nat64: [Nat64Prefix]
    /// Known addresses of the cluster's other nodes, without ports.
    private var others: Set<TransportAddress> = []
    /// Those of them that have allocations.
    private var otherRelays: Set<TransportAddress> = []
    /// Those of them at which this node has reached the other node itself.
    private var reached: Set<TransportAddress> = []

    /// - Parameters:
    ///   - opened: Ranges whose addresses may be peers; none by default.
    ///   - own: Addresses of this node and of the cluster's others. Ports are ignored.
    ///   - relays: Those of ``own`` that have allocations; nil: all of them.
    ///   - relayPorts: The ports of the relayed addresses in the cluster. At relay addresses these ports are allowed,
    ///     so that
    ///     two relayed clients reach each other.
    ///   - allowed: Peers that are allowed whatever the other rules say; at most ``rulesMax``.
    ///   - denied: Peers that are refused unless ``allowed`` has them; at most ``rulesMax``.
    ///   - nat64: Networks that a NAT64 translates, in addition to 64:ff9b::/96 and 64:ff9b:1::/48; at most
    ///     ``rulesMax``.
    ///   - externals: This node's public addresses before a NAT, and the private ones behind it. The public ones count
    ///     as
    ///     own and as relays'. The private ones are refused: clients must use the public ones.
    public init(
        opened: Set<Range> = [], own: [TransportAddress] = [], relays: [TransportAddress]? = nil,
        relayPorts: ClosedRange<UInt16> = 49152...65535, allowed: [PeerRule] = [], denied: [PeerRule] = [],
        nat64: [Nat64Prefix] = [], externals: ExternalAddresses = ExternalAddresses()
    ) {
        let outer = externals.pairs.map(\.external)
        self.opened = opened
        self.allowed = Array(allowed.prefix(Self.rulesMax))
        self.denied = Array(denied.prefix(Self.rulesMax))
        self.own = Set((own + outer).map(\.host))
        self.relays = Set(((relays ?? own) + outer).map(\.host))
        hidden = Set(externals.pairs.map(\.local))
        self.relayPorts = relayPorts
        self.nat64 = Array(nat64.prefix(Self.rulesMax))
    }

    /// Replaces the addresses of the cluster's other nodes. Ports are ignored.
    ///
    /// What a node reports about itself only restricts: at an address of another node, only the ports of relays remain
    /// of what lists and ranges open. A special range is open at an address at which this node has reached the other
    /// one itself, so that nodes of one private network relay to each other. A list that denies the address closes it
    /// there too. A reported address in a special range may be another machine from this node's point of view. It
    /// counts only if the range or a list opens it.
    ///
    /// - Parameters:
    ///   - reached: the addresses at which this node has reached the others and checked their certificates.
    ///   - reported: the addresses that they report.
    ///   - relays: those of them that have allocations; nil: any.
    public mutating func setOthers(
        reached: [TransportAddress], reported: [TransportAddress], relays: [TransportAddress]? = nil
    ) {
        let known = reported.filter { address in
            let isOpen = Self.range(of: address).map { opened.contains($0) } ?? true
            return isOpen || allowed.contains { $0.contains(host: address) }
        }
        others = Set((reached + known).map(\.host)).filter { Self.range(of: $0) != .unspecified }
        otherRelays = relays.map { others.intersection($0.map(\.host)) } ?? others
        self.reached = Set(reached.map(\.host))
    }

    private func isOwn(_ host: TransportAddress) -> Bool { own.contains(host) || others.contains(host) }

    /// True if allocations of this cluster may be at a host. Reports of other nodes do not apply to this node's own
    /// addresses.
    private func isRelay(_ host: TransportAddress) -> Bool {
        own.contains(host) ? relays.contains(host) : otherRelays.contains(host)
    }

    /// If loopback is opened, the node's own loopback addresses count as any other loopback address: everything then
    /// runs on one machine.
    private func isOpenLoopback(_ host: TransportAddress) -> Bool {
        Self.range(of: host) == .loopback && opened.contains(.loopback)
    }

    /// Copies the addresses of the other nodes to a policy with new rules.
    mutating func keepOthers(of before: PeerPolicy) {
        (others, otherRelays, reached) = (before.others, before.otherRelays, before.reached)
    }

    /// True if both policies have the same addresses of other nodes.
    func hasOthers(of other: PeerPolicy) -> Bool {
        others == other.others && otherRelays == other.otherRelays && reached == other.reached
    }

    /// The ports of a host that may be sent to: for a host of the cluster only those of relays; ``judgedPorts`` if a
    /// list names ports of the host. Lists do not apply to this node's own addresses.
    public func ports(of host: TransportAddress) -> ClosedRange<UInt16> {
        if own.contains(host.host) { return isOpenLoopback(host) ? PeerRule.allPorts : relayPorts }
        let hosts = [host] + embedded(in: host)
        func isJudged(by rules: [PeerRule]) -> Bool {
            rules.contains { rule in rule.isOfSomePorts && hosts.contains { rule.contains(host: $0) } }
        }
        if isJudged(by: allowed) || isJudged(by: denied) { return Self.judgedPorts }
        return others.contains(host.host) && !isOpenLoopback(host) ? relayPorts : PeerRule.allPorts
    }

    /// Checks a host at any port, for CreatePermission (RFC 8656 §10.2). It is refused if every port would be.
    public func refusal(ofHost address: TransportAddress) -> Refusal? {
        refusal(address, isAllowed: { $0.contains(host: address) }) { !$0.isOfSomePorts && $0.contains(host: address) }
            ?? embeddedRefusal(in: address) { refusal(ofHost: $0) }
    }

    /// Checks an address with its port, for ChannelBind, Connect and Send.
    public func refusal(of address: TransportAddress) -> Refusal? {
        guard address.port != 0 else { return .noPort }
        if isOwn(address.host), !isOpenLoopback(address), !relayPorts.contains(address.port) {
            return refusal(ofHost: address) ?? .own
        }
        return refusal(address, isAllowed: { $0.contains(address) }, isDenied: { $0.contains(address) })
            ?? embeddedRefusal(in: address) { refusal(of: $0) }
    }

    /// Applies the rules in order to an address itself, not to addresses embedded in it.
    private func refusal(
        _ address: TransportAddress, isAllowed: (PeerRule) -> Bool, isDenied: (PeerRule) -> Bool
    ) -> Refusal? {
        if Self.metadata.contains(address.host) { return .metadata }
        if hidden.contains(address.host) { return .own }
        if isOwn(address.host) {
            // A machine has addresses without allocations, and services that listen at any of their ports.
            guard isRelay(address.host) || isOpenLoopback(address) else { return .own }
        }
        if own.contains(address.host) {
            // A node may be in a private network, and its own relays must be reachable there. An unspecified or
            // loopback address belongs to the machine alone, and is never a relay for others.
            guard let range = Self.range(of: address), range == .unspecified || range == .loopback else { return nil }
            return opened.contains(range) ? nil : .special(range)
        }
        // All of 127.0.0.0/8 is the machine itself, and for the kernel so is 0.0.0.0. No list opens its services.
        if let range = Self.range(of: address), range == .unspecified || range == .loopback, !opened.contains(range) {
            return .special(range)
        }
        if allowed.contains(where: isAllowed) { return nil }
        if denied.contains(where: isDenied) { return .denied }
        if reached.contains(address.host) { return nil }
        if let range = Self.range(of: address), !opened.contains(range) { return .special(range) }
        return nil
    }

    /// The first refusal of an address embedded in this one. An own address is refused at every port.
    private func embeddedRefusal(
        in address: TransportAddress, _ judge: (TransportAddress) -> Refusal?
    ) -> Refusal? {
        guard !isOwn(address.host) else { return nil }
        for inner in embedded(in: address) {
            if let refusal = judge(inner) { return refusal }
            if isOwn(inner.host) { return .own }
        }
        return nil
    }

    /// The special range of an address; nil if it is an ordinary Internet address.
    public static func range(of address: TransportAddress) -> Range? {
        switch address.family {
        case .v4:
            let value = address.v4
            return v4.first { value >> (32 - $0.bits) == UInt32(truncatingIfNeeded: $0.low) >> (32 - $0.bits) }?.range
        case .v6:
            return v6.first { matches($0, address) }?.range ?? (address.high >> 61 == 1 ? nil : .reserved)
        }
    }

    private static func matches(_ entry: Entry, _ address: TransportAddress) -> Bool {
        if entry.bits <= 64 { return (address.high ^ entry.high) >> (64 - UInt64(entry.bits)) == 0 }
        return address.high == entry.high && (address.low ^ entry.low) >> (128 - UInt64(entry.bits)) == 0
    }

    /// Metadata services of clouds, which give machines their configuration and secrets: Azure's wire server, whose
    /// address is not special; AWS (also for containers and over IPv6), Google (IPv6), Oracle and Alibaba, whose ranges
    /// an operator may open.
    static let metadata: Set<TransportAddress> = [
        TransportAddress(v4: 0xA83F_8110, port: 0),  // 168.63.129.16
        TransportAddress(v4: 0xA9FE_A9FE, port: 0),  // 169.254.169.254
        TransportAddress(v4: 0xA9FE_A9FD, port: 0),  // 169.254.169.253
        TransportAddress(v4: 0xA9FE_AA02, port: 0),  // 169.254.170.2
        TransportAddress(v4: 0xA9FE_AA17, port: 0),  // 169.254.170.23
        TransportAddress(v4: 0xC000_00C0, port: 0),  // 192.0.0.192
        TransportAddress(v4: 0x6464_64C8, port: 0),  // 100.100.100.200
        TransportAddress(v6High: 0xfd00_0ec2_0000_0000, low: 0x254, port: 0),
        TransportAddress(v6High: 0xfd00_0ec2_0000_0000, low: 0x23, port: 0),
        TransportAddress(v6High: 0xfd20_00ce_0000_0000, low: 0x254, port: 0),
    ]

    /// The IPv4 addresses that an IPv6 address embeds: NAT64 (RFC 6052 §2.2, RFC 8215), 6to4 (RFC 3056 §2), and client
    /// and server of Teredo (RFC 4380 §4). A v4-mapped address was converted to IPv4 before.
    func embedded(in address: TransportAddress) -> [TransportAddress] {
        guard address.family == .v6 else { return [] }
        let low = UInt32(truncatingIfNeeded: address.low)
        let named = nat64.filter { $0.contains(address) }
        if !named.isEmpty { return named.map { $0.v4(in: address) } }
        if Nat64Prefix.wellKnown.contains(address) { return [Nat64Prefix.wellKnown.v4(in: address)] }
        if Nat64Prefix.local.contains(address) { return Nat64Prefix.candidates(in: address) }
        if address.high >> 48 == 0x2002 {
            return [TransportAddress(v4: UInt32(truncatingIfNeeded: address.high >> 16), port: address.port)]
        }
        if address.high >> 32 == 0x2001_0000 {
            return [
                TransportAddress(v4: ~low, port: address.port),
                TransportAddress(v4: UInt32(truncatingIfNeeded: address.high), port: address.port),
            ]
        }
        return []
    }
}

extension PeerPolicy {
    private static func v4(_ a: UInt32, _ b: UInt32, _ c: UInt32, _ d: UInt32, _ bits: Int, _ range: Range) -> Entry {
        Entry(high: 0, low: UInt64(a << 24 | b << 16 | c << 8 | d), bits: bits, range: range)
    }

    /// IANA IPv4 Special-Purpose Address Registry, multicast (RFC 5771), reserved (RFC 1112 §4).
    private static let v4: [Entry] = [
        v4(0, 0, 0, 0, 8, .unspecified),
        v4(10, 0, 0, 0, 8, .private),
        v4(100, 64, 0, 0, 10, .carrierGrade),
        v4(127, 0, 0, 0, 8, .loopback),
        v4(169, 254, 0, 0, 16, .linkLocal),
        v4(172, 16, 0, 0, 12, .private),
        v4(192, 0, 0, 0, 24, .reserved),
        v4(192, 0, 2, 0, 24, .documentation),
        v4(192, 31, 196, 0, 24, .reserved),
        v4(192, 52, 193, 0, 24, .reserved),
        v4(192, 88, 99, 0, 24, .sixToFour),
        v4(192, 168, 0, 0, 16, .private),
        v4(192, 175, 48, 0, 24, .reserved),
        v4(198, 18, 0, 0, 15, .benchmarking),
        v4(198, 51, 100, 0, 24, .documentation),
        v4(203, 0, 113, 0, 24, .documentation),
        v4(224, 0, 0, 0, 4, .multicast),
        v4(240, 0, 0, 0, 4, .reserved),
    ]

    /// IANA IPv6 Special-Purpose Address Registry, multicast (RFC 4291 §2.7), v4-compatible and site-local addresses
    /// (retired by RFC 4291 §2.5.5.1 and RFC 3879). An address that is neither in 2000::/3 nor here is reserved.
    private static let v6: [Entry] = [
        Entry(high: 0, low: 0, bits: 128, range: .unspecified),
        Entry(high: 0, low: 1, bits: 128, range: .loopback),
        Entry(high: 0, low: 0, bits: 96, range: .reserved),
        Entry(high: 0x0064_ff9b_0000_0000, low: 0, bits: 96, range: .nat64),
        Entry(high: 0x0064_ff9b_0001_0000, low: 0, bits: 48, range: .private),
        Entry(high: 0x0100_0000_0000_0000, low: 0, bits: 64, range: .reserved),
        Entry(high: 0x2001_0000_0000_0000, low: 0, bits: 32, range: .teredo),
        Entry(high: 0x2001_0002_0000_0000, low: 0, bits: 48, range: .benchmarking),
        Entry(high: 0x2001_0000_0000_0000, low: 0, bits: 23, range: .reserved),
        Entry(high: 0x2001_0db8_0000_0000, low: 0, bits: 32, range: .documentation),
        Entry(high: 0x2002_0000_0000_0000, low: 0, bits: 16, range: .sixToFour),
        Entry(high: 0x2620_004f_8000_0000, low: 0, bits: 48, range: .reserved),
        Entry(high: 0x3fff_0000_0000_0000, low: 0, bits: 20, range: .documentation),
        Entry(high: 0x5f00_0000_0000_0000, low: 0, bits: 16, range: .reserved),
        Entry(high: 0xfc00_0000_0000_0000, low: 0, bits: 7, range: .private),
        Entry(high: 0xfe80_0000_0000_0000, low: 0, bits: 10, range: .linkLocal),
        Entry(high: 0xfec0_0000_0000_0000, low: 0, bits: 10, range: .private),
        Entry(high: 0xff00_0000_0000_0000, low: 0, bits: 8, range: .multicast),
    ]
}

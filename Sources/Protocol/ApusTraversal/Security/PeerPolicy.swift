/// Which peers a relay may send to (D8): none of the addresses that are special, none of the cluster's own.
///
/// A relay stands inside a network that its clients stand outside of; without this rule any client could reach
/// the machines behind it (Slack 2020, CVE-2020-26262, CVE-2026-27624). Refused are all ranges of IANA's
/// special-purpose registries (RFC 6890 and later entries), multicast, reserved space and the addresses of this
/// cluster. An address that carries an IPv4 address inside (v4-mapped, NAT64, 6to4, Teredo) is judged by that one too.
/// A configuration opens ranges by name, for use inside a LAN and for tests.
///
/// Lists of an operator go before the ranges, and what they allow before what they deny. The order in which a peer is
/// judged: addresses of this node, addresses of other nodes (which only narrow what follows), allowed, denied, special
/// ranges, everything else. The cluster's own addresses cannot be opened by a list, nor can loopback and unspecified
/// ones, which are the machine's own as well.
public struct PeerPolicy: Sendable {
    /// A range that can be opened by its name.
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

    /// Why a peer is refused.
    public enum Refusal: Sendable, Hashable {
        case special(Range)
        /// An address of this cluster, at a port that is no relay's or by a name that only the cluster has.
        case own
        /// What the operator's list denies.
        case denied
        /// Port 0, to which nothing can be sent.
        case noPort
        /// A service of a cloud that gives machines their secrets; never a peer, whatever range is open.
        case metadata
    }

    struct Entry: Sendable {
        let high: UInt64
        let low: UInt64
        let bits: Int
        let range: Range
    }

    /// Entries of one list, at most.
    public static let rulesMax = 256
    /// What ``ports(of:)`` answers for a host of which no single range of ports is allowed: each is to be judged.
    public static let judgedPorts: ClosedRange<UInt16> = 0...0

    private let opened: Set<Range>
    private let allowed: [PeerRule]
    private let denied: [PeerRule]
    private let own: Set<TransportAddress>
    private let hidden: Set<TransportAddress>
    /// Own addresses at which allocations are.
    private let relays: Set<TransportAddress>
    private let relayPorts: ClosedRange<UInt16>
    /// Networks that a NAT64 translates, beside the well-known ones.
    private let nat64: [Nat64Prefix]
    /// Addresses of the cluster's other nodes, as far as they are known; without ports.
    private var others: Set<TransportAddress> = []
    /// Those at which the other nodes' allocations are.
    private var otherRelays: Set<TransportAddress> = []
    /// Those at which this node has reached another one itself.
    private var reached: Set<TransportAddress> = []

    /// - Parameters:
    ///   - opened: Ranges whose addresses may be peers; none by default.
    ///   - own: Addresses of this node and of the cluster's others, of which ports do not count.
    ///   - relays: Those of ``own`` at which allocations are; nil: all of them.
    ///   - relayPorts: Where the relays of the cluster have their relayed addresses: these are peers on addresses that
    ///     relay, so that two relayed clients reach each other.
    ///   - allowed: Peers that are let in whatever else is said of them; at most ``rulesMax``.
    ///   - denied: Peers that are refused unless ``allowed`` has them; at most ``rulesMax``.
    ///   - nat64: Networks that a NAT64 translates, beside 64:ff9b::/96 and 64:ff9b:1::/48; at most ``rulesMax``.
    ///   - externals: Public addresses that this node has before a NAT, and what they are behind it. The public ones
    ///     count as own and as relays', and are the only names of the private ones: these are refused.
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

    /// The cluster's other nodes are at these addresses, and no more at those of before; ports do not count.
    ///
    /// What a node says of itself only closes: at an address that is another node's, the ports of relays alone are left
    /// of what the lists and ranges open. A special range is open at an address where this node has reached the other
    /// one itself, so that nodes of one private network relay to each other; a list that denies it closes it there too.
    /// What is only told in a special range may be somebody else's machine seen from here: it counts where the range
    /// or a list opens it.
    ///
    /// - Parameters:
    ///   - reached: where this node has reached the others, with their certificates shown.
    ///   - told: what they say of themselves.
    ///   - relays: of these, where their allocations are; nil: anywhere.
    public mutating func setOthers(
        reached: [TransportAddress], told: [TransportAddress], relays: [TransportAddress]? = nil
    ) {
        let known = told.filter { address in
            let isOpen = Self.range(of: address).map { opened.contains($0) } ?? true
            return isOpen || allowed.contains { $0.contains(host: address) }
        }
        others = Set((reached + known).map(\.host)).filter { Self.range(of: $0) != .unspecified }
        otherRelays = relays.map { others.intersection($0.map(\.host)) } ?? others
        self.reached = Set(reached.map(\.host))
    }

    private func isOwn(_ host: TransportAddress) -> Bool { own.contains(host) || others.contains(host) }

    /// Whether allocations of this cluster may be at a host. Of this node's own addresses no other node says it.
    private func isRelay(_ host: TransportAddress) -> Bool {
        own.contains(host) ? relays.contains(host) : otherRelays.contains(host)
    }

    /// Own loopback addresses count as any other loopback address where loopback is opened: who opens it runs
    /// everything on one machine.
    private func isOpenLoopback(_ host: TransportAddress) -> Bool {
        Self.range(of: host) == .loopback && opened.contains(.loopback)
    }

    /// Takes over what is known of the other nodes, where the rules themselves are new.
    mutating func keepOthers(of before: PeerPolicy) {
        (others, otherRelays, reached) = (before.others, before.otherRelays, before.reached)
    }

    /// Whether the same is known of the other nodes.
    func hasOthers(of other: PeerPolicy) -> Bool {
        others == other.others && otherRelays == other.otherRelays && reached == other.reached
    }

    /// The ports of a host that may be sent to: for a host of the cluster only those of relays; ``judgedPorts`` where a
    /// list names ports of the host. Lists say nothing of this node's own addresses.
    public func ports(of host: TransportAddress) -> ClosedRange<UInt16> {
        if own.contains(host.host) { return isOpenLoopback(host) ? PeerRule.allPorts : relayPorts }
        let hosts = [host] + embedded(in: host)
        func isJudged(by rules: [PeerRule]) -> Bool {
            rules.contains { rule in rule.isOfSomePorts && hosts.contains { rule.contains(host: $0) } }
        }
        if isJudged(by: allowed) || isJudged(by: denied) { return Self.judgedPorts }
        return others.contains(host.host) && !isOpenLoopback(host) ? relayPorts : PeerRule.allPorts
    }

    /// Judges a host, whatever the port: what CreatePermission asks (RFC 8656 §10.2). It is refused where it would be
    /// at every port.
    public func refusal(ofHost address: TransportAddress) -> Refusal? {
        refusal(address, isAllowed: { $0.contains(host: address) }) { !$0.isOfSomePorts && $0.contains(host: address) }
            ?? embeddedRefusal(in: address) { refusal(ofHost: $0) }
    }

    /// Judges an address with its port: what ChannelBind, Connect and Send ask.
    public func refusal(of address: TransportAddress) -> Refusal? {
        guard address.port != 0 else { return .noPort }
        if isOwn(address.host), !isOpenLoopback(address), !relayPorts.contains(address.port) {
            return refusal(ofHost: address) ?? .own
        }
        return refusal(address, isAllowed: { $0.contains(address) }, isDenied: { $0.contains(address) })
            ?? embeddedRefusal(in: address) { refusal(of: $0) }
    }

    /// The order of the rules, for an address by itself.
    private func refusal(
        _ address: TransportAddress, isAllowed: (PeerRule) -> Bool, isDenied: (PeerRule) -> Bool
    ) -> Refusal? {
        if Self.metadata.contains(address.host) { return .metadata }
        if hidden.contains(address.host) { return .own }
        if isOwn(address.host) {
            // A machine has addresses at which no allocation is, and services that listen at any port of them.
            guard isRelay(address.host) || isOpenLoopback(address) else { return .own }
        }
        if own.contains(address.host) {
            // A node may stand in a private network; its own relays are reachable there all the same. An unspecified or
            // loopback address is nobody's but the machine's own, and is never a relay for others.
            guard let range = Self.range(of: address), range == .unspecified || range == .loopback else { return nil }
            return opened.contains(range) ? nil : .special(range)
        }
        // The whole of 127.0.0.0/8 is the machine itself, and so is 0.0.0.0 to the kernel: no list opens its services.
        if let range = Self.range(of: address), range == .unspecified || range == .loopback, !opened.contains(range) {
            return .special(range)
        }
        if allowed.contains(where: isAllowed) { return nil }
        if denied.contains(where: isDenied) { return .denied }
        if reached.contains(address.host) { return nil }
        if let range = Self.range(of: address), !opened.contains(range) { return .special(range) }
        return nil
    }

    /// The first refusal of an address inside this one; an own one is refused at whatever port.
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

    /// The special range of an address; nil for one that is just an address of the Internet.
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

    /// Where clouds give machines their configuration and secrets: Azure's wire server, which is no special address;
    /// AWS (also its containers, and IPv6), Google (IPv6), Oracle and Alibaba, whose ranges an operator may open.
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

    /// The IPv4 addresses that an IPv6 address carries: NAT64 (RFC 6052 §2.2, RFC 8215), 6to4 (RFC 3056 §2), and client
    /// and server of Teredo (RFC 4380 §4). A v4-mapped one has become IPv4 before.
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
    /// (retired by RFC 4291 §2.5.5.1 and RFC 3879). What is not in 2000::/3 and not here is reserved.
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

/// A network whose IPv6 addresses a NAT64 translates to the IPv4 addresses inside them (RFC 6052 §2.2).
public struct Nat64Prefix: Sendable, Hashable {
    /// The prefix lengths that RFC 6052 allows.
    static let lengths = [32, 40, 48, 56, 64, 96]
    /// 64:ff9b::/96, which every NAT64 may use (RFC 6052 §2.1).
    static let wellKnown = Nat64Prefix(high: 0x0064_ff9b_0000_0000, low: 0, bits: 96)
    /// 64:ff9b:1::/48, of which a network takes a prefix of any allowed length for its own NAT64 (RFC 8215).
    static let local = Nat64Prefix(high: 0x0064_ff9b_0001_0000, low: 0, bits: 48)

    private let high: UInt64
    private let low: UInt64
    private let bits: Int

    private init(high: UInt64, low: UInt64, bits: Int) {
        self.high = high
        self.low = low
        self.bits = bits
    }

    /// Parses `2001:db8:64::/96`. Nil if the text is not an IPv6 network of an allowed length, has a bit set beyond it,
    /// or has one set among bits 64 to 71, which must be 0.
    public init?(_ text: String) {
        let parts = text.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 2, let bits = Self.lengths.first(where: { "\($0)" == parts[1] }),
            let address = TransportAddress(parts[0], port: 0), address.family == .v6, address.low >> 56 == 0
        else { return nil }
        self.init(high: address.high, low: address.low, bits: bits)
        let isWhole = bits == 96 ? low & 0xffff_ffff == 0 : low == 0 && (bits == 64 || high << UInt64(bits) == 0)
        guard isWhole else { return nil }
    }

    func contains(_ address: TransportAddress) -> Bool {
        guard address.family == .v6 else { return false }
        if bits == 96 { return address.high == high && address.low >> 32 == low >> 32 }
        return (address.high ^ high) >> UInt64(64 - bits) == 0
    }

    /// The IPv4 address in an address of this network.
    func v4(in address: TransportAddress) -> TransportAddress { Self.v4(in: address, bits: bits) }

    private static func v4(in address: TransportAddress, bits: Int) -> TransportAddress {
        if bits == 96 { return TransportAddress(v4: UInt32(truncatingIfNeeded: address.low), port: address.port) }
        // The rest of the first half, then the bits after the eight zero bits.
        let first = bits == 64 ? 0 : (address.high << UInt64(bits)) >> 32
        let rest = (address.low << 8) >> UInt64(96 - bits)
        return TransportAddress(v4: UInt32(truncatingIfNeeded: first | rest), port: address.port)
    }

    /// The IPv4 addresses that an address of the local prefix may carry: the prefix length of its network is unknown. A
    /// wrong length turns zeros into an address in 0.0.0.0/8, which counts only if all lengths give one.
    static func candidates(in address: TransportAddress) -> [TransportAddress] {
        let all = lengths.filter { $0 >= local.bits }.map { v4(in: address, bits: $0) }
        let likely = all.filter { $0.v4 >> 24 != 0 }
        return likely.isEmpty ? all : likely
    }
}

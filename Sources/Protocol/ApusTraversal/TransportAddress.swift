/// An IP address of either family with a port, as 20 plain bytes without a reference.
///
/// A v4-mapped IPv6 address (`::ffff:a.b.c.d`, RFC 4291 §2.5.5.2) is converted to its IPv4 address when a value is
/// made, so the other form of an address cannot bypass a comparison or a rule (the case of CVE-2026-27624). Values are
/// safe to share.
public struct TransportAddress: Hashable, Sendable {
    /// The family, with the number that STUN gives it (RFC 8489 §14.1).
    public enum Family: UInt8, Sendable, Hashable, CaseIterable {
        case v4 = 1
        case v6 = 2
    }

    public var family: Family
    /// The first eight bytes of an IPv6 address as a number; 0 for IPv4.
    public var high: UInt64
    /// The last eight bytes of an IPv6 address as a number, or the IPv4 address in the low 32 bits.
    public var low: UInt64
    public var port: UInt16

    /// An IPv4 address, given as the number of its four bytes.
    public init(v4 address: UInt32, port: UInt16) {
        family = .v4
        high = 0
        low = UInt64(address)
        self.port = port
    }

    /// An IPv6 address, given as the numbers of its two halves. A v4-mapped one becomes IPv4.
    public init(v6High high: UInt64, low: UInt64, port: UInt16) {
        let isMapped = high == 0 && low >> 32 == 0xffff
        family = isMapped ? .v4 : .v6
        self.high = high
        self.low = isMapped ? low & 0xffff_ffff : low
        self.port = port
    }

    /// An address from its 4 or 16 bytes in network order; nil for any other count.
    public init?(bytes: some Collection<UInt8>, port: UInt16) {
        switch bytes.count {
        case 4:
            self.init(v4: bytes.reduce(0) { $0 << 8 | UInt32($1) }, port: port)
        case 16:
            self.init(
                v6High: bytes.prefix(8).reduce(0) { $0 << 8 | UInt64($1) },
                low: bytes.dropFirst(8).reduce(0) { $0 << 8 | UInt64($1) }, port: port)
        default:
            return nil
        }
    }

    /// The same address with another port.
    public func withPort(_ port: UInt16) -> TransportAddress {
        var other = self
        other.port = port
        return other
    }

    /// The address without its port: what a permission is for (RFC 8656 §9).
    public var host: TransportAddress { withPort(0) }

    /// The IPv4 address as a number; 0 for IPv6.
    public var v4: UInt32 { family == .v4 ? UInt32(truncatingIfNeeded: low) : 0 }

    /// The 4 or 16 bytes of the address in network order.
    public var bytes: [UInt8] {
        switch family {
        case .v4: (0..<4).map { UInt8(truncatingIfNeeded: low >> (24 - 8 * $0)) }
        case .v6:
            (0..<8).map { UInt8(truncatingIfNeeded: high >> (56 - 8 * $0)) }
                + (0..<8).map { UInt8(truncatingIfNeeded: low >> (56 - 8 * $0)) }
        }
    }
}

extension TransportAddress {
    /// Parses an address in text form (`192.0.2.1`, `2001:db8::1`, `::ffff:192.0.2.1`), without brackets, zone or port;
    /// nil if it is not one.
    public init?(_ text: some StringProtocol, port: UInt16) {
        guard text.utf8.count <= 45 else { return nil }
        if !text.contains(":") {
            guard let address = Self.parseV4(text) else { return nil }
            self.init(v4: address, port: port)
            return
        }
        guard let groups = Self.parseV6(text) else { return nil }
        self.init(
            v6High: groups.prefix(4).reduce(0) { $0 << 16 | UInt64($1) },
            low: groups.suffix(4).reduce(0) { $0 << 16 | UInt64($1) }, port: port)
    }

    private static func parseV4(_ text: some StringProtocol) -> UInt32? {
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count == 4 else { return nil }
        var address: UInt32 = 0
        for part in parts {
            guard (1...3).contains(part.utf8.count), part.utf8.allSatisfy({ (0x30...0x39).contains($0) }),
                let byte = UInt8(part)
            else { return nil }
            address = address << 8 | UInt32(byte)
        }
        return address
    }

    /// The eight groups of an IPv6 address, with `::` expanded (RFC 4291 §2.2).
    private static func parseV6(_ text: some StringProtocol) -> [UInt16]? {
        var halves: [[UInt16]] = [[]]
        var rest = text[...]
        while !rest.isEmpty {
            if rest.hasPrefix("::") {
                guard halves.count == 1 else { return nil }
                halves.append([])
                rest = rest.dropFirst(2)
                continue
            }
            let isFirst = halves.count == 1 && halves[0].isEmpty
            if rest.hasPrefix(":") {
                guard !isFirst else { return nil }
                rest = rest.dropFirst()
                guard !rest.isEmpty, !rest.hasPrefix(":") else { return nil }
            }
            let word = rest.prefix { $0 != ":" }
            rest = rest.dropFirst(word.count)
            if word.contains(".") {
                guard rest.isEmpty, let address = parseV4(word) else { return nil }
                halves[halves.count - 1] += [UInt16(address >> 16), UInt16(truncatingIfNeeded: address)]
            } else {
                guard (1...4).contains(word.utf8.count), word.utf8.allSatisfy({ $0 != 0x2b && $0 != 0x2d }),
                    let group = UInt16(word, radix: 16)
                else { return nil }
                halves[halves.count - 1].append(group)
            }
        }
        let count = halves.reduce(0) { $0 + $1.count }
        if halves.count == 1 { return count == 8 ? halves[0] : nil }
        guard count < 8 else { return nil }
        return halves[0] + [UInt16](repeating: 0, count: 8 - count) + halves[1]
    }
}

extension TransportAddress: CustomStringConvertible {
    /// `192.0.2.1:3478`, or `[2001:db8:0:0:0:0:0:1]:3478`.
    public var description: String {
        switch family {
        case .v4: bytes.map { String($0) }.joined(separator: ".") + ":\(port)"
        case .v6: "[\(hostDescription)]:\(port)"
        }
    }

    /// The address without its port, as text.
    public var hostDescription: String {
        switch family {
        case .v4: return bytes.map { String($0) }.joined(separator: ".")
        case .v6:
            let groups = [high, low].flatMap { half in
                (0..<4).map { UInt16(truncatingIfNeeded: half >> (48 - 16 * $0)) }
            }
            return groups.map { String($0, radix: 16) }.joined(separator: ":")
        }
    }
}

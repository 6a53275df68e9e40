/// One entry of an operator's list: a network and its ports (D8).
///
/// The format is `192.0.2.0/24`, `192.0.2.7`, `192.0.2.0/24:5000-5999`, `2001:db8::/32` or `[2001:db8::/32]:443`.
public struct PeerRule: Sendable, Hashable {
    /// Every port that can be sent to.
    public static let allPorts: ClosedRange<UInt16> = 1...65_535

    private let network: TransportAddress
    private let bits: Int
    public let ports: ClosedRange<UInt16>

    /// Nil if the text is not a network. Bits of the address beyond the prefix must be 0, to detect mistakes.
    public init?(_ text: String) {
        guard let (network, ports) = Self.split(text) else { return nil }
        let parts = network.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count <= 2, let address = parts.first.flatMap({ TransportAddress($0, port: 0) }) else { return nil }
        let bitsMax = address.family == .v4 ? 32 : 128
        var bits = bitsMax
        if parts.count == 2 {
            guard let number = Self.number(parts[1], in: 0...bitsMax) else { return nil }
            bits = number
        }
        self.network = address
        self.bits = bits
        self.ports = ports
        guard Self.masked(address, bits) == address else { return nil }
    }

    /// True if the host is in the network, at any port.
    public func contains(host: TransportAddress) -> Bool {
        host.family == network.family && Self.masked(host.host, bits) == network
    }

    /// True if the address is in the network, at a port of the rule.
    func contains(_ address: TransportAddress) -> Bool {
        ports.contains(address.port) && contains(host: address)
    }

    /// True if the rule names ports.
    public var isOfSomePorts: Bool { ports != Self.allPorts }

    /// The network and the ports of a text. Brackets separate an IPv6 network from its ports.
    private static func split(_ text: String) -> (network: Substring, ports: ClosedRange<UInt16>)? {
        if text.hasPrefix("[") {
            guard let end = text.lastIndex(of: "]") else { return nil }
            let network = text[text.index(after: text.startIndex)..<end]
            let rest = text[text.index(after: end)...]
            guard network.contains(":") else { return nil }
            guard !rest.isEmpty else { return (network, allPorts) }
            guard rest.hasPrefix(":"), let ports = ports(rest.dropFirst()) else { return nil }
            return (network, ports)
        }
        let colons = text.filter { $0 == ":" }.count
        guard colons == 1, let colon = text.firstIndex(of: ":") else { return (text[...], allPorts) }
        guard let ports = ports(text[text.index(after: colon)...]) else { return nil }
        return (text[..<colon], ports)
    }

    private static func ports(_ text: Substring) -> ClosedRange<UInt16>? {
        let parts = text.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count <= 2, let first = parts.first.flatMap({ number($0, in: 1...65_535) }),
            let last = parts.last.flatMap({ number($0, in: 1...65_535) }), first <= last
        else { return nil }
        return UInt16(first)...UInt16(last)
    }

    private static func number(_ text: Substring, in range: ClosedRange<Int>) -> Int? {
        guard (1...5).contains(text.utf8.count), text.utf8.allSatisfy({ (0x30...0x39).contains($0) }),
            let number = Int(text), range.contains(number)
        else { return nil }
        return number
    }

    private static func masked(_ address: TransportAddress, _ bits: Int) -> TransportAddress {
        var masked = address
        switch address.family {
        case .v4: masked.low &= bits == 0 ? 0 : (~0 << UInt64(32 - bits)) & 0xffff_ffff
        case .v6:
            masked.high &= bits == 0 ? 0 : ~0 << UInt64(max(0, 64 - bits))
            masked.low &= bits <= 64 ? 0 : ~0 << UInt64(128 - bits)
        }
        return masked
    }
}

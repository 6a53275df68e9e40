/// The public addresses that a 1:1 NAT has for private ones, ports kept (D8).
///
/// Sockets and kernels know the private addresses; clients, peers and other nodes know the public ones. Whatever
/// crosses between the two is translated here. A list of no pairs translates nothing.
public struct ExternalAddresses: Sendable, Equatable {
    /// The most pairs of one list.
    public static let pairsMax = 64

    /// One address before the NAT and the one behind it, of one family; ports do not count.
    public struct Pair: Sendable, Hashable {
        public let external: TransportAddress
        public let local: TransportAddress

        public init(external: TransportAddress, local: TransportAddress) {
            self.external = external.host
            self.local = local.host
        }
    }

    public let pairs: [Pair]
    /// Stored, so that the packet planes ask it without touching the list.
    public let isEmpty: Bool

    /// - Parameter pairs: at most ``pairsMax``; of an address that stands in several the first pair counts.
    public init(_ pairs: [Pair] = []) {
        self.pairs = Array(pairs.prefix(Self.pairsMax))
        isEmpty = pairs.isEmpty
    }

    /// How others see a private address; itself where no pair has it.
    @inline(__always)
    public func external(of address: TransportAddress) -> TransportAddress {
        isEmpty ? address : search(local: address)
    }

    /// What a public address is behind the NAT; itself where no pair has it.
    @inline(__always)
    public func local(of address: TransportAddress) -> TransportAddress {
        isEmpty ? address : search(external: address)
    }

    @inline(never)
    private func search(local address: TransportAddress) -> TransportAddress {
        let host = address.host
        return pairs.first { $0.local == host }?.external.withPort(address.port) ?? address
    }

    @inline(never)
    private func search(external address: TransportAddress) -> TransportAddress {
        let host = address.host
        return pairs.first { $0.external == host }?.local.withPort(address.port) ?? address
    }
}

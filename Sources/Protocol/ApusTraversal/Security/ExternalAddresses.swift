/// The mapping of public to private addresses of a 1:1 NAT that keeps ports (D8).
///
/// Sockets and kernels use the private addresses; clients, peers and other nodes use the public ones. This type
/// translates between the two. An empty mapping translates nothing.
public struct ExternalAddresses: Sendable, Equatable {
    /// The most pairs of one list.
    public static let pairsMax = 64

    /// A public address and the private address behind it, of one family. Ports are ignored.
    public struct Pair: Sendable, Hashable {
        public let external: TransportAddress
        public let local: TransportAddress

        public init(external: TransportAddress, local: TransportAddress) {
            self.external = external.host
            self.local = local.host
        }
    }

    public let pairs: [Pair]
    /// Stored, so that the packet planes do not access the list.
    public let isEmpty: Bool

    /// - Parameter pairs: at most ``pairsMax``. If an address is in several, the first pair counts.
    public init(_ pairs: [Pair] = []) {
        self.pairs = Array(pairs.prefix(Self.pairsMax))
        isEmpty = pairs.isEmpty
    }

    /// The public address for a private one; the same address if no pair has it.
    @inline(__always)
    public func external(of address: TransportAddress) -> TransportAddress {
        isEmpty ? address : search(local: address)
    }

    /// The private address for a public one; the same address if no pair has it.
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

import ApusTraversal

/// Datagrams between two allocations of one plane: relay to relay, as where both ends of a call can be reached by a
/// relay alone. They need no way through the kernel, which would hand them back to this very thread.
///
/// Nothing else differs: both allocations' permissions, channels, quotas and counters count, and the receiving client
/// sees the sender's relayed address (D8). Allocations of different planes meet in the kernel.
extension PacketPlane {
    /// The longest payload of UDP over IPv4; what is longer the kernel would refuse (RFC 768).
    private static var payloadMax: Int { 65_507 }

    /// Hands datagrams that a client may send to the allocation whose relayed address the peer is.
    ///
    /// - Parameter payloads: of one size, within the sender's quota; none is done as well.
    /// - Returns: false if the peer is no other allocation of this plane.
    @inline(__always)
    mutating func shortCircuit(_ payloads: Datagrams, from slot: UInt32, to peer: TransportAddress) -> Bool {
        let other = allocations.slot(relayed: peer)
        // What a client sends to itself could end its own session on the way; the kernel keeps the two apart.
        guard other != FlatTable.none, other != slot else { return false }
        return shortCircuit(payloads, from: slot, to: other, peer.family)
    }

    @inline(never)
    private mutating func shortCircuit(
        _ payloads: Datagrams, from slot: UInt32, to other: UInt32, _ family: TransportAddress.Family
    ) -> Bool {
        let row = allocations.rows + Int(slot)
        guard let source = row.pointee.relayed(to: family), source.family == family, payloads.size <= Self.payloadMax
        else { return false }
        row.pointee.traffic.upPackets &+= UInt64(payloads.count)
        row.pointee.traffic.upBytes &+= UInt64(payloads.count &* payloads.size)
        counters.shortCircuited &+= UInt64(payloads.count)
        deliver(payloads, from: FlatTable.Key(source, scope: other), Int(other))
        return true
    }
}

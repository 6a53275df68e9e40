import ApusTraversal

/// Datagrams between two allocations of one plane, for example if both ends of a call use a relay. They bypass the
/// kernel, which would return them to the same thread.
///
/// Otherwise nothing differs: both allocations' permissions, channels, quotas and counters apply, and the receiving
/// client sees the sender's relayed address (D8). Datagrams between allocations of different planes pass through the
/// kernel.
extension PacketPlane {
    /// The longest payload of UDP over IPv4. The kernel would refuse a longer one (RFC 768).
    private static var payloadMax: Int { 65_507 }

    /// Relays a client's datagrams to the allocation whose relayed address is the peer.
    ///
    /// - Parameter payloads: of one size, within the sender's quota; may be empty.
    /// - Returns: false if the peer is not another allocation of this plane.
    @inline(__always)
    mutating func shortCircuit(_ payloads: Datagrams, from slot: UInt32, to peer: TransportAddress) -> Bool {
        let other = allocations.slot(relayed: peer)
        // A client that sends to itself could end its own session in between. Through the kernel this cannot happen.
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

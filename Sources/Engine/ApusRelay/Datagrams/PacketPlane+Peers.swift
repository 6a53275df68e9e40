import ApusTraversal
import CApusNet
import Glibc

/// Consecutive datagrams in memory, all of one size except the last.
struct Datagrams {
    var base: UnsafeMutableRawPointer
    var size: Int
    /// Bytes from the start of one to that of the next.
    var stride: Int
    /// At least one.
    var count: Int
    var lastSize: Int
}

/// Datagrams from peers to clients.
extension PacketPlane {
    /// The least number of places in the arena for one batch of a relay socket.
    private static var relayDepthMin: Int { 16 }

    /// - Parameter socket: one of the allocation's.
    mutating func readRelay(_ slot: Int, _ socket: Int32) {
        if ReceiveArena.depth &- arenaUsed < Self.relayDepthMin { sendOutput() }
        let first = arenaUsed
        let row = allocations.rows + slot
        let depth = row.pointee.reads.isMany(in: round) ? ReceiveArena.depth &- first : 1
        let count = arena.receive(socket, first: first, count: depth)
        row.pointee.reads.had(count)
        guard count > 0 else {
            if count < 0, -count != Int(EAGAIN), -count != Int(EINTR) {
                receivingFailed(slot, socket, Int32(-count))
            }
            return
        }
        arenaUsed = first &+ count
        received &+= count
        if count == depth, count > 1 { isBehind = true }
        for message in first..<first &+ count { receivedFromPeer(message, slot: slot) }
    }

    @inline(__always)
    private mutating func receivedFromPeer(_ message: Int, slot: Int) {
        let length = arena.length(message)
        let (segment, marks) = arena.receipt(message)
        output.marks = forwarded(marks)
        let key = RawAddress.key(arena.name(message), scope: UInt32(truncatingIfNeeded: slot))
        guard !arena.isCut(message) else {
            counters.notPermitted &+= 1
            allocations.rows[slot].traffic.dropped &+= 1
            return
        }
        var datagrams = Datagrams(base: arena.base(message), size: segment, stride: segment, count: 1, lastSize: length)
        if length > segment {
            datagrams.count = (length &+ segment &- 1) / segment
            datagrams.lastSize = length &- (datagrams.count &- 1) &* segment
        }
        deliver(datagrams, from: key, slot)
    }

    /// Relays datagrams of a peer to the client.
    ///
    /// - Parameter key: the peer's address; its scope is the row.
    @inline(__always)
    mutating func deliver(_ datagrams: Datagrams, from key: FlatTable.Key, _ slot: Int) {
        let row = allocations.rows + slot
        guard allocations.isPermitted(peer: key) else {
            counters.notPermitted &+= UInt64(datagrams.count)
            row.pointee.traffic.dropped &+= UInt64(datagrams.count)
            return
        }
        let number = allocations.channelNumber(peer: key)
        let equalCount = datagrams.lastSize == datagrams.size ? datagrams.count : datagrams.count &- 1
        if equalCount > 0 {
            let allowed = packetsWithinQuota(row, datagrams.size, equalCount)
            deliver(datagrams.base, datagrams.size, stride: datagrams.stride, count: allowed, number, key, row)
        }
        if equalCount < datagrams.count, isWithinQuota(row, datagrams.lastSize) {
            let last = datagrams.base + equalCount &* datagrams.stride
            deliver(last, datagrams.lastSize, stride: datagrams.stride, count: 1, number, key, row)
        }
    }

    /// Relays datagrams of one size to the client, over the peer's channel, or as Data indications if it has none.
    @inline(__always)
    private mutating func deliver(
        _ base: UnsafeMutableRawPointer, _ size: Int, stride: Int, count: Int, _ number: UInt32, _ key: FlatTable.Key,
        _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        carried &+= UInt64(count)
        let head = (number << 16 | UInt32(truncatingIfNeeded: size)).bigEndian
        var index = 0
        while index < count {
            let bytes = base + index &* stride
            index &+= 1
            if number == FlatTable.none {
                dataIndication(bytes, size, key.address, row)
            } else {
                toClient(bytes, size, head: head, row)
                if index < count { index &+= toClientToo(count &- index, size, stride: stride, row) }
            }
        }
    }

    /// ChannelData to the client (RFC 8656 §12.5). In streams it is padded to four bytes, in datagrams it is not.
    @inline(__always)
    private mutating func toClient(
        _ bytes: UnsafeMutableRawPointer, _ size: Int, head: UInt32, _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        row.pointee.traffic.downPackets &+= 1
        row.pointee.traffic.downBytes &+= UInt64(size)
        guard row.pointee.listener >= 0 else {
            if row.pointee.session >= 0 {
                sessionChannelData(bytes, size, head: head, row)
            } else {
                streamChannelData(bytes, size, head: head, row)
            }
            return
        }
        if output.isFull { flushKeepingInput() }
        output.add(
            bytes, UInt32(truncatingIfNeeded: size), head: head, mark: &row.pointee.mark,
            socket: row.pointee.clientSocket, address: Self.pointer(&row.pointee.client),
            dropped: Self.pointer(&row.pointee.traffic.dropped))
    }

    /// Adds datagrams of the same size as the last added one, for a UDP client.
    ///
    /// - Returns: the number of added datagrams.
    @inline(__always)
    private mutating func toClientToo(
        _ count: Int, _ size: Int, stride: Int, _ row: UnsafeMutablePointer<AllocationRow>
    ) -> Int {
        guard row.pointee.listener >= 0, size > 0 else { return 0 }
        let taken = output.addMore(count, stride: stride, mark: row.pointee.mark)
        row.pointee.traffic.downPackets &+= UInt64(taken)
        row.pointee.traffic.downBytes &+= UInt64(taken &* size)
        return taken
    }

    /// A Data indication to the client (RFC 8656 §11.3), for a peer without a channel.
    private mutating func dataIndication(
        _ bytes: UnsafeMutableRawPointer, _ size: Int, _ source: TransportAddress,
        _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        let peer = configuration.externals.external(of: source)
        let addressCount = peer.family == .v4 ? 8 : 20
        let length = 4 + addressCount + 4 + (size + 3) & ~3
        // The header's length cannot express every length that IPv6 can carry.
        guard length <= Int(UInt16.max) else {
            row.pointee.traffic.dropped &+= 1
            return
        }
        let message = scratch(20 + length)
        message.storeBytes(of: (0x0017_0000 | UInt32(length)).bigEndian, as: UInt32.self)
        message.storeBytes(of: UInt32(0x2112_A442).bigEndian, toByteOffset: 4, as: UInt32.self)
        let transaction = nextTransaction()
        message.storeBytes(of: transaction, toByteOffset: 8, as: UInt64.self)
        message.storeBytes(
            of: UInt32(truncatingIfNeeded: nextTransaction()), toByteOffset: 16, as: UInt32.self)
        message.storeBytes(of: (0x0012_0000 | UInt32(addressCount)).bigEndian, toByteOffset: 20, as: UInt32.self)
        let familyAndPort = UInt32(peer.family.rawValue) << 16 | UInt32(peer.port ^ 0x2112)
        message.storeBytes(of: familyAndPort.bigEndian, toByteOffset: 24, as: UInt32.self)
        switch peer.family {
        case .v4:
            let bits = UInt32(truncatingIfNeeded: peer.low) ^ 0x2112_A442
            message.storeBytes(of: bits.bigEndian, toByteOffset: 28, as: UInt32.self)
        case .v6:
            for (half, offset) in [(peer.high, 4), (peer.low, 12)] {
                let mask = UInt64(bigEndian: message.loadUnaligned(fromByteOffset: offset, as: UInt64.self))
                message.storeBytes(of: (half ^ mask).bigEndian, toByteOffset: 24 + offset, as: UInt64.self)
            }
        }
        let data = 24 + addressCount
        message.storeBytes(of: (0x0013_0000 | UInt32(size)).bigEndian, toByteOffset: data, as: UInt32.self)
        memcpy(message + data + 4, bytes, size)
        // The padding is sent as zeros, so that no data of an earlier packet leaks.
        memset(message + data + 4 + size, 0, (size + 3) & ~3 - size)
        row.pointee.traffic.downPackets &+= 1
        row.pointee.traffic.downBytes &+= UInt64(size)
        guard row.pointee.listener >= 0 else {
            if row.pointee.session >= 0 {
                sessionMessage(message, 20 + length, row)
            } else {
                streamMessage(message, 20 + length, row)
            }
            return
        }
        if output.isFull { output.flush() }
        output.add(
            message, UInt32(20 + length), head: nil, mark: &row.pointee.mark, socket: row.pointee.clientSocket,
            address: Self.pointer(&row.pointee.client), dropped: Self.pointer(&row.pointee.traffic.dropped))
    }
}

import ApusTraversal
import CApusNet
import Glibc

/// Datagrams of peers, on their way to clients.
extension PacketPlane {
    /// Places of the arena that a relay socket has at least for one batch.
    private static var relayDepthMin: Int { 16 }

    /// - Parameter socket: one of the allocation's.
    mutating func readRelay(_ slot: Int, _ socket: Int32) {
        if ReceiveArena.depth &- arenaUsed < Self.relayDepthMin { sendOutput() }
        let first = arenaUsed
        let count = arena.receive(socket, first: first, count: ReceiveArena.depth &- first)
        guard count > 0 else {
            if count < 0, -count != Int(EAGAIN), -count != Int(EINTR) {
                receivingFailed(slot, socket, Int32(-count))
            }
            return
        }
        arenaUsed = first &+ count
        for message in first..<first &+ count { receivedFromPeer(message, slot: slot) }
    }

    @inline(__always)
    private mutating func receivedFromPeer(_ message: Int, slot: Int) {
        let row = allocations.rows + slot
        let length = arena.length(message)
        let segment = arena.segment(message)
        let key = RawAddress.key(arena.name(message), scope: UInt32(truncatingIfNeeded: slot))
        let base = arena.base(message)
        guard !arena.isCut(message), allocations.isPermitted(peer: key) else {
            counters.notPermitted &+= 1
            row.pointee.traffic.dropped &+= 1
            return
        }
        let number = allocations.channelNumber(peer: key)
        var offset = 0
        repeat {
            let size = min(segment, length &- offset)
            guard isWithinQuota(row, size) else {
                offset &+= size
                continue
            }
            if number == FlatTable.none {
                if let peer = RawAddress.read(arena.name(message)) { dataIndication(base + offset, size, peer, row) }
            } else {
                let head = (number << 16 | UInt32(truncatingIfNeeded: size)).bigEndian
                toClient(base + offset, size, head: head, row)
                offset &+= toClientToo(size, behind: length &- offset, row)
            }
            offset &+= size
        } while offset < length
    }

    /// ChannelData to the client (RFC 8656 §12.5); streams need it padded to four bytes, datagrams do not.
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

    /// Datagrams of the same size behind the one that was put together last for a client of the datagram door.
    ///
    /// - Parameter left: bytes from the start of that one to the end of what was received.
    /// - Returns: the bytes of those that were taken.
    @inline(__always)
    private mutating func toClientToo(
        _ size: Int, behind left: Int, _ row: UnsafeMutablePointer<AllocationRow>
    ) -> Int {
        // Of a user with a bound each packet is looked at.
        guard row.pointee.bucket < 0, row.pointee.listener >= 0, size > 0, left >= 2 &* size else { return 0 }
        let taken = output.addMore(left / size &- 1, stride: size, mark: row.pointee.mark)
        row.pointee.traffic.downPackets &+= UInt64(taken)
        row.pointee.traffic.downBytes &+= UInt64(taken &* size)
        return taken &* size
    }

    /// A Data indication to the client (RFC 8656 §11.3), for a peer without a channel.
    private mutating func dataIndication(
        _ bytes: UnsafeMutableRawPointer, _ size: Int, _ peer: TransportAddress,
        _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        let addressCount = peer.family == .v4 ? 8 : 20
        let length = 4 + addressCount + 4 + (size + 3) & ~3
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
        // The padding is sent as zeros: nothing of an earlier packet leaks through it.
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

import ApusTraversal
import CApusNet
import Glibc

/// Datagrams of clients, on their way to peers.
extension PacketPlane {
    mutating func readListener(_ index: Int) {
        let socket = datagramListeners[index].socket
        if arenaUsed > 0 { sendOutput() }
        for _ in 0..<Self.listenerRounds {
            let count = arena.receive(socket, first: 0, count: ReceiveArena.depth)
            guard count > 0 else { return }
            var message = 0
            while message < count {
                receivedFromClient(message, listener: index)
                message &+= 1
            }
            sendOutput()
            if count < ReceiveArena.depth { return }
        }
    }

    /// One message: datagrams of one client, all of the same size but the last.
    @inline(__always)
    private mutating func receivedFromClient(_ message: Int, listener: Int) {
        let length = arena.length(message)
        let segment = arena.segment(message)
        guard !arena.isCut(message), segment > 0 else {
            counters.malformed &+= 1
            return
        }
        let name = arena.name(message)
        let slot = allocations.slot(
            client: RawAddress.key(name, scope: UInt32(truncatingIfNeeded: listener)))
        let base = arena.base(message)
        var offset = 0
        while offset < length {
            let size = min(segment, length &- offset)
            receivedFromClient(base + offset, size, slot: slot, listener: listener, name: name)
            offset &+= size
        }
    }

    /// One datagram: told apart by its first byte (RFC 7983). Which channel numbers there are, 0x4000...0x4FFF of
    /// RFC 8656 or 0x4000...0x7FFF of RFC 5766, is control's to say: others are not bound.
    @inline(__always)
    private mutating func receivedFromClient(
        _ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32, listener: Int, name: UnsafeRawPointer
    ) {
        let first = bytes.load(as: UInt8.self)
        if first & 0xC0 == 0x40 {
            channelData(bytes, size, slot: slot)
        } else if first < 4, size >= 20 {
            if Self.isSendIndication(bytes), slot != FlatTable.none, sendIndication(bytes, size, slot: slot) { return }
            guard let remote = RawAddress.read(name) else { return }
            let flow = RelayFlow(
                plane: link.index, transport: .udp, local: datagramListeners[listener].address, remote: remote)
            controlMessage(bytes, size, flow)
        } else {
            counters.malformed &+= 1
        }
    }

    /// ChannelData of a client (RFC 8656 §12.4): the payload goes to the channel's peer.
    @inline(__always)
    mutating func channelData(_ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32) {
        guard size >= 4 else {
            counters.malformed &+= 1
            return
        }
        guard slot != FlatTable.none else {
            counters.unknownFlow &+= 1
            return
        }
        let number = UInt16(bigEndian: bytes.loadUnaligned(as: UInt16.self))
        let length = UInt32(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        let row = allocations.rows + Int(slot)
        guard Int(length) <= size &- 4 else {
            counters.malformed &+= 1
            return
        }
        guard let channel = row.pointee.channel(number) else {
            counters.unboundChannel &+= 1
            row.pointee.traffic.dropped &+= 1
            return
        }
        guard isWithinQuota(row, Int(length)) else { return }
        if output.isFull { flushKeepingInput() }
        output.add(
            bytes + 4, length, head: nil, mark: &channel.pointee.mark, socket: channel.pointee.socket,
            address: Self.pointer(&channel.pointee.address), dropped: Self.pointer(&row.pointee.traffic.dropped))
        row.pointee.traffic.upPackets &+= 1
        row.pointee.traffic.upBytes &+= UInt64(length)
    }

    /// Takes what a packet costs its user; false, and counted, where the user has had enough for now.
    @inline(__always)
    mutating func isWithinQuota(_ row: UnsafeMutablePointer<AllocationRow>, _ byteCount: Int) -> Bool {
        guard row.pointee.bucket >= 0, !buckets.take(row.pointee.bucket, bytes: byteCount, at: now) else { return true }
        counters.overQuota &+= 1
        row.pointee.traffic.dropped &+= 1
        return false
    }

    /// Sends what is put together while what was received is still being looked at.
    mutating func flushKeepingInput() {
        output.flush()
        scratchUsed = 0
    }

    /// The address of a member of a row, which stays where it is while its batch lives.
    @inline(__always)
    static func pointer<Member>(_ member: UnsafeMutablePointer<Member>) -> UnsafeMutablePointer<Member> {
        // SAFETY: called only with members of rows reached through a pointer, so that the address is the
        // member's own and not that of a copy; rows are freed between batches alone.
        member
    }

    /// Hands a STUN message to control, or drops it where that has enough.
    mutating func controlMessage(_ bytes: UnsafeRawPointer, _ size: Int, _ flow: RelayFlow) {
        guard size <= configuration.controlMessageMax,
            link.event(.control(flow, Array(UnsafeRawBufferPointer(start: bytes, count: size))))
        else {
            counters.controlDropped &+= 1
            return
        }
    }

    // MARK: Send indications

    /// A Send indication by its type (RFC 8656 §11.1) and the cookie.
    @inline(__always)
    static func isSendIndication(_ bytes: UnsafeRawPointer) -> Bool {
        bytes.loadUnaligned(as: UInt64.self).bigEndian & 0xFFFF_0000_FFFF_FFFF == 0x0016_0000_2112_A442
    }

    /// Sends the data of a Send indication to its peer (RFC 8656 §11.2).
    ///
    /// - Returns: false where it holds anything but the peer and the data: control decides about it.
    mutating func sendIndication(_ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32) -> Bool {
        let length = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        guard length & 3 == 0, length <= size - 20 else { return false }
        var peer: TransportAddress?
        var data: (start: Int, count: Int)?
        var offset = 20
        while offset + 4 <= 20 + length {
            let type = UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt16.self))
            let count = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: offset + 2, as: UInt16.self)))
            guard offset + 4 + count <= 20 + length else { return false }
            switch type {
            case 0x0012 where peer == nil: peer = Self.peerAddress(bytes, at: offset + 4, count)
            case 0x0013 where data == nil: data = (offset + 4, count)
            case 0x8000...0xFFFF: break
            default: return false
            }
            offset += 4 + (count + 3) & ~3
        }
        guard let peer, let data else { return false }
        let row = allocations.rows + Int(slot)
        guard allocations.isPermitted(peer: FlatTable.Key(peer, scope: slot), port: peer.port) else {
            counters.notPermitted &+= 1
            row.pointee.traffic.dropped &+= 1
            return true
        }
        guard isWithinQuota(row, data.count) else { return true }
        let address = scratch(MemoryLayout<RawAddress>.stride).bindMemory(to: RawAddress.self, capacity: 1)
        address.initialize(to: RawAddress(peer))
        if output.isFull { output.flush() }
        var mark = SendBatch.Mark()
        output.add(
            bytes + data.start, UInt32(data.count), head: nil, mark: &mark,
            socket: row.pointee.socket(to: peer.family),
            address: address, dropped: Self.pointer(&row.pointee.traffic.dropped))
        row.pointee.traffic.upPackets &+= 1
        row.pointee.traffic.upBytes &+= UInt64(data.count)
        return true
    }

    /// XOR-PEER-ADDRESS (RFC 8489 §14.2).
    private static func peerAddress(_ message: UnsafeRawPointer, at offset: Int, _ count: Int) -> TransportAddress? {
        guard count >= 8 else { return nil }
        let port = UInt16(bigEndian: message.loadUnaligned(fromByteOffset: offset + 2, as: UInt16.self)) ^ 0x2112
        switch (message.load(fromByteOffset: offset + 1, as: UInt8.self), count) {
        case (1, 8):
            let bits = UInt32(bigEndian: message.loadUnaligned(fromByteOffset: offset + 4, as: UInt32.self))
            return TransportAddress(v4: bits ^ 0x2112_A442, port: port)
        case (2, 20):
            let mask = (
                UInt64(bigEndian: message.loadUnaligned(fromByteOffset: 4, as: UInt64.self)),
                UInt64(bigEndian: message.loadUnaligned(fromByteOffset: 12, as: UInt64.self))
            )
            return TransportAddress(
                v6High: UInt64(bigEndian: message.loadUnaligned(fromByteOffset: offset + 4, as: UInt64.self)) ^ mask.0,
                low: UInt64(bigEndian: message.loadUnaligned(fromByteOffset: offset + 12, as: UInt64.self)) ^ mask.1,
                port: port)
        default: return nil
        }
    }

    /// Room for a small piece that a batch points at; sends first where there is none.
    mutating func scratch(_ count: Int) -> UnsafeMutableRawPointer {
        if scratchUsed + count > Self.scratchBytes { flushKeepingInput() }
        let start = scratch + scratchUsed
        scratchUsed += (count + 63) & ~63
        return start
    }
}

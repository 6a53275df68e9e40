import ApusTraversal
import CApusNet
import Glibc

/// Datagrams from clients to peers.
extension PacketPlane {
    mutating func readListener(_ index: Int) {
        let socket = datagramListeners[index].socket
        if arenaUsed > 0 { sendOutput() }
        for _ in 0..<Self.listenerRounds {
            let count = arena.receive(socket, first: 0, count: ReceiveArena.depth)
            guard count > 0 else { return }
            received &+= count
            var message = 0
            while message < count {
                receivedFromClient(message, listener: index)
                message &+= 1
            }
            sendOutput()
            if count < ReceiveArena.depth { return }
        }
        isBehind = true
    }

    /// One message: datagrams of one client, all of the same size except the last.
    @inline(__always)
    private mutating func receivedFromClient(_ message: Int, listener: Int) {
        let length = arena.length(message)
        let (segment, marks) = arena.receipt(message)
        output.marks = forwarded(marks)
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
            let same = Self.sameHeads(base + offset, segment: segment, length &- offset)
            if same > 1 {
                channelData(base + offset, size, slot: slot, count: same)
                offset &+= same &* segment
            } else {
                receivedFromClient(base + offset, size, slot: slot, listener: listener, name: name)
                offset &+= size
            }
        }
    }

    /// The marks of a relayed datagram, if they are carried over: the received DSCP and ECN, and one hop less (RFC 8656
    /// §14).
    @inline(__always)
    func forwarded(_ marks: UInt32) -> UInt32 {
        guard marks & 0xFF > 1 else { return marks == 0 ? 0 : SendBatch.expired }
        return marks &- 1
    }

    /// Makes a datagram socket report marks, if they are carried over.
    func reportMarks(of socket: Int32) {
        if configuration.carriesMarks { RelaySocket.reportMarks(of: socket) }
    }

    /// The number of consecutive complete datagrams of ChannelData with the same header, and so the same channel and
    /// length.
    @inline(__always)
    private static func sameHeads(_ bytes: UnsafeRawPointer, segment: Int, _ length: Int) -> Int {
        guard segment >= 4, length >= 2 &* segment, bytes.load(as: UInt8.self) & 0xC0 == 0x40 else { return 1 }
        let head = bytes.loadUnaligned(as: UInt32.self)
        var count = 1
        var offset = segment
        while offset &+ segment <= length, bytes.loadUnaligned(fromByteOffset: offset, as: UInt32.self) == head {
            count &+= 1
            offset &+= segment
        }
        return count
    }

    /// One datagram, classified by its first byte (RFC 7983). Control decides which channel numbers are valid,
    /// 0x4000...0x4FFF of RFC 8656 or 0x4000...0x7FFF of RFC 5766: others are not bound.
    @inline(__always)
    private mutating func receivedFromClient(
        _ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32, listener: Int, name: UnsafeRawPointer
    ) {
        let first = bytes.load(as: UInt8.self)
        if first & 0xC0 == 0x40 {
            channelData(bytes, size, slot: slot)
        } else if first < 4, size >= 20 {
            if ClientMessage.isSendIndication(bytes), slot != FlatTable.none,
                sendIndication(bytes, size, slot: slot)
            {
                return
            }
            guard let remote = RawAddress.read(name) else { return }
            let flow = RelayFlow(
                plane: link.index, transport: .udp, local: datagramListeners[listener].address, remote: remote)
            controlMessage(bytes, size, flow, slot: slot)
        } else {
            counters.malformed &+= 1
        }
    }

    /// ChannelData of a client (RFC 8656 §12.4): the payload is sent to the channel's peer.
    ///
    /// - Parameters:
    ///   - size: bytes of one message with its header, and from its start to that of the next.
    ///   - count: the number of consecutive messages with the same header.
    @inline(__always)
    mutating func channelData(_ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32, count: Int = 1) {
        guard size >= 4 else {
            counters.malformed &+= 1
            return
        }
        guard slot != FlatTable.none else {
            counters.unknownFlow &+= UInt64(count)
            return
        }
        let number = UInt16(bigEndian: bytes.loadUnaligned(as: UInt16.self))
        let length = UInt32(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        let row = allocations.rows + Int(slot)
        guard Int(length) <= size &- 4 else {
            counters.malformed &+= UInt64(count)
            return
        }
        guard let channel = row.pointee.channel(number) else {
            counters.unboundChannel &+= UInt64(count)
            row.pointee.traffic.dropped &+= UInt64(count)
            return
        }
        let allowed = packetsWithinQuota(row, Int(length), count)
        carried &+= UInt64(allowed)
        if channel.pointee.isOwnHost {
            let payloads = Datagrams(
                base: bytes + 4, size: Int(length), stride: size, count: allowed, lastSize: Int(length))
            if shortCircuit(payloads, from: slot, to: channel.pointee.peer) { return }
        }
        let marks = output.marks
        if marks != 0, channel.pointee.hot >= 0, socketHasMarks(Int(channel.pointee.hot)) { output.marks = 0 }
        var done = 0
        while done < allowed {
            if output.isFull { flushKeepingInput() }
            output.add(
                bytes + (done &* size &+ 4), length, head: nil, mark: &channel.pointee.mark,
                socket: channel.pointee.socket,
                address: channel.pointee.hot >= 0 ? nil : Self.pointer(&channel.pointee.address),
                dropped: Self.pointer(&row.pointee.traffic.dropped))
            done &+= 1
            if done < allowed {
                done &+= output.addMore(allowed &- done, stride: size, mark: channel.pointee.mark)
            }
        }
        output.marks = marks
        row.pointee.traffic.upPackets &+= UInt64(allowed)
        row.pointee.traffic.upBytes &+= UInt64(length) &* UInt64(allowed)
        guard channel.pointee.hot < 0 else { return }
        channel.pointee.heat &+= UInt32(truncatingIfNeeded: allowed)
        if channel.pointee.heat >= Self.hotPacketCount { heatUp(slot, channel) }
    }

    /// The number of packets of one size that may pass now, by the tokens of the user and the node. The others are
    /// counted.
    @inline(__always)
    mutating func packetsWithinQuota(
        _ row: UnsafeMutablePointer<AllocationRow>, _ byteCount: Int, _ count: Int
    ) -> Int {
        guard row.pointee.bucket >= 0 || nodeBucket >= 0 else { return count }
        return packetsWithTokens(row, byteCount, count)
    }

    @inline(never)
    private mutating func packetsWithTokens(
        _ row: UnsafeMutablePointer<AllocationRow>, _ byteCount: Int, _ count: Int
    ) -> Int {
        var paid = count
        if row.pointee.bucket >= 0 {
            paid = buckets.take(row.pointee.bucket, bytes: byteCount, count: count, at: now)
            counters.overQuota &+= UInt64(count &- paid)
        }
        var allowed = paid
        if nodeBucket >= 0 {
            // The user's tokens are lost with the packet.
            allowed = buckets.take(nodeBucket, bytes: byteCount, count: paid, at: now)
            counters.overNodeQuota &+= UInt64(paid &- allowed)
        }
        row.pointee.traffic.dropped &+= UInt64(count &- allowed)
        return allowed
    }

    /// Takes a packet's tokens from its user's and the node's bucket. Returns false, and counts it, if one has too few.
    @inline(__always)
    mutating func isWithinQuota(_ row: UnsafeMutablePointer<AllocationRow>, _ byteCount: Int) -> Bool {
        packetsWithinQuota(row, byteCount, 1) == 1
    }

    /// Sends the batch while the received data is still in use.
    mutating func flushKeepingInput() {
        output.flush()
        scratchUsed = 0
    }

    /// The address of a member of a row, which does not move while its batch exists.
    @inline(__always)
    static func pointer<Member>(_ member: UnsafeMutablePointer<Member>) -> UnsafeMutablePointer<Member> {
        // SAFETY: called only with members of rows reached through a pointer, so the address is the member's own and
        // not that of a copy. Rows are freed only between batches.
        member
    }

    /// Passes a STUN message to control, or drops it if control's queue is full.
    ///
    /// - Parameter slot: the allocation's row, or ``FlatTable/none``. An allocation has a share of control's queue.
    ///   Messages beyond it wait with those of clients without an allocation.
    mutating func controlMessage(_ bytes: UnsafeRawPointer, _ size: Int, _ flow: RelayFlow, slot: UInt32) {
        guard size <= configuration.controlMessageMax else {
            counters.controlTooLong &+= 1
            return
        }
        let event = PlaneEvent.control(flow, Array(UnsafeRawBufferPointer(start: bytes, count: size)))
        let hasShare =
            slot != FlatTable.none
            && allocations.rows[Int(slot)].controlShare.take(
                at: now, burst: configuration.controlShareBurst, perSecond: configuration.controlSharePerSecond)
        if hasShare {
            if !link.event(event) { counters.controlDropped &+= 1 }
        } else if !link.unauthenticatedEvent(event) {
            counters.unauthenticatedDropped &+= 1
        }
    }

    // MARK: Send indications

    /// Sends the data of a Send indication to its peer (RFC 8656 §11.2).
    ///
    /// - Returns: false if it has anything except the peer and the data, or a list names ports of the peer: control
    ///   handles it.
    mutating func sendIndication(_ bytes: UnsafeMutableRawPointer, _ size: Int, slot: UInt32) -> Bool {
        guard let send = ClientMessage.send(bytes, size) else { return false }
        let peer = configuration.externals.local(of: send.peer)
        let row = allocations.rows + Int(slot)
        let key = FlatTable.Key(peer, scope: slot)
        guard allocations.isPermitted(peer: key, port: peer.port) else {
            if allocations.isJudged(peer: key) { return false }
            counters.notPermitted &+= 1
            row.pointee.traffic.dropped &+= 1
            return true
        }
        guard isWithinQuota(row, send.count) else { return true }
        let payload = Datagrams(
            base: bytes + send.start, size: send.count, stride: send.count, count: 1, lastSize: send.count)
        if shortCircuit(payload, from: slot, to: peer) { return true }
        let address = scratch(MemoryLayout<RawAddress>.stride).bindMemory(to: RawAddress.self, capacity: 1)
        address.initialize(to: RawAddress(peer))
        if output.isFull { output.flush() }
        var mark = SendBatch.Mark()
        output.add(
            bytes + send.start, UInt32(send.count), head: nil, mark: &mark,
            socket: row.pointee.socket(to: peer.family),
            address: address, dropped: Self.pointer(&row.pointee.traffic.dropped))
        row.pointee.traffic.upPackets &+= 1
        row.pointee.traffic.upBytes &+= UInt64(send.count)
        return true
    }

    /// Memory for a small piece that a batch refers to. Sends the batch first if there is none.
    mutating func scratch(_ count: Int) -> UnsafeMutableRawPointer {
        if scratchUsed + count > Self.scratchBytes { flushKeepingInput() }
        let start = scratch + scratchUsed
        scratchUsed += (count + 63) & ~63
        return start
    }
}

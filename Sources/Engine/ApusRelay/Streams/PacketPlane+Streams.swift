import ApusCore
import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// Stream clients: large reads that are split into messages; coalesced, bounded writes.
extension PacketPlane {
    /// Reads of one connection, and connections accepted at once, before other sockets are served.
    private static var readRounds: Int { 4 }
    private static var acceptRounds: Int { 64 }

    mutating func acceptStreams(_ index: Int) {
        for _ in 0..<Self.acceptRounds {
            let socket: Int32
            let remote: TransportAddress?
            switch Self.accept(streamListeners[index].socket) {
            case .connection(let accepted, let address): (socket, remote) = (accepted, address)
            case .none: return
            case .exhausted:
                refuseWaiting(at: streamListeners[index].socket)
                return
            }
            if let remote { makeRoom(forStreamFrom: remote) }
            guard let remote, let slot = streams.insert(socket: socket) else {
                counters.refusedStreams &+= 1
                apus_close(socket)
                continue
            }
            let row = streams.rows + slot
            row.pointee.lastHeard = now
            row.pointee.flow = RelayFlow(
                plane: link.index, transport: streamListeners[index].isSecure ? .tls : .tcp,
                local: streamListeners[index].address, remote: remote, connection: row.pointee.flow.connection)
            unauthenticated.enter(slot, from: remote, at: now)
            row.pointee.awaitsProxy = isProxy(remote)
            if streamListeners[index].isSecure, !row.pointee.awaitsProxy { beginHandshake(slot) }
            _ = apus_poll_add(poll, socket, Self.readable, Self.token(.stream, row.pointee.generation, slot))
        }
    }

    mutating func streamReady(_ slot: Int, _ events: UInt32) {
        if events & UInt32(APUS_WRITABLE) != 0 {
            streams.rows[slot].isWaitingToWrite = false
            // A client that reads is not idle.
            if streams.rows[slot].peer >= 0 { peers.rows[Int(streams.rows[slot].peer)].lastHeard = now }
            setStreamEvents(slot)
            streams.wantsWrite(slot)
        }
        guard events & ~UInt32(APUS_WRITABLE) != 0 else { return }
        received &+= 1
        if streams.rows[slot].awaitsProxy, !readProxyHeader(slot) { return }
        if streams.rows[slot].flow.transport == .tls { readSecureStream(slot) } else { readStream(slot) }
    }

    func setStreamEvents(_ slot: Int) {
        let row = streams.rows + slot
        let events =
            (row.pointee.isPaused ? 0 : Self.readable) | (row.pointee.isWaitingToWrite ? UInt32(APUS_WRITABLE) : 0)
        let token = Self.token(.stream, row.pointee.generation, slot)
        if events == 0 {
            _ = apus_poll_remove(poll, row.pointee.socket)
        } else if apus_poll_change(poll, row.pointee.socket, events, token) < 0 {
            _ = apus_poll_add(poll, row.pointee.socket, events, token)
        }
    }

    private mutating func readStream(_ slot: Int) {
        let row = streams.rows + slot
        row.pointee.lastHeard = lastTick
        if row.pointee.peer >= 0 {
            readDataStream(slot)
            return
        }
        for _ in 0..<Self.readRounds {
            let kept = row.pointee.carryCount
            if kept > 0, let carry = row.pointee.carry { memcpy(streamBuffer, carry, kept) }
            let count = apus_read(row.pointee.socket, streamBuffer + kept, Self.streamReadMax)
            guard count > 0 else {
                if count == 0 || (-count != Int(EAGAIN) && -count != Int(EINTR)) { closeStream(slot) }
                return
            }
            row.pointee.carryCount = 0
            let used = splitStream(slot, kept + count)
            // The payloads are in the buffer that the next read overwrites.
            flushKeepingInput()
            guard let used, keep(slot, streamBuffer + used, kept + count - used) else {
                counters.malformed &+= 1
                closeStream(slot)
                return
            }
            if count < Self.streamReadMax / 4 { return }
        }
    }

    /// Keeps the start of a message until its end arrives.
    ///
    /// - Returns: false if it exceeds the limit of this connection.
    func keep(_ slot: Int, _ bytes: UnsafeRawPointer, _ count: Int) -> Bool {
        guard count > 0 else { return true }
        guard count <= carryMax(slot) else { return false }
        streams.rows[slot].keep(bytes, count, max: Self.carryMax)
        return true
    }

    /// Handles the complete messages at the buffer's start (RFC 8656 §12.5: framed by their own lengths).
    ///
    /// - Returns: the bytes of complete messages; nil if something is neither STUN nor ChannelData.
    mutating func splitStream(_ slot: Int, _ count: Int) -> Int? {
        let allocation = streams.rows[slot].allocation
        // Messages of a stream have no marks.
        output.marks = 0
        var offset = 0
        while count &- offset >= 4 {
            let bytes = streamBuffer + offset
            guard let size = ClientMessage.streamByteCount(bytes) else { return nil }
            guard count &- offset >= size else { break }
            offset &+= size
            if bytes.load(as: UInt8.self) & 0xC0 == 0x40 {
                let length = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
                channelData(bytes, 4 &+ length, slot: allocation)
            } else if allocation == FlatTable.none || !ClientMessage.isSendIndication(bytes)
                || !sendIndication(bytes, size, slot: allocation)
            {
                controlMessage(bytes, size, streams.rows[slot].flow, slot: allocation)
            }
        }
        return offset
    }

    // MARK: Writing

    /// ChannelData to a stream client, padded to four bytes.
    @inline(__always)
    mutating func streamChannelData(
        _ bytes: UnsafeRawPointer, _ size: Int, head: UInt32, _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        let padded = (size &+ 3) & ~3
        guard row.pointee.stream >= 0 else {
            row.pointee.traffic.dropped &+= 1
            return
        }
        let stream = streams.rows + Int(row.pointee.stream)
        guard stream.pointee.reserve(4 &+ padded, max: configuration.streamOutputMax) else {
            counters.slowStream &+= 1
            row.pointee.traffic.dropped &+= 1
            return
        }
        var head = head
        stream.pointee.append(&head, 4)
        stream.pointee.append(bytes, size)
        var zero: UInt32 = 0
        stream.pointee.append(&zero, padded &- size)
        streams.wantsWrite(Int(row.pointee.stream))
    }

    /// A STUN message to a stream client.
    mutating func streamMessage(_ bytes: UnsafeRawPointer, _ size: Int, _ row: UnsafeMutablePointer<AllocationRow>) {
        guard row.pointee.stream >= 0, queue(Int(row.pointee.stream), bytes, size) else {
            row.pointee.traffic.dropped &+= 1
            return
        }
    }

    mutating func queue(_ slot: Int, _ bytes: UnsafeRawPointer, _ size: Int) -> Bool {
        guard streams.rows[slot].reserve(size, max: outputMax(slot)) else {
            counters.slowStream &+= 1
            return false
        }
        streams.rows[slot].append(bytes, size)
        streams.wantsWrite(slot)
        return true
    }

    mutating func writeStream(_ slot: Int) {
        let row = streams.rows + slot
        if let tls = row.pointee.tls {
            if row.pointee.socket >= 0, !row.pointee.isWaitingToWrite { writeSecureStream(slot, tls) }
            return
        }
        guard row.pointee.socket >= 0, row.pointee.outputCount > 0, !row.pointee.isWaitingToWrite,
            let output = row.pointee.output
        else { return }
        let count = apus_write(row.pointee.socket, output + row.pointee.outputHead, row.pointee.outputCount)
        if count < 0, -count != Int(EAGAIN), -count != Int(EINTR) {
            closeStream(slot)
            return
        }
        row.pointee.outputHead += max(0, count)
        row.pointee.outputCount -= max(0, count)
        if row.pointee.outputCount > 0 {
            row.pointee.isWaitingToWrite = true
            setStreamEvents(slot)
        } else if row.pointee.peer >= 0 {
            advancePair(Int(row.pointee.peer))
        }
    }

    /// Closes a connection and notifies control, which decides about the allocation.
    mutating func closeStream(_ slot: Int) {
        let flow = streams.rows[slot].flow
        let allocation = streams.rows[slot].allocation
        if allocation != FlatTable.none { allocations.rows[Int(allocation)].stream = -1 }
        let peer = Int(streams.rows[slot].peer)
        streams.rows[slot].peer = -1
        if peer >= 0 { endPeer(peer) }
        // Control does not know a connection that never sent a message.
        let isKnown = (flow.transport != .tls || streams.rows[slot].isSecured) && !streams.rows[slot].awaitsProxy
        if let tls = streams.rows[slot].tls {
            if isKnown { apus_tls_close(tls) }
            _ = apus_tls_flush(tls)
        }
        streamHandshakes.leave(slot)
        unauthenticated.leave(slot)
        streams.remove(slot)
        guard isKnown else { return }
        // If the ring is full, control learns of the end by the allocation's. For an unauthenticated connection the
        // event is queued behind its requests.
        let isAuthenticated = allocation != FlatTable.none || peer >= 0
        let isReported =
            isAuthenticated ? link.event(.streamClosed(flow)) : link.unauthenticatedEvent(.streamClosed(flow))
        if !isReported { counters.newsDropped &+= 1 }
    }
}

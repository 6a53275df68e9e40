import ApusCore
import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// DTLS clients: the same messages as over UDP, decrypted by libssl in the plane's own loop (RFC 8656 §3.1).
///
/// A client with an unverified address uses no memory: it is sent a cookie, and only a client that returns it from the
/// same address gets a session (RFC 6347 §4.2.1). There are at most ``PlaneConfiguration/handshakesMax`` sessions with
/// an incomplete handshake; the oldest is displaced. The plane's clock retransmits lost parts of a handshake, and ends
/// it.
extension PacketPlane {
    private static let minute: UInt64 = 60_000_000_000

    mutating func readSessionListener(_ index: Int) {
        let socket = sessionListeners[index].socket
        if arenaUsed > 0 { sendOutput() }
        for _ in 0..<Self.listenerRounds {
            let count = arena.receive(socket, first: 0, count: ReceiveArena.depth)
            guard count > 0 else { return }
            received &+= count
            plaintextUsed = 0
            for message in 0..<count { receivedRecords(message, listener: index) }
            sendOutput()
            if count < ReceiveArena.depth { return }
        }
        isBehind = true
    }

    /// One message: datagrams of one client, all of the same size except the last.
    private mutating func receivedRecords(_ message: Int, listener: Int) {
        let length = arena.length(message)
        let (segment, marks) = arena.receipt(message)
        output.marks = forwarded(marks)
        guard !arena.isCut(message), segment > 0 else {
            counters.malformed &+= 1
            return
        }
        let key = RawAddress.key(arena.name(message), scope: UInt32(truncatingIfNeeded: listener))
        let base = arena.base(message)
        var offset = 0
        while offset < length {
            let size = min(segment, length &- offset)
            receivedRecords(base + offset, size, key, listener: listener, message: message)
            offset &+= size
        }
    }

    /// One datagram of records (RFC 7983 §7: 20...63 in the first byte).
    private mutating func receivedRecords(
        _ bytes: UnsafeRawPointer, _ size: Int, _ key: FlatTable.Key, listener: Int, message: Int
    ) {
        guard ClientMessage.isRecord(bytes, size) else {
            counters.malformed &+= 1
            return
        }
        let slot = sessions.slot(client: key)
        // A client that restarted has lost its session. That session stays until the new one is verified (RFC 6347
        // §4.2.8).
        if let slot, !sessions.rows[slot].isSecured || !ClientMessage.isDatagramHello(bytes, size) {
            advanceSession(slot, bytes, size)
        } else if ClientMessage.isDatagramHello(bytes, size) {
            verifyCookie(bytes, size, old: slot, listener: listener, message: message)
        } else {
            counters.unknownFlow &+= 1
        }
    }

    /// A hello from an unverified address. It is answered with a cookie; with a valid cookie it gets a session.
    private mutating func verifyCookie(_ bytes: UnsafeRawPointer, _ size: Int, old: Int?, listener: Int, message: Int) {
        let name = arena.name(message)
        guard let context = contexts?.datagrams, let remote = RawAddress.read(name) else { return }
        let endpoint = sessionListeners + listener
        if endpoint.pointee.unverified == nil {
            endpoint.pointee.unverified = apus_dtls_new(context, endpoint.pointee.socket)
        }
        guard let dtls = endpoint.pointee.unverified else { return }
        let now = MonotonicTime.now().nanoseconds
        let raw = RawAddress(remote)
        let isProven = raw.withSocketAddress {
            apus_dtls_listen(dtls, bytes, size, $0, raw.length, now / Self.minute) == 1
        }
        guard isProven else { return }
        // The client has lost the old session's keys, so no alert is sent with them.
        if let old { closeSession(old, isSilent: true) }
        let isFull = sessions.handshakes.count >= configuration.handshakesMax
        if let displaced = sessions.handshakes.displaced(by: remote, isFull: isFull) {
            counters.handshakesDisplaced &+= 1
            closeSession(displaced)
        }
        makeRoom(forSessionFrom: remote)
        let flow = RelayFlow(plane: link.index, transport: .dtls, local: endpoint.pointee.address, remote: remote)
        endpoint.pointee.unverified = nil
        guard let slot = sessions.insert(dtls, listener: listener, flow: flow, now: now) else {
            counters.refusedStreams &+= 1
            apus_dtls_free(dtls)
            return
        }
        // libssl has stored the hello.
        advanceSession(slot, bytes, 0)
    }

    /// Processes a datagram of a session: the handshake, or data.
    private mutating func advanceSession(_ slot: Int, _ bytes: UnsafeRawPointer, _ size: Int) {
        let row = sessions.rows + slot
        guard let dtls = row.pointee.dtls else { return }
        apus_dtls_feed(dtls, bytes, size)
        if !row.pointee.isSecured {
            let state = apus_dtls_handshake(dtls)
            guard state == 1 else {
                if state < 0 {
                    counters.handshakesFailed &+= 1
                    closeSession(slot)
                }
                return
            }
            row.pointee.isSecured = true
            sessions.handshakes.leave(slot)
            counters.handshakes &+= 1
        }
        row.pointee.lastHeard = lastTick
        while true {
            if plaintextUsed + Int(APUS_DTLS_PAYLOAD_MAX) > Self.plaintextMax {
                flushKeepingInput()
                plaintextUsed = 0
            }
            let plaintext = streamBuffer + plaintextUsed
            let count = apus_dtls_read(dtls, plaintext, Int(APUS_DTLS_PAYLOAD_MAX))
            guard count > 0 else {
                if count < 0 { closeSession(slot) }
                return
            }
            plaintextUsed += (count + 63) & ~63
            received(plaintext, count, session: slot)
        }
    }

    /// The streams' buffer, which is unused between streams.
    private static var plaintextMax: Int { carryMax + streamReadMax }

    /// One message of a client, classified as over UDP.
    private mutating func received(_ bytes: UnsafeMutableRawPointer, _ size: Int, session: Int) {
        let slot = sessions.rows[session].allocation
        let first = bytes.load(as: UInt8.self)
        if first & 0xC0 == 0x40 {
            channelData(bytes, size, slot: slot)
        } else if first < 4, size >= 20 {
            if slot != FlatTable.none, ClientMessage.isSendIndication(bytes),
                sendIndication(bytes, size, slot: slot)
            {
                return
            }
            controlMessage(bytes, size, sessions.rows[session].flow, slot: slot)
        } else {
            counters.malformed &+= 1
        }
    }

    // MARK: Writing

    /// ChannelData to a DTLS client, not padded.
    mutating func sessionChannelData(
        _ bytes: UnsafeRawPointer, _ size: Int, head: UInt32, _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        guard row.pointee.session >= 0, 4 &+ size <= Int(APUS_DTLS_PAYLOAD_MAX) else {
            row.pointee.traffic.dropped &+= 1
            return
        }
        ciphertext.storeBytes(of: head, as: UInt32.self)
        memcpy(ciphertext + 4, bytes, size)
        sessionMessage(ciphertext, 4 &+ size, row)
    }

    /// A message to a DTLS client.
    mutating func sessionMessage(
        _ bytes: UnsafeRawPointer, _ size: Int, _ row: UnsafeMutablePointer<AllocationRow>
    ) {
        guard row.pointee.session >= 0, write(bytes, size, session: Int(row.pointee.session)) else {
            row.pointee.traffic.dropped &+= 1
            return
        }
    }

    /// Encrypts and sends. Returns false if nothing was sent.
    mutating func write(_ bytes: UnsafeRawPointer, _ size: Int, session slot: Int) -> Bool {
        let row = sessions.rows + slot
        guard row.pointee.isSecured, size <= Int(APUS_DTLS_PAYLOAD_MAX), let dtls = row.pointee.dtls else {
            return false
        }
        let result = apus_dtls_write(dtls, bytes, size)
        if result < 0 { closeSession(slot) }
        if result == 0 { sessionsRefused &+= 1 }
        return result > 0
    }

    // MARK: Ends

    /// Closes a session. Control is notified of one that it may know, and decides about the allocation.
    mutating func closeSession(_ slot: Int, isSilent: Bool = false) {
        let row = sessions.rows + slot
        guard let dtls = row.pointee.dtls else { return }
        let (flow, isSecured) = (row.pointee.flow, row.pointee.isSecured)
        let isAuthenticated = row.pointee.allocation != FlatTable.none
        if isAuthenticated { allocations.rows[Int(row.pointee.allocation)].session = -1 }
        if isSecured, !isSilent { apus_dtls_close(dtls) }
        sessions.remove(slot)
        guard isSecured else { return }
        let isReported =
            isAuthenticated ? link.event(.streamClosed(flow)) : link.unauthenticatedEvent(.streamClosed(flow))
        if !isReported { counters.newsDropped &+= 1 }
    }

    /// Retransmits lost parts of handshakes, and ends those that have timed out.
    mutating func tickHandshakes(_ now: UInt64) {
        let limit = UInt64(configuration.handshakeTimeout.nanoseconds)
        while let slot = sessions.handshakes.late(at: now, limit: limit) {
            counters.handshakesLate &+= 1
            closeSession(slot)
        }
        var place = sessions.handshakes.oldest
        while let slot = place {
            place = sessions.handshakes.next(after: slot)
            guard let dtls = sessions.rows[slot].dtls, apus_dtls_tick(dtls) < 0 else { continue }
            counters.handshakesFailed &+= 1
            closeSession(slot)
        }
    }

    /// Closes idle sessions without an allocation; a tenth of the sessions is checked each time.
    mutating func closeIdleSessions(_ now: UInt64) {
        let limit = UInt64(configuration.streamIdleMax.nanoseconds)
        for slot in sessions.slots where slot % Self.ticksPerReport == tickCount {
            let row = sessions.rows + slot
            guard row.pointee.dtls != nil, row.pointee.isSecured, row.pointee.allocation == FlatTable.none else {
                continue
            }
            if now &- min(now, row.pointee.lastHeard) > limit { closeSession(slot) }
        }
    }
}

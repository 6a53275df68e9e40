import ApusCore
import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// TLS clients: the same messages as over TCP, decrypted by libssl in the plane's own loop (RFC 8656 §3.1).
///
/// An unauthenticated client costs a row until its first bytes are those of a ClientHello, then a TLS connection until
/// its handshake is complete or has timed out. There are at most ``PlaneConfiguration/handshakesMax`` of these, and at
/// most ``PlaneConfiguration/handshakesPerSourceMax`` of one source; the oldest is displaced.
///
/// Plaintext for a client waits in its row as over TCP. Its ciphertext waits in libssl if the kernel does not accept
/// more. Each of the two is limited by ``PlaneConfiguration/streamOutputMax``.
extension PacketPlane {
    static var ciphertextMax: Int { 65_536 }
    private static var secureReadRounds: Int { 4 }

    /// Uses a certificate that was read again, for new clients.
    mutating func takeContexts() {
        guard let security = configuration.security, security.version != contexts?.version else { return }
        contexts = security.contexts()
        for index in 0..<sessionListenerCount {
            apus_dtls_free(sessionListeners[index].unverified)
            sessionListeners[index].unverified = nil
        }
    }

    /// Starts to wait for a connection's handshake. The oldest of its source, or of all, is displaced if needed.
    mutating func beginHandshake(_ slot: Int) {
        let remote = streams.rows[slot].flow.remote
        let isFull = streamHandshakes.count >= configuration.handshakesMax
        if let displaced = streamHandshakes.displaced(by: remote, isFull: isFull) {
            counters.handshakesDisplaced &+= 1
            closeStream(displaced)
        }
        streamHandshakes.enter(slot, from: remote, at: now)
    }

    /// Closes the connections whose handshake has timed out.
    mutating func endLateHandshakes(_ now: UInt64) {
        let limit = UInt64(configuration.handshakeTimeout.nanoseconds)
        while let slot = streamHandshakes.late(at: now, limit: limit) {
            counters.handshakesLate &+= 1
            closeStream(slot)
        }
    }

    mutating func readSecureStream(_ slot: Int) {
        let row = streams.rows + slot
        row.pointee.lastHeard = lastTick
        for _ in 0..<Self.secureReadRounds {
            guard mayRead(slot) else { return }
            // Before there is a TLS connection, the start of the hello is in the carry.
            let kept = row.pointee.tls == nil ? row.pointee.carryCount : 0
            if kept > 0, let carry = row.pointee.carry { memcpy(ciphertext, carry, kept) }
            let count = apus_read(row.pointee.socket, ciphertext + kept, Self.ciphertextMax - kept)
            guard count > 0 else {
                if count == 0, row.pointee.peer >= 0 {
                    clientEnded(Int(row.pointee.peer))
                } else if count == 0 || (-count != Int(EAGAIN) && -count != Int(EINTR)) {
                    if !row.pointee.isSecured { counters.handshakesFailed &+= 1 }
                    closeStream(slot)
                }
                return
            }
            guard advance(slot, kept + count) else {
                // A data connection may have ended with its peer's.
                guard row.pointee.socket >= 0 else { return }
                if !row.pointee.isSecured { counters.handshakesFailed &+= 1 }
                closeStream(slot)
                return
            }
            if count < Self.ciphertextMax / 4 { return }
        }
    }

    /// Processes the received bytes: the hello, the handshake, or data.
    ///
    /// - Returns: false if the connection has ended.
    private mutating func advance(_ slot: Int, _ count: Int) -> Bool {
        let row = streams.rows + slot
        if row.pointee.tls == nil {
            guard let isHello = ClientMessage.isStreamHello(ciphertext, count) else {
                return keep(slot, ciphertext, count)
            }
            guard isHello, let context = contexts?.streams else { return false }
            row.pointee.carryCount = 0
            row.pointee.tls = apus_tls_new_server(context, row.pointee.socket)
            // Related records are passed to the kernel in one piece.
            if let tls = row.pointee.tls { apus_tls_set_direct(tls, 0) }
        }
        guard let tls = row.pointee.tls else { return false }
        apus_tls_feed(tls, ciphertext, count)
        if !row.pointee.isSecured {
            let state = apus_tls_handshake(tls)
            guard state >= 0 else { return false }
            if state == 1 {
                row.pointee.isSecured = true
                streamHandshakes.leave(slot)
                counters.handshakes &+= 1
            }
        }
        guard !row.pointee.isSecured || readPlaintext(slot, tls) else { return false }
        // What libssl sends itself, such as its part of the handshake or a key update.
        let waiting = apus_tls_waiting(tls)
        if waiting > 0 { streams.wantsWrite(slot) }
        return waiting <= 2 * configuration.streamOutputMax
    }

    /// Decrypts everything received, which never exceeds the buffer, and handles the complete messages.
    ///
    /// - Returns: false if the connection has ended.
    private mutating func readPlaintext(_ slot: Int, _ tls: OpaquePointer) -> Bool {
        let row = streams.rows + slot
        if row.pointee.peer >= 0 { return readDataPlaintext(slot, tls) }
        var filled = row.pointee.carryCount
        if filled > 0, let carry = row.pointee.carry { memcpy(streamBuffer, carry, filled) }
        var count = 0
        repeat {
            count = apus_tls_read(tls, streamBuffer + filled, Self.carryMax + Self.streamReadMax - filled)
            filled += max(0, count)
        } while count > 0
        row.pointee.carryCount = 0
        let used = splitStream(slot, filled)
        // The payloads are in the buffer that the next read overwrites.
        flushKeepingInput()
        guard let used, keep(slot, streamBuffer + used, filled - used) else {
            counters.malformed &+= 1
            return false
        }
        return count == 0
    }

    /// Encrypts the waiting data of the row and sends it. Returns the ciphertext that waits in libssl, or -1 if the
    /// connection is broken.
    ///
    /// Each message is a record of its own, since some clients take a record for a message. A peer's data connection
    /// has no messages.
    private func seal(_ slot: Int, _ tls: OpaquePointer) -> Int {
        let row = streams.rows + slot
        guard let output = row.pointee.output else { return 0 }
        var message = output + row.pointee.outputHead
        var left = row.pointee.outputCount
        row.pointee.outputCount = 0
        while left > 0 {
            let size = min(left, row.pointee.peer >= 0 ? Self.dataChunkMax : Self.messageSize(message))
            guard apus_tls_write(tls, message, size) >= 0 else { return -1 }
            message += size
            left -= size
        }
        return apus_tls_flush(tls)
    }

    /// The size of the message at a position of a row's output, which has complete messages only (RFC 8656 §12.5).
    private static func messageSize(_ bytes: UnsafeRawPointer) -> Int {
        let length = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        return bytes.load(as: UInt8.self) & 0xC0 == 0x40 ? 4 + (length + 3) & ~3 : 20 + length
    }

    /// Sends the ciphertext in libssl, then encrypts and sends the waiting data of the row.
    mutating func writeSecureStream(_ slot: Int, _ tls: OpaquePointer) {
        let row = streams.rows + slot
        var waiting = apus_tls_flush(tls)
        if waiting == 0, row.pointee.isSecured, row.pointee.outputCount > 0 { waiting = seal(slot, tls) }
        guard waiting >= 0 else {
            closeStream(slot)
            return
        }
        guard waiting > 0 else {
            if row.pointee.peer >= 0 { advancePair(Int(row.pointee.peer)) }
            return
        }
        row.pointee.isWaitingToWrite = true
        setStreamEvents(slot)
    }
}

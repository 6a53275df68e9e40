import ApusCore
import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// TCP relaying (RFC 6062): connections from and to peers, and the bytes between them and clients.
///
/// The plane polls listening sockets and pending connections. An established connection is passed to control, which
/// asks the client. It comes back with the client's data connection, to that connection's plane. In the meantime the
/// kernel buffers the peer's data.
///
/// From then on bytes are relayed in both directions. In each direction one read of at most ``dataChunkMax`` is in
/// progress: until the kernel has accepted all of it, nothing more is read from its source. The slower end thus slows
/// the faster one, and nothing is dropped. The same happens if the user has no tokens, until the next tick. The end of
/// one direction is forwarded when everything before it was sent, over TLS by close_notify (RFC 8446 §6.1), and the
/// other direction continues. A half-closed connection is closed after a silence of
/// ``PlaneConfiguration/streamIdleMax``.
///
/// Data from a client to a peer that no longer accepts any is read and discarded: a connection that is closed with
/// unread bytes is reset, and data in the kernel for the client would be lost (RFC 2525 §2.17).
extension PacketPlane {
    /// The most bytes of one read.
    static var dataChunkMax: Int { 65_536 }
    /// Reads of one connection, and peers accepted at once, before other sockets are served.
    private static var readRounds: Int { 4 }
    private static var acceptRounds: Int { 16 }
    private static var writable: UInt32 { UInt32(APUS_WRITABLE) }

    // MARK: Connecting

    /// Accepts permitted peers that connect to a relayed address (RFC 6062 §5.3).
    mutating func acceptPeers(_ slot: Int, isSecond: Bool = false) {
        let row = allocations.rows + slot
        let listener = isSecond ? row.pointee.second : row.pointee.socket
        guard accepting.until == nil else {
            parkPeerListener(slot, isSecond: isSecond)
            return
        }
        for _ in 0..<Self.acceptRounds {
            let socket: Int32
            let remote: TransportAddress?
            switch Self.accept(listener) {
            case .connection(let accepted, let address): (socket, remote) = (accepted, address)
            case .none: return
            case .exhausted:
                refuseWaiting(at: listener)
                parkPeerListener(slot, isSecond: isSecond)
                return
            }
            guard let remote,
                allocations.isPermitted(peer: FlatTable.Key(remote, scope: UInt32(truncatingIfNeeded: slot))),
                link.event(.peerArrived(allocation: row.pointee.id, peer: remote, socket: socket))
            else {
                counters.peersRefused &+= 1
                apus_close(socket)
                continue
            }
        }
    }

    /// Waits until a connection that control has started is established or has failed.
    mutating func awaitPeer(_ connection: UInt32, _ allocation: UInt32, socket: Int32) {
        guard let index = peers.insert(connection: connection, allocation: allocation, socket: socket) else {
            apus_close(socket)
            counters.peersFailed &+= 1
            _ = link.event(.peerConnected(connection: connection, socket: -1))
            return
        }
        watch(index, Self.writable)
    }

    private mutating func connected(_ index: Int) {
        let connection = peers.rows[index].connection
        let isConnected = apus_stream_result(peers.rows[index].socket) == 0
        watch(index, 0)
        let socket = peers.release(index)
        if !isConnected {
            apus_close(socket)
            counters.peersFailed &+= 1
        }
        // If control is not notified, the connection ends by its time-out.
        guard !link.event(.peerConnected(connection: connection, socket: isConnected ? socket : -1)) else { return }
        counters.newsDropped &+= 1
        if isConnected { apus_close(socket) }
    }

    /// Joins a client's data connection and a peer's, after the answer to the client.
    mutating func joinPeer(
        _ connection: UInt32, _ allocation: UInt32, _ flow: RelayFlow, socket: Int32, _ limit: PeerLimit?,
        answer: [UInt8]
    ) {
        if let slot = streams.slot(connection: flow.connection) {
            answer.withUnsafeBytes { bytes in
                guard let base = bytes.baseAddress, queue(slot, base, bytes.count) else { return }
                writeStream(slot)
            }
        }
        guard let slot = streams.slot(connection: flow.connection), streams.rows[slot].allocation == FlatTable.none,
            streams.rows[slot].peer < 0,
            let index = peers.insert(connection: connection, allocation: allocation, socket: socket)
        else {
            apus_close(socket)
            let ended = PlaneEvent.peerCarried(
                connection: connection, allocation: allocation, RelayTraffic(), isFinal: true)
            if !link.event(ended) { counters.newsDropped &+= 1 }
            return
        }
        streams.rows[slot].peer = Int32(index)
        unauthenticated.leave(slot)
        peers.rows[index].stream = Int32(slot)
        peers.rows[index].lastHeard = now
        counters.peersJoined &+= 1
        if let limit { limitPeer(index, limit) }
        // Data that the client sent before it had the answer.
        let early = streams.rows[slot].carryCount
        streams.rows[slot].carryCount = 0
        if early > 0, let carry = streams.rows[slot].carry, !toPeer(index, carry, early) { return }
        advancePair(index)
    }

    mutating func limitPeer(_ index: Int, _ limit: PeerLimit) {
        let row = peers.rows + index
        if row.pointee.bucket < 0 { row.pointee.bucket = buckets.join(user: limit.user, at: now) }
        if row.pointee.bucket >= 0 { buckets.set(row.pointee.bucket, limit.rate) }
    }

    // MARK: From the client

    /// Reads a client's data connection over TCP.
    mutating func readDataStream(_ slot: Int) {
        let index = Int(streams.rows[slot].peer)
        for _ in 0..<Self.readRounds {
            guard mayRead(slot) else { return }
            let count = apus_read(streams.rows[slot].socket, ciphertext, Self.dataChunkMax)
            guard count > 0 else {
                if count == 0 {
                    clientEnded(index)
                } else if -count != Int(EAGAIN), -count != Int(EINTR) {
                    closeStream(slot)
                }
                return
            }
            guard toPeer(index, ciphertext, count), count == Self.dataChunkMax else { return }
        }
    }

    /// Decrypts all received TLS data for the peer. Returns false if the connection is broken or was closed.
    mutating func readDataPlaintext(_ slot: Int, _ tls: OpaquePointer) -> Bool {
        let index = Int(streams.rows[slot].peer)
        var filled = 0
        var count = 0
        repeat {
            count = apus_tls_read(tls, streamBuffer + filled, Self.carryMax + Self.streamReadMax - filled)
            filled += max(0, count)
        } while count > 0
        guard filled == 0 || toPeer(index, streamBuffer, filled) else { return false }
        if count == -1 { clientEnded(index) }
        return count >= -1 && streams.rows[slot].socket >= 0
    }

    /// The client ended its direction.
    mutating func clientEnded(_ index: Int) {
        peers.rows[index].isClientEnded = true
        advancePair(index)
    }

    /// Sends the client's data, and keeps what the kernel does not accept. Returns false if the pair has ended.
    private mutating func toPeer(_ index: Int, _ bytes: UnsafeRawPointer, _ count: Int) -> Bool {
        let row = peers.rows + index
        guard !row.pointee.takesNothing else { return true }
        row.pointee.traffic.upBytes &+= UInt64(count)
        carried(index, count)
        var done = 0
        if row.pointee.outputCount == 0 {
            done = apus_write(row.pointee.socket, bytes, count)
            if done < 0, -done != Int(EAGAIN), -done != Int(EINTR) {
                peerTakesNothing(index)
                return peers.rows[index].socket >= 0
            }
            done = max(0, done)
        }
        if done < count {
            row.pointee.append(bytes + done, count - done)
            advancePair(index)
        }
        return peers.rows[index].socket >= 0
    }

    /// A write to the peer failed. Its earlier data may still be in flight to the client.
    private mutating func peerTakesNothing(_ index: Int) {
        peers.rows[index].takesNothing = true
        peers.rows[index].sent(peers.rows[index].outputCount)
        advancePair(index)
    }

    // MARK: From the peer

    mutating func peerReady(_ index: Int, _ events: UInt32) {
        guard peers.rows[index].stream >= 0 else {
            connected(index)
            return
        }
        if events & Self.writable != 0 { writePeer(index) }
        guard peers.rows[index].socket >= 0, events & ~Self.writable != 0 else { return }
        readPeer(index)
    }

    private mutating func writePeer(_ index: Int) {
        let row = peers.rows + index
        guard row.pointee.outputCount > 0, let output = row.pointee.output else { return }
        let count = apus_write(row.pointee.socket, output + row.pointee.outputHead, row.pointee.outputCount)
        guard count >= 0 || -count == Int(EAGAIN) || -count == Int(EINTR) else {
            peerTakesNothing(index)
            return
        }
        row.pointee.sent(max(0, count))
        // A peer that reads is not idle.
        if count > 0 { row.pointee.lastHeard = now }
        advancePair(index)
    }

    private mutating func readPeer(_ index: Int) {
        let row = peers.rows + index
        for _ in 0..<Self.readRounds {
            guard row.pointee.events & Self.readable != 0, mayCarry(index) else { return }
            let count = apus_read(row.pointee.socket, ciphertext, Self.dataChunkMax)
            guard count > 0 else {
                if count == 0 {
                    row.pointee.isEnded = true
                    advancePair(index)
                } else if -count != Int(EAGAIN), -count != Int(EINTR) {
                    endPair(index)
                }
                return
            }
            row.pointee.traffic.downBytes &+= UInt64(count)
            carried(index, count)
            guard toDataStream(Int(row.pointee.stream), ciphertext, count) else {
                endPair(index)
                return
            }
            advancePair(index)
            guard count == Self.dataChunkMax else { return }
        }
    }

    /// Sends the peer's data, and keeps what the kernel does not accept. Returns false if the client is gone.
    private mutating func toDataStream(_ slot: Int, _ bytes: UnsafeRawPointer, _ count: Int) -> Bool {
        let row = streams.rows + slot
        var done = 0
        if row.pointee.tls == nil {
            done = apus_write(row.pointee.socket, bytes, count)
            guard done >= 0 || -done == Int(EAGAIN) || -done == Int(EINTR) else { return false }
            done = max(0, done)
            if done == count { return true }
        }
        // Nothing waited before, since the peer is not read otherwise. This is the rest of one read.
        guard row.pointee.reserve(count - done, max: .max) else { return false }
        row.pointee.append(bytes + done, count - done)
        writeStream(slot)
        return true
    }

    // MARK: Both

    /// Sets the polled events by the state of the pair, forwards ends, and closes a pair that ended in both directions.
    mutating func advancePair(_ index: Int) {
        let peer = peers.rows + index
        guard peer.pointee.socket >= 0, peer.pointee.stream >= 0 else { return }
        let slot = Int(peer.pointee.stream)
        let stream = streams.rows + slot
        if peer.pointee.isClientEnded, peer.pointee.outputCount == 0, !peer.pointee.isClientEndReported {
            apus_stream_end(peer.pointee.socket)
            peer.pointee.isClientEndReported = true
        }
        if peer.pointee.isEnded, !peer.pointee.isEndReported, !stream.pointee.hasWaitingOutput, !tellEnd(index, slot) {
            closeStream(slot)
            return
        }
        if peer.pointee.isEndReported, peer.pointee.isClientEndReported {
            closeStream(slot)
            return
        }
        let isPaused = peer.pointee.isClientEnded || peer.pointee.isPaced || peer.pointee.outputCount > 0
        if stream.pointee.isPaused != isPaused {
            stream.pointee.isPaused = isPaused
            setStreamEvents(slot)
        }
        let isHeld = peer.pointee.isEnded || peer.pointee.isPaced || stream.pointee.hasWaitingOutput
        watch(index, (isHeld ? 0 : Self.readable) | (peer.pointee.outputCount > 0 ? Self.writable : 0))
    }

    /// Notifies the client that its peer ended: at once, or over TLS when the kernel has accepted close_notify.
    ///
    /// - Returns: false if the client's connection is broken.
    private func tellEnd(_ index: Int, _ slot: Int) -> Bool {
        let stream = streams.rows + slot
        if let tls = stream.pointee.tls {
            if !peers.rows[index].isCloseWritten { apus_tls_close(tls) }
            peers.rows[index].isCloseWritten = true
            let waiting = apus_tls_flush(tls)
            guard waiting == 0 else {
                stream.pointee.isWaitingToWrite = true
                setStreamEvents(slot)
                return waiting > 0
            }
        }
        apus_stream_end(stream.pointee.socket)
        peers.rows[index].isEndReported = true
        return true
    }

    private func watch(_ index: Int, _ events: UInt32) {
        let row = peers.rows + index
        guard row.pointee.events != events else { return }
        let token = Self.token(.peer, row.pointee.generation, index)
        // A socket without awaited events is not polled, because ends and errors would be reported repeatedly.
        switch (row.pointee.events, events) {
        case (_, 0): _ = apus_poll_remove(poll, row.pointee.socket)
        case (0, _): _ = apus_poll_add(poll, row.pointee.socket, events, token)
        default: _ = apus_poll_change(poll, row.pointee.socket, events, token)
        }
        row.pointee.events = events
    }

    /// True if a client's connection may be read now: always, unless it is a data connection whose peer is slower.
    mutating func mayRead(_ slot: Int) -> Bool {
        let peer = Int(streams.rows[slot].peer)
        return peer < 0 || (!streams.rows[slot].isPaused && mayCarry(peer))
    }

    /// True if the user and the node have tokens. Otherwise both directions wait for the next tick.
    private mutating func mayCarry(_ index: Int) -> Bool {
        let bucket = peers.rows[index].bucket
        let hasTokens =
            (bucket < 0 || buckets.hasBytes(bucket, at: now))
            && (nodeBucket < 0 || buckets.hasBytes(nodeBucket, at: now))
        guard !hasTokens else { return true }
        peers.rows[index].isPaced = true
        advancePair(index)
        return false
    }

    private mutating func carried(_ index: Int, _ count: Int) {
        peers.rows[index].lastHeard = now
        if peers.rows[index].bucket >= 0 { buckets.takeBytes(peers.rows[index].bucket, count) }
        if nodeBucket >= 0 { buckets.takeBytes(nodeBucket, count) }
    }

    // MARK: Ends

    /// Closes a peer's connection and the client's joined connection.
    mutating func endPair(_ index: Int) {
        let stream = peers.rows[index].stream
        if stream >= 0 { closeStream(Int(stream)) } else { endPeer(index) }
    }

    /// Closes a peer's connection and reports its traffic, if it was joined.
    mutating func endPeer(_ index: Int) {
        if peers.rows[index].stream >= 0 { report(index, isFinal: true) }
        if peers.rows[index].bucket >= 0 { buckets.leave(peers.rows[index].bucket) }
        watch(index, 0)
        apus_close(peers.release(index))
    }

    private mutating func report(_ index: Int, isFinal: Bool) {
        let row = peers.rows + index
        guard isFinal || row.pointee.traffic != row.pointee.reported else { return }
        let event = PlaneEvent.peerCarried(
            connection: row.pointee.connection, allocation: row.pointee.allocation,
            row.pointee.traffic - row.pointee.reported, isFinal: isFinal)
        if link.event(event) {
            row.pointee.reported = row.pointee.traffic
        } else if isFinal {
            counters.newsDropped &+= 1
        }
    }

    /// Resumes pairs that waited for tokens, reports traffic, and closes idle half-closed connections.
    mutating func tickPeers(_ now: UInt64) {
        guard peers.count > 0 else { return }
        let limit = UInt64(configuration.streamIdleMax.nanoseconds)
        for index in peers.slots where peers.rows[index].socket >= 0 && peers.rows[index].stream >= 0 {
            let row = peers.rows + index
            if row.pointee.isPaced {
                row.pointee.isPaced = false
                advancePair(index)
            }
            guard index % Self.ticksPerReport == tickCount, row.pointee.socket >= 0 else { continue }
            report(index, isFinal: false)
            if row.pointee.isHalfEnded, now &- min(now, row.pointee.lastHeard) > limit { endPair(index) }
        }
    }
}

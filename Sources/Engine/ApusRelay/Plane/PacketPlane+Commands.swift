import ApusTraversal
import CApusNet
import Glibc

/// Carries out control's commands.
extension PacketPlane {
    mutating func takeCommands() {
        for _ in 0..<Self.commandsPerRound {
            guard let command = link.commands.pop() else { return }
            apply(command)
        }
    }

    private mutating func apply(_ command: PlaneCommand) {
        switch command {
        case .send(let flow, let bytes): send(bytes, to: flow)
        case .install(let id, let flow, let socket, let second, let isTCP):
            install(id, flow, socket, second, isTCP: isTCP)
        case .remove(let id): remove(id)
        case .closeFamily(let id, let family):
            withSlot(id) { plane, slot in plane.closeFamily(slot, family) }
        case .permit(let id, let peer, let ports):
            withSlot(id) { plane, slot in _ = plane.allocations.permit(slot, peer, ports: ports) }
        case .revoke(let id, let peer): withSlot(id) { plane, slot in plane.allocations.revoke(slot, peer) }
        case .bindChannel(let id, let number, let peer):
            withSlot(id) { plane, slot in _ = plane.allocations.bind(slot, number: number, peer: peer) }
        case .unbindChannel(let id, let number):
            withSlot(id) { plane, slot in
                if let channel = plane.allocations.rows[Int(slot)].channel(number) { plane.coolDown(channel) }
                plane.allocations.unbind(slot, number: number)
            }
        case .sendToPeer(let id, let peer, let bytes, let isUnfragmented):
            withSlot(id) { plane, slot in plane.send(bytes, to: peer, slot, isUnfragmented: isUnfragmented) }
        case .limit(let id, let user, let rate):
            withSlot(id) { plane, slot in plane.limit(slot, user: user, rate) }
        case .limitNode(let rate): limitNode(rate)
        case .awaitPeer(let connection, let id, let socket): awaitPeer(connection, id, socket: socket)
        case .joinPeer(let connection, let id, let flow, let socket, let limit, let answer):
            joinPeer(connection, id, flow, socket: socket, limit, answer: answer)
        case .limitPeer(let connection, let limit):
            if let index = peers.index(connection: connection) { limitPeer(index, limit) }
        case .closePeer(let connection):
            if let index = peers.index(connection: connection) { endPair(index) }
        case .moveFlow(let id, let flow):
            withSlot(id) { plane, slot in
                plane.detachClient(slot)
                _ = plane.setClient(slot, flow)
            }
        case .closeStream(let flow):
            if flow.transport == .dtls {
                if let slot = sessions.slot(connection: flow.connection) { closeSession(slot) }
            } else if let slot = streams.slot(connection: flow.connection) {
                closeStream(slot)
            }
        }
    }

    private mutating func withSlot(_ id: UInt32, _ body: (inout PacketPlane, UInt32) -> Void) {
        let slot = allocations.slot(id: id)
        // The command crossed the end of its allocation. Nothing is left to do.
        if slot != FlatTable.none { body(&self, slot) }
    }

    private mutating func send(_ bytes: [UInt8], to flow: RelayFlow) {
        bytes.withUnsafeBytes { bytes in
            guard let base = bytes.baseAddress else { return }
            if flow.transport == .udp {
                guard let listener = listener(of: flow) else { return }
                let raw = RawAddress(flow.remote)
                let result = raw.withSocketAddress {
                    apus_send_to(datagramListeners[listener].socket, base, bytes.count, $0, raw.length)
                }
                if result < 0 { counters.answersDropped &+= 1 }
            } else if flow.transport == .dtls {
                guard let slot = sessions.slot(connection: flow.connection), write(base, bytes.count, session: slot)
                else {
                    counters.answersDropped &+= 1
                    return
                }
            } else if let slot = streams.slot(connection: flow.connection), queue(slot, base, bytes.count) {
                writeStream(slot)
            }
        }
    }

    private mutating func send(_ bytes: [UInt8], to peer: TransportAddress, _ slot: UInt32, isUnfragmented: Bool) {
        let row = allocations.rows + Int(slot)
        let key = FlatTable.Key(peer, scope: slot)
        // Control has checked the port if lists name some.
        guard allocations.isPermitted(peer: key, port: peer.port) || allocations.isJudged(peer: key) else {
            counters.notPermitted &+= 1
            row.pointee.traffic.dropped &+= 1
            return
        }
        guard isWithinQuota(row, bytes.count) else { return }
        let socket = row.pointee.socket(to: peer.family)
        if isUnfragmented { apus_datagram_fragments(socket, 0) }
        let raw = RawAddress(peer)
        var result: Int32 = 0
        for _ in 0...SendBatch.retriesMax {
            result = bytes.withUnsafeBytes { bytes in
                raw.withSocketAddress { apus_send_to(socket, bytes.baseAddress, bytes.count, $0, raw.length) }
            }
            if result == 0 || !SendBatch.mayTellOfEarlier(-result) { break }
        }
        if isUnfragmented { apus_datagram_fragments(socket, 1) }
        if isUnfragmented, -result == EMSGSIZE {
            readErrors(Int(slot), socket, unfragmented: peer)
        }
        if result < 0 {
            row.pointee.traffic.dropped &+= 1
        } else {
            row.pointee.traffic.upPackets &+= 1
            row.pointee.traffic.upBytes &+= UInt64(bytes.count)
        }
    }

    private func listener(of flow: RelayFlow) -> Int? {
        (0..<datagramListenerCount).first { datagramListeners[$0].address == flow.local }
    }

    private mutating func install(
        _ id: UInt32, _ flow: RelayFlow, _ socket: Int32, _ second: Int32, isTCP: Bool
    ) {
        let slot = allocations.insert(id: id, socket: socket, second: second)
        let isInstalled = slot != FlatTable.none && setClient(slot, flow)
        guard isInstalled else {
            if slot != FlatTable.none { allocations.remove(slot) }
            apus_close(socket)
            if second >= 0 { apus_close(second) }
            _ = link.event(.refused(allocation: id))
            return
        }
        let generation = allocations.rows[Int(slot)].generation
        let kinds: (Kind, Kind) = isTCP ? (.peerListener, .secondPeerListener) : (.relay, .secondRelay)
        if !isTCP {
            allocations.setRelayed(
                slot, RawAddress.local(of: socket), second: second >= 0 ? RawAddress.local(of: second) : nil)
        }
        for (socket, kind) in [(socket, kinds.0), (second, kinds.1)] where socket >= 0 {
            if !isTCP {
                reportErrors(of: socket)
                reportMarks(of: socket)
            }
            _ = apus_poll_add(poll, socket, Self.readable, Self.token(kind, generation, Int(slot)))
        }
    }

    private mutating func setClient(_ slot: UInt32, _ flow: RelayFlow) -> Bool {
        if flow.transport == .udp {
            guard let listener = listener(of: flow) else { return false }
            return allocations.setClient(
                slot, listener: Int32(listener), socket: datagramListeners[listener].socket, flow: flow)
        }
        if flow.transport == .dtls {
            guard let session = sessions.slot(connection: flow.connection),
                sessions.rows[session].allocation == FlatTable.none
            else { return false }
            sessions.rows[session].allocation = slot
            sessions.unauthenticated.leave(session)
            allocations.setSession(slot, session: Int32(session), flow: flow)
            return true
        }
        guard let stream = streams.slot(connection: flow.connection),
            streams.rows[stream].allocation == FlatTable.none
        else { return false }
        streams.rows[stream].allocation = slot
        unauthenticated.leave(stream)
        allocations.setStream(slot, stream: Int32(stream), flow: flow)
        return true
    }

    /// Detaches both from each other. If the client's connection ends later, its place may be reused by an unrelated
    /// client.
    private mutating func detachClient(_ slot: UInt32) {
        let row = allocations.rows + Int(slot)
        let (stream, session) = (Int(row.pointee.stream), Int(row.pointee.session))
        row.pointee.stream = -1
        row.pointee.session = -1
        if stream >= 0 {
            streams.rows[stream].allocation = FlatTable.none
            returnToAdmission(stream: stream)
        }
        if session >= 0 {
            sessions.rows[session].allocation = FlatTable.none
            returnToAdmission(session: session)
        }
    }

    /// Sets the rate limit of all allocations of this plane together, if the node has one.
    mutating func limitNode(_ rate: RelayRate) {
        if nodeBucket >= 0 { buckets.set(nodeBucket, rate) }
    }

    private mutating func limit(_ slot: UInt32, user: UInt32, _ rate: RelayRate) {
        let row = allocations.rows + Int(slot)
        if row.pointee.bucket < 0 { row.pointee.bucket = buckets.join(user: user, at: now) }
        if row.pointee.bucket >= 0 { buckets.set(row.pointee.bucket, rate) }
    }

    private mutating func closeFamily(_ slot: UInt32, _ family: TransportAddress.Family) {
        let row = allocations.rows + Int(slot)
        let isTCP = row.pointee.relayed == nil
        let closed = allocations.removeFamily(slot, family)
        guard closed >= 0 else { return }
        _ = apus_poll_remove(poll, closed)
        apus_close(closed)
        guard family == .v4 else { return }
        // The second socket is now the only one.
        let kind: Kind = isTCP ? .peerListener : .relay
        _ = apus_poll_change(
            poll, row.pointee.socket, Self.readable, Self.token(kind, row.pointee.generation, Int(slot)))
    }

    private mutating func remove(_ id: UInt32) {
        let slot = allocations.slot(id: id)
        guard slot != FlatTable.none else { return }
        let row = allocations.rows + Int(slot)
        detachClient(slot)
        if row.pointee.bucket >= 0 { buckets.leave(row.pointee.bucket) }
        let traffic = row.pointee.traffic
        var hot: [UnsafeMutablePointer<ChannelRow>] = []
        allocations.forEachChannel(slot) { if $0.pointee.hot >= 0 { hot.append($0) } }
        for channel in hot { coolDown(channel) }
        // A close alone does not remove the socket from the poll if another plane has a descriptor of it.
        for socket in [row.pointee.socket, row.pointee.second] where socket >= 0 {
            _ = apus_poll_remove(poll, socket)
            apus_close(socket)
        }
        allocations.remove(slot)
        if !link.event(.counters(allocation: id, traffic, isFinal: true)) { counters.newsDropped &+= 1 }
    }
}

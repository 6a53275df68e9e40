import ApusCore
import ApusTraversal

/// The state of a TCP connection to a peer (RFC 6062).
enum PeerPlace {
    /// Being connected, at its allocation's plane.
    case connecting(plane: UInt8)
    /// Here, until the client has bound it. The kernel buffers the peer's data in the meantime.
    case waiting(socket: Int32)
    /// Joined with the client's data connection, at that connection's plane.
    case joined(plane: UInt8)
}

/// TCP relaying: carries out the machine's actions on connections to peers, and handles the planes' events about them.
extension RelayServer {
    mutating func performPeer(
        _ action: TurnAction, _ now: MonotonicTime, _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        switch action {
        case .connectPeer(let id, let connection, let peer): connect(id, connection, peer, now, &commands)
        case .joinStreams(let flow, let id, let connection, let answer):
            guard case .waiting(let socket)? = peers[connection] else { return }
            peers[connection] = .joined(plane: flow.plane)
            let limits = machine.user(of: id).map {
                shares.began(connection, user: $0, plane: flow.plane, isConnection: true)
            }
            var own: PeerLimit?
            for case (_, .limitPeer(connection, let limit)) in limits ?? [] { own = limit }
            let join = PlaneCommand.joinPeer(
                connection: connection, allocation: id.rawValue, flow: flow, socket: socket, limit: own,
                answer: answer)
            commands.append((flow.plane, join))
            commands += limits ?? []
        case .closePeer(_, let connection):
            switch peers.removeValue(forKey: connection) {
            case .connecting(let plane), .joined(let plane):
                commands.append((plane, .closePeer(connection: connection)))
                commands += shares.ended(connection, isConnection: true)
            case .waiting(let socket): RelaySocket.close(socket)
            case nil: break
            }
        default: break
        }
    }

    /// Starts to connect from the relayed address of the peer's family.
    private mutating func connect(
        _ id: AllocationID, _ connection: UInt32, _ peer: TransportAddress, _ now: MonotonicTime,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        guard let place = installed[id.rawValue],
            let local = place.relay.addresses.first(where: { $0.family == peer.family }),
            let socket = RelaySocket.connect(from: local, to: addresses.externals.local(of: peer))
        else {
            perform(machine.peerClosed(connection, at: now), now, &commands)
            return
        }
        peers[connection] = .connecting(plane: place.plane)
        commands.append(
            (place.plane, .awaitPeer(connection: connection, allocation: id.rawValue, socket: socket)))
    }

    /// A connection was established, or has failed: -1.
    mutating func peerConnected(
        _ connection: UInt32, socket: Int32, _ now: MonotonicTime,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        guard case .connecting? = peers[connection] else {
            // It was abandoned in the meantime.
            if socket >= 0 { RelaySocket.close(socket) }
            return
        }
        peers[connection] = socket < 0 ? nil : .waiting(socket: socket)
        let actions =
            socket < 0 ? machine.peerClosed(connection, at: now) : machine.peerConnected(connection, at: now)
        perform(actions, now, &commands)
    }

    /// A permitted peer has connected.
    mutating func peerArrived(
        _ id: UInt32, _ peer: TransportAddress, socket: Int32, _ now: MonotonicTime,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        let (connection, actions) = machine.peerArrived(
            AllocationID(rawValue: id), addresses.externals.external(of: peer), transaction: newTransaction(), at: now)
        if let connection {
            peers[connection] = .waiting(socket: socket)
        } else {
            RelaySocket.close(socket)
        }
        perform(actions, now, &commands)
    }

    /// The traffic of a joined connection. The last report comes at its end.
    mutating func peerCarried(
        _ connection: UInt32, _ id: UInt32, _ traffic: RelayTraffic, isFinal: Bool, _ now: MonotonicTime,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        metrics.streamed(traffic)
        accounts.carried(id, traffic)
        let id = AllocationID(rawValue: id)
        perform(machine.connectionCarried(id, RelayCounters(traffic), isFinal: isFinal), now, &commands)
        guard isFinal else { return }
        peers[connection] = nil
        commands += shares.ended(connection, isConnection: true)
        perform(machine.peerClosed(connection, at: now), now, &commands)
    }
}

extension RelayCounters {
    /// A plane's counters in the machine's form.
    init(_ traffic: RelayTraffic) {
        self.init()
        (packetsUp, bytesUp) = (traffic.upPackets, traffic.upBytes)
        (packetsDown, bytesDown) = (traffic.downPackets, traffic.downBytes)
    }
}

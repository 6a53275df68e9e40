public import ApusCore

/// A TCP connection between an allocation and a peer (RFC 6062).
struct TurnConnection: Sendable {
    enum State: Sendable {
        /// The shell connects. The request is answered when it has.
        case connecting(TurnServerStateMachine.Request)
        /// The peer is connected, and the client's ConnectionBind is awaited.
        case waiting
        case joined(RelayFlow)
    }

    let allocation: AllocationID
    let peer: TransportAddress
    /// True if the client requested it; otherwise the peer connected, from any port.
    let isAskedFor: Bool
    var state: State
    var deadline: MonotonicTime
}

// TCP relaying: Connect, ConnectionBind and peers that connect (RFC 6062 §5).
extension TurnServerStateMachine {
    /// The time-out for a peer to accept, and for a client to bind (RFC 6062 §5.2, §5.4).
    static let connectionTimeout = Duration.seconds(30)

    mutating func connect(
        _ request: Request, _ id: AllocationID, at now: MonotonicTime
    ) throws(ApusError) -> [TurnAction] {
        guard let peer = try request.message.xorAddress(.xorPeerAddress), let allocation = allocations[id],
            allocation.isTCP
        else { return [refusal(request, .badRequest)] }
        if let code = objection(toHost: peer, allocation) { return [refusal(request, code)] }
        guard configuration.peers.refusal(of: peer) == nil else { return [refusal(request, .forbidden)] }
        guard !allocation.connections.contains(where: { connections[$0]?.peer == peer }) else {
            return [refusal(request, .connectionAlreadyExists)]
        }
        guard allocation.connections.count < configuration.connectionsMax,
            connections.count < configuration.connectionsPerNodeMax
        else { return [refusal(request, .insufficientCapacity)] }
        let isKnown =
            allocation.hasPermission(peer, at: now)
            || allocation.connections.contains { connections[$0]?.peer.host == peer.host }
        guard isKnown || takeNewPeers(1, of: allocation.user, at: now) else {
            return [refusal(request, .insufficientCapacity)]
        }
        let number = addConnection(id, peer, .connecting(request), at: now)
        return [.connectPeer(id, connection: number, peer)]
    }

    /// The peer of a Connect accepted.
    public mutating func peerConnected(_ number: UInt32, at now: MonotonicTime) -> [TurnAction] {
        guard let connection = connections[number], case .connecting(let request) = connection.state else { return [] }
        connections[number]?.state = .waiting
        setDeadline(of: number, at: now)
        return [success(request) { $0.add(.connectionID, number: number) }]
    }

    /// The peer of a Connect cannot be reached, or a connection to a peer ended.
    public mutating func peerClosed(_ number: UInt32, at now: MonotonicTime) -> [TurnAction] {
        guard let connection = takeConnection(number) else { return [] }
        switch connection.state {
        case .connecting(let request): return [refusal(request, .connectionTimeoutOrFailure)]
        case .waiting: return []
        case .joined(let flow): return [.closeStream(flow)]
        }
    }

    /// A peer connects to the relayed address of a TCP allocation (RFC 6062 §5.3). Returns the number of the
    /// connection; nil if it must be closed at once, because there is no permission or there are too many others.
    public mutating func peerArrived(
        _ id: AllocationID, _ peer: TransportAddress, transaction: TransactionID, at now: MonotonicTime
    ) -> (connection: UInt32?, actions: [TurnAction]) {
        guard let allocation = allocations[id], allocation.isTCP, allocation.hasPermission(peer, at: now),
            allocation.connections.count < configuration.connectionsMax,
            connections.count < configuration.connectionsPerNodeMax
        else { return (nil, []) }
        let number = addConnection(id, peer, .waiting, at: now)
        var writer = StunWriter(StunMessageType(.indication, .connectionAttempt), transaction)
        writer.add(.connectionID, number: number)
        writer.add(.xorPeerAddress, xorAddress: peer)
        return (number, [.reply(allocation.flow, writer.bytes)])
    }

    /// RFC 6062 §5.4: a second stream of the client is joined with the peer's connection.
    mutating func connectionBind(_ request: Request, at now: MonotonicTime) throws(ApusError) -> [TurnAction] {
        guard let number = try request.message.number32(.connectionID), request.flow.transport.isStream,
            byFlow[request.flow] == nil, let connection = connections[number], case .waiting = connection.state,
            let allocation = allocations[connection.allocation], connectionByFlow[request.flow] == nil
        else { return [refusal(request, .badRequest)] }
        guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
        connections[number]?.state = .joined(request.flow)
        connectionByFlow[request.flow] = number
        guard case .reply(_, let answer) = success(request) else { return [] }
        return [.joinStreams(request.flow, connection.allocation, connection: number, answer: answer)]
    }

    /// The client's data stream ended.
    mutating func dataStreamClosed(_ flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        guard let number = connectionByFlow[flow], let connection = takeConnection(number) else { return [] }
        return [.closePeer(connection.allocation, connection: number)]
    }

    mutating func connectionTimedOut(_ number: UInt32, at now: MonotonicTime) -> [TurnAction] {
        guard let connection = connections[number], connection.deadline <= now else { return [] }
        if case .joined = connection.state { return [] }
        _ = takeConnection(number)
        var actions: [TurnAction] = [.closePeer(connection.allocation, connection: number)]
        if case .connecting(let request) = connection.state {
            actions.append(refusal(request, .connectionTimeoutOrFailure))
        }
        return actions
    }

    /// Ends all connections of an allocation that ends.
    mutating func closePeers(of allocation: TurnAllocation) -> [TurnAction] {
        var actions: [TurnAction] = []
        for number in allocation.connections {
            guard let connection = takeConnection(number) else { continue }
            actions.append(.closePeer(allocation.id, connection: number))
            if case .joined(let flow) = connection.state { actions.append(.closeStream(flow)) }
        }
        return actions
    }

    /// Ends an allocation's connections to peers that are refused now. A pending Connect is answered.
    mutating func closeRefusedPeers(of allocation: TurnAllocation) -> [TurnAction] {
        var actions: [TurnAction] = []
        for number in allocation.connections {
            guard let known = connections[number],
                (known.isAskedFor
                    ? configuration.peers.refusal(of: known.peer) : configuration.peers.refusal(ofHost: known.peer))
                    != nil, let connection = takeConnection(number)
            else { continue }
            actions.append(.closePeer(allocation.id, connection: number))
            switch connection.state {
            case .connecting(let request): actions.append(refusal(request, .forbidden))
            case .waiting: break
            case .joined(let flow): actions.append(.closeStream(flow))
            }
        }
        return actions
    }

    /// Numbers are not guessable: a client with a number and a credential may bind the connection (RFC 6062 §5.4).
    private mutating func addConnection(
        _ id: AllocationID, _ peer: TransportAddress, _ state: TurnConnection.State, at now: MonotonicTime
    ) -> UInt32 {
        var number = UInt32(truncatingIfNeeded: random.next())
        while connections[number] != nil { number &+= 1 }
        let isAskedFor = if case .connecting = state { true } else { false }
        connections[number] = TurnConnection(
            allocation: id, peer: peer, isAskedFor: isAskedFor, state: state, deadline: now)
        allocations[id]?.connections.append(number)
        setDeadline(of: number, at: now)
        return number
    }

    private mutating func setDeadline(of number: UInt32, at now: MonotonicTime) {
        connections[number]?.deadline = now + Self.connectionTimeout
        heap.push(.connection(number), at: now + Self.connectionTimeout)
    }

    private mutating func takeConnection(_ number: UInt32) -> TurnConnection? {
        guard let connection = connections.removeValue(forKey: number) else { return nil }
        allocations[connection.allocation]?.connections.removeAll { $0 == number }
        if case .joined(let flow) = connection.state { connectionByFlow[flow] = nil }
        return connection
    }
}

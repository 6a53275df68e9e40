public import ApusCore

// CreatePermission (RFC 8656 §10), ChannelBind (§12), Send and Data (§11).
extension TurnServerStateMachine {
    mutating func createPermission(
        _ request: Request, _ id: AllocationID, at now: MonotonicTime
    ) throws(ApusError) -> [TurnAction] {
        let peers = try request.message.xorAddresses(.xorPeerAddress, countMax: configuration.peersPerRequestMax)
        guard !peers.isEmpty, let allocation = allocations[id] else { return [refusal(request, .badRequest)] }
        for peer in peers {
            if let code = objection(toHost: peer, allocation) { return [refusal(request, code)] }
        }
        // All or none (RFC 8656 §10.2).
        var added: [TransportAddress] = []
        for peer in peers
        where !added.contains(peer.host) && !allocation.permissions.contains(where: { $0.host == peer.host }) {
            added.append(peer.host)
        }
        guard allocation.permissions.count + added.count <= configuration.permissionsMax else {
            return [refusal(request, .insufficientCapacity)]
        }
        guard takeNewPeers(added.count, of: allocation.user, at: now) else {
            return [refusal(request, .insufficientCapacity)]
        }
        var actions: [TurnAction] = []
        for peer in peers { actions += permit(peer, id, at: now) }
        reschedule(id)
        actions.append(success(request))
        return actions + (added.isEmpty ? [] : mirror(id, replacing: nil, at: now))
    }

    mutating func channelBind(
        _ request: Request, _ id: AllocationID, at now: MonotonicTime
    ) throws(ApusError) -> [TurnAction] {
        guard let number = try request.message.channelNumber(),
            let peer = try request.message.xorAddress(.xorPeerAddress),
            configuration.channelNumbers.contains(number), let allocation = allocations[id], !allocation.isTCP
        else { return [refusal(request, .badRequest)] }
        if let code = objection(toHost: peer, allocation) { return [refusal(request, code)] }
        guard configuration.peers.refusal(of: peer) == nil else { return [refusal(request, .forbidden)] }
        // A number has one peer and a peer one number (RFC 8656 §12.2).
        let bound = allocation.channels.firstIndex { $0.number == number || $0.peer == peer }
        if let bound {
            let channel = allocation.channels[bound]
            guard channel.number == number, channel.peer == peer else { return [refusal(request, .badRequest)] }
        }
        let isPermitted = allocation.permissions.contains { $0.host == peer.host }
        guard bound != nil || allocation.channels.count < configuration.channelsMax,
            isPermitted || allocation.permissions.count < configuration.permissionsMax
        else { return [refusal(request, .insufficientCapacity)] }
        guard isPermitted || takeNewPeers(1, of: allocation.user, at: now) else {
            return [refusal(request, .insufficientCapacity)]
        }
        // A binding is a permission too (RFC 8656 §12.2).
        var actions = permit(peer, id, at: now)
        let expiry = now + configuration.channelLifetime
        if let bound {
            allocations[id]?.channels[bound].expiry = expiry
        } else {
            allocations[id]?.channels.append(TurnAllocation.Channel(number: number, peer: peer, expiry: expiry))
            actions.append(.bindChannel(id, number, peer))
        }
        reschedule(id)
        actions.append(success(request))
        return actions + (bound == nil ? mirror(id, replacing: nil, at: now) : [])
    }

    /// The reason for which a host cannot be a peer of this allocation, at any port.
    func objection(toHost peer: TransportAddress, _ allocation: TurnAllocation) -> StunErrorCode? {
        guard allocation.isRelayed(peer.family) else { return .peerAddressFamilyMismatch }
        return configuration.peers.refusal(ofHost: peer) == nil ? nil : .forbidden
    }

    /// Creates or renews a permission. The plane is notified only of a new one.
    mutating func permit(_ peer: TransportAddress, _ id: AllocationID, at now: MonotonicTime) -> [TurnAction] {
        let expiry = now + configuration.permissionLifetime
        if let index = allocations[id]?.permissions.firstIndex(where: { $0.host == peer.host }) {
            allocations[id]?.permissions[index].expiry = expiry
            return []
        }
        let ports = configuration.peers.ports(of: peer)
        allocations[id]?.permissions.append(TurnAllocation.Permission(host: peer.host, expiry: expiry, ports: ports))
        return [.permit(id, peer.host, ports: ports)]
    }

    /// Handles a Send indication that the plane passed on (RFC 8656 §11.2). Refusals are silent.
    mutating func sendIndication(_ message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        guard let id = byFlow[flow], let allocation = allocations[id], !allocation.isTCP,
            message.unknownAttributes(known: Self.known).isEmpty, let data = message.value(of: .data),
            let address = try? message.xorAddress(.xorPeerAddress), allocation.hasPermission(address, at: now),
            configuration.peers.refusal(of: address) == nil
        else { return [] }
        return [.sendToPeer(id, address, Array(data), dontFragment: message.has(.dontFragment))]
    }

    /// An ICMP error came for a packet to a peer (RFC 8656 §11.5). The client is notified.
    public func peerUnreachable(
        _ id: AllocationID, peer: TransportAddress, icmp: StunICMP, transaction: TransactionID, at now: MonotonicTime
    ) -> [TurnAction] {
        guard let allocation = allocations[id], allocation.hasPermission(peer, at: now) else { return [] }
        var writer = StunWriter(StunMessageType(.indication, .data), transaction)
        writer.add(.xorPeerAddress, xorAddress: peer)
        writer.add(icmp: icmp)
        return [.reply(allocation.flow, writer.bytes)]
    }
}

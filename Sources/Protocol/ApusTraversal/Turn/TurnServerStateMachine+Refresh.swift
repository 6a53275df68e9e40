public import ApusCore

// Refresh (RFC 8656 §8), mobility (RFC 8016 §3.2), and allocations that come from another node.
extension TurnServerStateMachine {
    mutating func refresh(_ request: Request, at now: MonotonicTime) throws(ApusError) -> [TurnAction] {
        let asked = try request.message.number32(.lifetime)
        if let id = byFlow[request.flow], let allocation = allocations[id] {
            guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
            if let family = try request.message.familyNumber(.requestedAddressFamily) {
                // RFC 8656 §8.2: only a family that the allocation has can be refreshed.
                guard allocation.relayed.contains(where: { $0.family.rawValue == family }) else {
                    return [refusal(request, .peerAddressFamilyMismatch)]
                }
            }
            return refresh(id, request, asked, at: now)
        }
        guard let value = request.message.value(of: .mobilityTicket) else {
            return [refusal(request, .allocationMismatch)]
        }
        guard configuration.isMobilityAllowed else { return [refusal(request, .mobilityForbidden)] }
        // A flow on which an allocation is being opened cannot have another.
        guard openingByFlow[request.flow] == nil else { return [] }
        guard let ticket = MobilityTicket(bytes: value) else { return [refusal(request, .badRequest)] }
        if let id = byTicket[ticket], let allocation = allocations[id] {
            guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
            let moved = move(id, to: request.flow, at: now)
            return moved + refresh(id, request, asked, at: now)
        }
        return revive(ticket, request, asked, at: now)
    }

    private mutating func refresh(
        _ id: AllocationID, _ request: Request, _ asked: UInt32?, at now: MonotonicTime
    ) -> [TurnAction] {
        if asked == 0 {
            let answer = success(request) { $0.add(.lifetime, number: UInt32(0)) }
            // Nothing passes any more once the client has its answer.
            return end(id, .deleted, at: now) + [answer]
        }
        let lifetime = lifetime(askedFor: asked)
        allocations[id]?.expiry = now + lifetime
        reschedule(id)
        // The ticket that counts comes with the answer, so that an answer that was lost loses no ticket.
        let ticket = request.message.has(.mobilityTicket) ? allocations[id]?.ticket : nil
        let answer = success(request) { writer in
            writer.add(.lifetime, number: UInt32(lifetime.components.seconds))
            if let ticket { writer.add(.mobilityTicket, ticket.bytes) }
        }
        return [answer] + mirror(id, replacing: nil, at: now)
    }

    /// The client has a new address, and a new ticket for the next time.
    private mutating func move(_ id: AllocationID, to flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        guard let allocation = allocations[id] else { return [] }
        let ticket = newTicket()
        byFlow[allocation.flow] = nil
        byFlow[flow] = id
        if let old = allocation.ticket { byTicket[old] = nil }
        byTicket[ticket] = id
        allocations[id]?.flow = flow
        allocations[id]?.ticket = ticket
        var actions: [TurnAction] = [.moveFlow(id, flow)]
        if flow.plane != allocation.flow.plane {
            actions = [.transfer(id, from: allocation.flow, to: flow)]
            for permission in allocation.permissions {
                let ports = configuration.peers.ports(of: permission.host)
                actions.append(.permit(id, permission.host, ports: ports))
            }
            for channel in allocation.channels { actions.append(.bindChannel(id, channel.number, channel.peer)) }
        }
        return actions + mirror(id, replacing: allocation.ticket, at: now)
    }

    // MARK: Standby

    /// Keeps the state of an allocation of another node, for the case that its client comes with its ticket.
    public mutating func adopt(_ state: AllocationMirror, replacing old: MobilityTicket?, at now: MonotonicTime) {
        if let old { mirrors[old] = nil }
        guard state.remaining > .zero, mirrors[state.ticket] != nil || mirrors.count < configuration.mirrorsMax else {
            return
        }
        let remaining = min(state.remaining, configuration.lifetimeMax)
        if mirrors[state.ticket] == nil { heap.push(.mirror(state.ticket), at: now + remaining) }
        mirrors[state.ticket] = Mirror(state: state, expiry: now + remaining)
        compactHeap()
    }

    /// The allocation of another node ended there, or goes on elsewhere.
    public mutating func forget(_ ticket: MobilityTicket) { mirrors[ticket] = nil }

    /// The allocations of other nodes that are kept.
    public var mirrorCount: Int { mirrors.count }

    /// A client whose node died goes on here: its relayed address is opened again, at the same port where it is free.
    /// The answer tells the new relayed address, which RFC 8016 does not foresee and our own clients read.
    private mutating func revive(
        _ ticket: MobilityTicket, _ request: Request, _ asked: UInt32?, at now: MonotonicTime
    ) -> [TurnAction] {
        guard let kept = mirrors[ticket], kept.expiry > now, !kept.state.relayed.isEmpty else {
            return [refusal(request, .badRequest)]
        }
        guard kept.state.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
        let families = kept.state.relayed.map(\.family)
        guard families.allSatisfy({ configuration.families.contains($0) }) else {
            return [refusal(request, .addressFamilyNotSupported)]
        }
        if asked == 0 {
            mirrors[ticket] = nil
            return [success(request) { $0.add(.lifetime, number: UInt32(0)) }, .unmirror(ticket)]
        }
        mirrors[ticket] = nil
        let opening = Opening(
            request: request, families: families, lifetime: lifetime(askedFor: asked), isTCP: false, wantsTicket: true,
            reservation: nil, revived: kept.state, secondFamilyError: nil)
        let actions = open(opening, isEvenPort: false, reservesNext: false, at: now)
        if openingByFlow[request.flow] == nil { mirrors[ticket] = kept }
        return actions
    }

    /// Permissions and channels as they were. Each peer is judged again: this node's addresses are others.
    mutating func restore(_ state: AllocationMirror, into id: AllocationID, at now: MonotonicTime) -> [TurnAction] {
        var actions: [TurnAction] = []
        for host in state.permissions.prefix(configuration.permissionsMax)
        where configuration.peers.refusal(ofHost: host) == nil {
            actions += permit(host, id, at: now)
        }
        for channel in state.channels.prefix(configuration.channelsMax)
        where configuration.peers.refusal(of: channel.peer) == nil
            && configuration.channelNumbers.contains(channel.number)
        {
            let expiry = now + configuration.channelLifetime
            allocations[id]?.channels.append(
                TurnAllocation.Channel(number: channel.number, peer: channel.peer, expiry: expiry))
            actions.append(.bindChannel(id, channel.number, channel.peer))
        }
        reschedule(id)
        return actions
    }

    /// Tells the standby of an allocation that a client can take elsewhere; others cannot be moved.
    func mirror(_ id: AllocationID, replacing old: MobilityTicket?, at now: MonotonicTime) -> [TurnAction] {
        guard let state = allocations[id]?.mirror(at: now) else { return [] }
        return [.mirror(state, replacing: old)]
    }
}

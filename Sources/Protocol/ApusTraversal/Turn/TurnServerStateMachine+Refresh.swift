import ApusCore

// Refresh (RFC 8656 §8) and mobility between addresses of one node (RFC 8016 §3.2).
extension TurnServerStateMachine {
    mutating func refresh(_ request: Request, at now: MonotonicTime) throws(ApusError) -> [TurnAction] {
        let asked = try request.message.number32(.lifetime)
        let number = try request.message.familyNumber(.requestedAddressFamily)
        let family = number.flatMap(TransportAddress.Family.init(rawValue:))
        // RFC 8656 §8.2: only a family that the allocation has can be refreshed.
        func isMissing(in allocation: TurnAllocation) -> Bool {
            number != nil && !allocation.relayed.contains { $0.family == family }
        }
        if let id = byFlow[request.flow], let allocation = allocations[id] {
            guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
            // A retransmission of the Refresh that moved the allocation here has the same answer.
            if allocation.transaction == request.message.transaction {
                return [.reply(request.flow, allocation.answer)]
            }
            guard !isMissing(in: allocation) else { return [refusal(request, .peerAddressFamilyMismatch)] }
            return refresh(id, request, asked, family, at: now)
        }
        guard let value = request.message.value(of: .mobilityTicket) else {
            return [refusal(request, .allocationMismatch)]
        }
        guard configuration.isMobilityAllowed else { return [refusal(request, .mobilityForbidden)] }
        // A flow on which an allocation is being opened or looked up cannot have another.
        guard openingByFlow[request.flow] == nil, claimByFlow[request.flow] == nil else { return [] }
        guard let content = sealer.open(value), Int64(content.expiry) > unixSeconds(at: now) else {
            return [refusal(request, .badRequest)]
        }
        guard content.user == MobilityTicketSealer.digest(of: request.caller.username) else {
            return [refusal(request, .wrongCredentials)]
        }
        if let id = byTicket[content.ticket], let allocation = allocations[id] {
            guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
            guard !isMissing(in: allocation) else { return [refusal(request, .peerAddressFamilyMismatch)] }
            if isDraining, asked != 0, let answer = elsewhere(request) { return [answer] }
            let moved = move(id, to: request.flow, at: now)
            return moved + refresh(id, request, asked, family, at: now)
        }
        return goOn(content, request, asked, at: now)
    }

    private mutating func refresh(
        _ id: AllocationID, _ request: Request, _ asked: UInt32?, _ family: TransportAddress.Family?,
        at now: MonotonicTime
    ) -> [TurnAction] {
        if asked == 0, let family, allocations[id]?.relayed.count ?? 0 > 1 {
            let answer = success(request) { $0.add(.lifetime, number: UInt32(0)) }
            return endFamily(family, of: id, at: now) + [answer]
        }
        if asked == 0 {
            let answer = success(request) { $0.add(.lifetime, number: UInt32(0)) }
            // Nothing is relayed any more once the client has its answer.
            return end(id, .deleted, at: now) + [answer]
        }
        // A draining node redirects its clients while it is still up.
        if isDraining, allocations[id]?.ticket != nil, let answer = elsewhere(request) { return [answer] }
        let lifetime = bounded(lifetime(askedFor: asked), at: now)
        allocations[id]?.extend(family, to: now + lifetime)
        reschedule(id)
        // The valid ticket is in every answer, so a lost answer loses no ticket.
        let held = request.message.has(.mobilityTicket) ? allocations[id]?.ticket : nil
        let ticket = held.map { seal($0, of: request.caller) } ?? []
        let answer = success(request) { writer in
            writer.add(.lifetime, number: UInt32(lifetime.components.seconds))
            if !ticket.isEmpty { writer.add(.mobilityTicket, ticket) }
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
}

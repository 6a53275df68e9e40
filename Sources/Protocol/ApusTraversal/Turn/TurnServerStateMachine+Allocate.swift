public import ApusCore

// Allocate (RFC 8656 §7), and the shell's answers to openings.
extension TurnServerStateMachine {
    mutating func allocate(_ request: Request, at now: MonotonicTime) throws(ApusError) -> [TurnAction] {
        let flow = request.flow
        if let id = byFlow[flow], let allocation = allocations[id] {
            // A retransmission has the same answer (RFC 8656 §7.2, step 2).
            guard allocation.transaction == request.message.transaction else {
                return [refusal(request, .allocationMismatch)]
            }
            return [.reply(flow, allocation.answer)]
        }
        // The answer is sent when the address is open.
        guard openingByFlow[flow] == nil else { return [] }
        if let answer = answerWhileDraining(request) { return [answer] }
        let wish = try allocationWish(of: request)
        switch wish {
        case .refused(let code): return [refusal(request, code)]
        case .accepted(let opening, let isEvenPort, let reservesNext):
            return open(opening, isEvenPort: isEvenPort, reservesNext: reservesNext, at: now)
        }
    }

    private enum Wish {
        case refused(StunErrorCode)
        case accepted(Opening, isEvenPort: Bool, reservesNext: Bool)
    }

    /// Parses the request's wishes, in the order of RFC 8656 §7.2.
    private func allocationWish(of request: Request) throws(ApusError) -> Wish {
        let message = request.message
        let transport = try message.requestedTransport()
        let isTCP = transport == 6
        guard transport == 17 || (isTCP && configuration.isTCPAllowed) else { return .refused(.unsupportedTransport) }
        let evenPort = try message.evenPort()
        let token = try message.number64(.reservationToken)
        let first = try message.familyNumber(.requestedAddressFamily)
        let second = try message.familyNumber(.additionalAddressFamily)
        // RFC 6062 §5.1: a TCP allocation must be requested over a stream, and has no pairs of ports.
        if isTCP {
            guard request.flow.transport.isStream, evenPort == nil, token == nil, !message.has(.dontFragment) else {
                return .refused(.badRequest)
            }
        }
        guard token == nil || (evenPort == nil && first == nil && second == nil) else { return .refused(.badRequest) }
        guard first == nil || second == nil, second == nil || second == TransportAddress.Family.v6.rawValue,
            second == nil || evenPort != true
        else { return .refused(.badRequest) }
        guard !message.has(.mobilityTicket) || configuration.isMobilityAllowed else {
            return .refused(.mobilityForbidden)
        }
        guard let family = TransportAddress.Family(rawValue: first ?? 1), configuration.families.contains(family) else {
            return .refused(.addressFamilyNotSupported)
        }
        if let token, reservations[token]?.user != request.caller.user { return .refused(.insufficientCapacity) }
        guard evenPort != true || mayReserve(request.caller.user) else { return .refused(.insufficientCapacity) }
        let hasSecond = second != nil && configuration.families.contains(.v6)
        let opening = Opening(
            request: request, families: hasSecond ? [family, .v6] : [family],
            lifetime: lifetime(askedFor: try message.number32(.lifetime)), isTCP: isTCP,
            // A TCP allocation cannot move to another node: its mirror would come back as one of UDP.
            wantsTicket: message.has(.mobilityTicket) && !isTCP, reservation: token, revived: nil,
            secondFamilyError: second != nil && !hasSecond ? .addressFamilyNotSupported : nil)
        return .accepted(opening, isEvenPort: evenPort != nil, reservesNext: evenPort == true)
    }

    /// True if the next port may be reserved, within the limits of user and node.
    private func mayReserve(_ user: String) -> Bool {
        reservations.count < configuration.reservationsMax
            && reservations.values.count { $0.user == user } < configuration.reservationsPerUserMax
    }

    /// RFC 8656 §7.2: the requested lifetime, clamped to the shortest, which is the default there, and the longest.
    func lifetime(askedFor seconds: UInt32?) -> Duration {
        let wanted = seconds.map { .seconds(Int64($0)) } ?? configuration.lifetimeDefault
        return min(max(wanted, configuration.lifetimeMin), configuration.lifetimeMax)
    }

    /// Requests the relayed address from the shell, within the limits of user and node.
    mutating func open(
        _ opening: Opening, isEvenPort: Bool, reservesNext: Bool, at now: MonotonicTime
    ) -> [TurnAction] {
        let user = opening.request.caller.user
        guard mayAllocate(user, isRevived: opening.revived != nil) else {
            limitedAllocationCount &+= 1
            return [refusal(opening.request, .allocationQuotaReached)]
        }
        guard allocations.count + openings.count < configuration.allocationsMax else {
            return [refusal(opening.request, .insufficientCapacity)]
        }
        holdUser(user, at: now)
        lastOpening &+= 1
        let number = lastOpening
        let token: UInt64? = reservesNext ? random.next() : nil
        if let token {
            let expiry = now + configuration.reservationLifetime + configuration.openTimeout
            reservations[token] = Reservation(user: user, expiry: expiry)
            heap.push(.reservation(token), at: expiry)
        }
        if let taken = opening.reservation { reservations[taken] = nil }
        openings[number] = opening
        openings[number]?.reservesNextAs = token
        openingByFlow[opening.request.flow] = number
        heap.push(.opening(number), at: now + configuration.openTimeout)
        return [
            .openRelay(
                RelayOpening(
                    request: number, flow: opening.request.flow, families: opening.families, isTCP: opening.isTCP,
                    isEvenPort: isEvenPort, reserveNextAs: token, reserved: opening.reservation,
                    preferredPort: opening.revived?.state.relayed.first?.port))
        ]
    }

    /// The shell opened the relayed addresses of an opening, in the order of its families. The second may be missing.
    ///
    /// An opening that is no longer needed is closed again.
    public mutating func relayOpened(
        _ number: UInt32, addresses: [TransportAddress], at now: MonotonicTime
    ) -> [TurnAction] {
        guard let opening = takeOpening(number), !addresses.isEmpty else { return [.closeRelay(request: number)] }
        let token = opening.reservesNextAs
        let request = opening.request
        lastAllocation &+= 1
        let id = AllocationID(rawValue: lastAllocation)
        let ticket = opening.wantsTicket ? newTicket() : nil
        let lifetime = bounded(opening.lifetime, at: now)
        let sealed = ticket.map { seal($0, of: request.caller) } ?? []
        let answer = success(request) { writer in
            for address in addresses { writer.add(.xorRelayedAddress, xorAddress: address) }
            writer.add(.lifetime, number: UInt32(lifetime.components.seconds))
            writer.add(.xorMappedAddress, xorAddress: request.flow.remote)
            if let token { writer.add(.reservationToken, number: token) }
            if !sealed.isEmpty { writer.add(.mobilityTicket, sealed) }
            let isSecondMissing = opening.families.count > addresses.count
            if let code = isSecondMissing ? .insufficientCapacity : opening.secondFamilyError {
                writer.add(addressErrorCode: code, family: .v6)
            }
        }
        guard case .reply(_, let bytes) = answer else { return [.closeRelay(request: number)] }
        let allocation = TurnAllocation(
            id: id, flow: request.flow, username: request.caller.username, user: request.caller.user,
            relayed: addresses, expiries: addresses.map { _ in now + lifetime }, isTCP: opening.isTCP, started: now,
            scheduled: now + lifetime, transaction: request.message.transaction, answer: bytes, ticket: ticket)
        allocations[id] = allocation
        byFlow[request.flow] = id
        if let ticket { byTicket[ticket] = id }
        heap.push(.allocation(id), at: allocation.scheduled)
        var actions: [TurnAction] = [
            .install(id, request.flow, relayed: addresses, request: number),
            .began(id, request.flow, user: allocation.user, relayed: addresses),
        ]
        if let revived = opening.revived {
            actions += restore(revived.state, into: id, at: now)
            actions.append(.revived(revived.state.ticket, home: revived.home))
        }
        actions.append(answer)
        return actions + mirror(id, replacing: opening.revived?.state.ticket, at: now)
    }

    /// The shell could not open the relayed address.
    public mutating func relayFailed(_ number: UInt32, _ failure: RelayFailure, at now: MonotonicTime) -> [TurnAction] {
        guard let opening = takeOpening(number) else { return [] }
        abandon(opening, at: now)
        let code: StunErrorCode = failure == .noCapacity ? .insufficientCapacity : .addressFamilyNotSupported
        return [refusal(opening.request, code)]
    }

    mutating func takeOpening(_ number: UInt32) -> Opening? {
        guard let opening = openings.removeValue(forKey: number) else { return nil }
        if openingByFlow[opening.request.flow] == number { openingByFlow[opening.request.flow] = nil }
        return opening
    }

    /// Releases what an opening held: its place in the quota, the reserved port, the mirror that it was to revive.
    mutating func abandon(_ opening: Opening, at now: MonotonicTime) {
        if let token = opening.reservesNextAs { reservations[token] = nil }
        releaseUser(opening.request.caller.user)
        if let revived = opening.revived { adopt(revived.state, replacing: nil, at: now) }
    }

    mutating func newTicket() -> MobilityTicket { MobilityTicket(high: random.next(), low: random.next()) }

    /// Seals a ticket for its client. It expires with the credential, without which it has no use.
    func seal(_ ticket: MobilityTicket, of caller: Caller) -> [UInt8] {
        let expiry = configuration.identity(of: caller.username)?.expiry ?? 0
        return sealer.seal(
            MobilityTicketSealer.Content(
                ticket: ticket, home: configuration.node, user: MobilityTicketSealer.digest(of: caller.username),
                expiry: UInt32(clamping: expiry)))
    }
}

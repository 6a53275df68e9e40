public import ApusCore

// Allocations that come from another node: mirrors, claims and what becomes of them (D8).
//
// Each node tells its standby of every allocation that has a ticket. A client whose node died, or sent it away, brings
// its ticket to any node: one that holds the mirror goes on at once; another asks the rest of the cluster, and whoever
// has the allocation or its mirror gives it up. So at most one node goes on with it, but for a mirror that went out of
// date at a standby of earlier days: its client alone can use it, and gains a second allocation of its own by that.
extension TurnServerStateMachine {
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

    /// What the standby is to have of the allocations here, in the order of their numbers.
    public func mirrorsOfAll(at now: MonotonicTime) -> [AllocationMirror] {
        allocations.keys.sorted { $0.rawValue < $1.rawValue }.compactMap { allocations[$0]?.mirror(at: now) }
    }

    /// Another node goes on with an allocation of this one: it ends here. Nothing where it has ended already.
    public mutating func movedAway(_ ticket: MobilityTicket, at now: MonotonicTime) -> [TurnAction] {
        byTicket[ticket].map { end($0, .movedAway, at: now) } ?? []
    }

    /// Gives up what this node has of a ticket to another node whose client proved that it is its own: a mirror, or
    /// an allocation that lives here and ends. Nil if there is neither.
    public mutating func surrender(
        _ ticket: MobilityTicket, username: String, at now: MonotonicTime
    ) -> (state: AllocationMirror?, actions: [TurnAction]) {
        if let kept = mirrors[ticket], kept.state.username == username, kept.expiry > now {
            mirrors[ticket] = nil
            return (kept.state, [])
        }
        guard let id = byTicket[ticket], let allocation = allocations[id], allocation.username == username else {
            return (nil, [])
        }
        return (allocation.mirror(at: now), end(id, .movedAway, at: now))
    }

    /// A client with an authentic ticket of its own whose allocation does not live here.
    mutating func goOn(
        _ content: MobilityTicketSealer.Content, _ request: Request, _ asked: UInt32?, at now: MonotonicTime
    ) -> [TurnAction] {
        if let answer = answerWhileDraining(request), asked != 0 { return [answer] }
        if let kept = mirrors[content.ticket], kept.expiry > now {
            return revive(kept.state, home: content.home, request, asked, at: now)
        }
        // What this life of this node made and has no more has ended, or moved under a newer ticket.
        guard configuration.hasPeers, content.home != configuration.node else {
            return [refusal(request, .badRequest)]
        }
        guard claims.count < configuration.claimsMax else { return [] }
        lastClaim &+= 1
        claims[lastClaim] = Claim(request: request, asked: asked, ticket: content)
        claimByFlow[request.flow] = lastClaim
        heap.push(.claim(lastClaim), at: now + configuration.claimTimeout)
        return [.claim(lastClaim, content.ticket, username: request.caller.username)]
    }

    /// What the other nodes said to a claim: the allocation's state, which is this node's now, or that nobody has it.
    public mutating func claimed(_ number: UInt32, _ state: AllocationMirror?, at now: MonotonicTime) -> [TurnAction] {
        guard let claim = takeClaim(number) else {
            // Its time was over; the client asks again and finds the state here.
            if let state { adopt(state, replacing: nil, at: now) }
            return []
        }
        guard let state, state.ticket == claim.ticket.ticket else {
            return [refusal(claim.request, .allocationMismatch)]
        }
        return revive(state, home: claim.ticket.home, claim.request, claim.asked, at: now)
    }

    mutating func takeClaim(_ number: UInt32) -> Claim? {
        guard let claim = claims.removeValue(forKey: number) else { return nil }
        claimByFlow[claim.request.flow] = nil
        return claim
    }

    /// A client whose node died goes on here: its relayed address is opened again, at the same port where it is free.
    /// The answer tells the new relayed address, which RFC 8016 does not foresee and our own clients read.
    private mutating func revive(
        _ state: AllocationMirror, home: UInt64, _ request: Request, _ asked: UInt32?, at now: MonotonicTime
    ) -> [TurnAction] {
        guard state.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
        let families = state.relayed.map(\.family)
        guard !families.isEmpty, families.allSatisfy({ configuration.families.contains($0) }) else {
            adopt(state, replacing: nil, at: now)
            return [refusal(request, .addressFamilyNotSupported)]
        }
        mirrors[state.ticket] = nil
        if asked == 0 {
            return [
                success(request) { $0.add(.lifetime, number: UInt32(0)) }, .unmirror(state.ticket),
                .revived(state.ticket, home: home),
            ]
        }
        let opening = Opening(
            request: request, families: families, lifetime: lifetime(askedFor: asked), isTCP: false, wantsTicket: true,
            reservation: nil, revived: Revived(state: state, home: home), secondFamilyError: nil)
        let actions = open(opening, isEvenPort: false, reservesNext: false, at: now)
        // Refused by a quota or a bound: the client may ask again.
        if openingByFlow[request.flow] == nil { adopt(state, replacing: nil, at: now) }
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

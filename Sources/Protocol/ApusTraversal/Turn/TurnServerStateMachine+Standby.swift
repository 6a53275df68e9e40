public import ApusCore

// Allocations from other nodes: mirrors and claims (D8).
//
// Each node mirrors every allocation with a ticket to its standby. A client whose node died, or redirected it, presents
// its ticket to any node. A node with the mirror continues the allocation at once. Any other node asks the rest of the
// cluster, and the node that has the allocation or its mirror surrenders it. At most one node therefore continues it.
// The exception is an outdated mirror at a former standby: only its client can use it, and gains a second allocation of
// its own.
extension TurnServerStateMachine {
    /// Stores the state of an allocation of another node, in case its client comes with its ticket.
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

    /// The allocation of another node ended there, or continues elsewhere.
    public mutating func forget(_ ticket: MobilityTicket) { mirrors[ticket] = nil }

    /// The number of stored mirrors.
    public var mirrorCount: Int { mirrors.count }

    /// The state of all allocations for the standby, in the order of their numbers.
    public func mirrorsOfAll(at now: MonotonicTime) -> [AllocationMirror] {
        allocations.keys.sorted { $0.rawValue < $1.rawValue }.compactMap { allocations[$0]?.mirror(at: now) }
    }

    /// Another node continues an allocation of this one. It ends here; no effect if it has ended already.
    public mutating func movedAway(_ ticket: MobilityTicket, at now: MonotonicTime) -> [TurnAction] {
        byTicket[ticket].map { end($0, .movedAway, at: now) } ?? []
    }

    /// Surrenders the allocation of a ticket to another node, whose client proved that it is its own: a mirror, or a
    /// live allocation, which ends. The state is nil if there is neither.
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

    /// Handles a client with an authentic ticket of its own whose allocation is not at this node.
    mutating func goOn(
        _ content: MobilityTicketSealer.Content, _ request: Request, _ asked: UInt32?, at now: MonotonicTime
    ) -> [TurnAction] {
        if let answer = answerWhileDraining(request), asked != 0 { return [answer] }
        if let kept = mirrors[content.ticket], kept.expiry > now {
            return revive(kept.state, home: content.home, request, asked, at: now)
        }
        // An allocation that this incarnation created and no longer has ended, or moved under a newer ticket.
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

    /// The result of a claim: the allocation's state, which this node now owns, or nil if no node has it.
    public mutating func claimed(_ number: UInt32, _ state: AllocationMirror?, at now: MonotonicTime) -> [TurnAction] {
        guard let claim = takeClaim(number) else {
            // The claim timed out. The client retransmits and finds the state here.
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

    /// Continues a client's allocation after its node died. The relayed address is opened again, at the same port if it
    /// is free. The answer contains the new relayed address, which RFC 8016 does not provide for and our own clients
    /// read.
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
        // Refused by a quota or a limit. The client may try again.
        if openingByFlow[request.flow] == nil { adopt(state, replacing: nil, at: now) }
        return actions
    }

    /// Restores permissions and channels. Each peer is checked again, since this node has other addresses.
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

    /// Mirrors an allocation to the standby if the client can move it. Others are not mirrored.
    func mirror(_ id: AllocationID, replacing old: MobilityTicket?, at now: MonotonicTime) -> [TurnAction] {
        guard let state = allocations[id]?.mirror(at: now) else { return [] }
        return [.mirror(state, replacing: old)]
    }
}

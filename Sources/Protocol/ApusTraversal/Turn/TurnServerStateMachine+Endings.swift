public import ApusCore

// The end of allocations: by time, with their stream, or by the node; and their final counters.
extension TurnServerStateMachine {
    /// The time-out for the last counters of an allocation that ended.
    static let finalCountersTimeout = Duration.seconds(2)

    /// When ``tick(at:)`` is due; nil if nothing waits. It may be in the past if more expired than one tick handles.
    public var nextDeadline: MonotonicTime? { heap.first?.deadline }

    /// Ends what has expired, a bounded number at once.
    public mutating func tick(at now: MonotonicTime) -> [TurnAction] {
        var actions: [TurnAction] = []
        for _ in 0..<configuration.expiriesPerTickMax {
            guard let first = heap.first, first.deadline <= now, let entry = heap.pop() else { break }
            actions += ended(entry.subject, deadline: entry.deadline, at: now)
        }
        return actions
    }

    private mutating func ended(
        _ subject: Subject, deadline: MonotonicTime, at now: MonotonicTime
    ) -> [TurnAction] {
        switch subject {
        case .allocation(let id):
            guard let allocation = allocations[id], allocation.scheduled == deadline else { return [] }
            guard allocation.expiry > now else { return end(id, .expired, at: now) }
            var actions: [TurnAction] = []
            for (address, expiry) in zip(allocation.relayed, allocation.expiries) where expiry <= now {
                actions += endFamily(address.family, of: id, at: now)
            }
            return actions + expireParts(of: id, at: now)
        case .opening(let number):
            guard let opening = takeOpening(number) else { return [] }
            abandon(opening, at: now)
            return [.closeRelay(request: number), refusal(opening.request, .insufficientCapacity)]
        case .reservation(let token):
            guard reservations.removeValue(forKey: token) != nil else { return [] }
            return [.closeReserved(token)]
        case .mirror(let ticket):
            guard let kept = mirrors[ticket] else { return [] }
            if kept.expiry > now {
                heap.push(.mirror(ticket), at: kept.expiry)
            } else {
                mirrors[ticket] = nil
            }
            return []
        case .ending(let id):
            return endings.removeValue(forKey: id).map { [.ended($0.life)] } ?? []
        case .connection(let number):
            return connectionTimedOut(number, at: now)
        case .claim(let number):
            return takeClaim(number).map { [refusal($0.request, .allocationMismatch)] } ?? []
        }
    }

    /// Ends one of two families, with its channels and permissions. The other one stays (RFC 8656 §8).
    mutating func endFamily(
        _ family: TransportAddress.Family, of id: AllocationID, at now: MonotonicTime
    ) -> [TurnAction] {
        guard let allocation = allocations[id] else { return [] }
        var actions: [TurnAction] = []
        for channel in allocation.channels where channel.peer.family == family {
            actions.append(.unbindChannel(id, channel.number))
        }
        for permission in allocation.permissions where permission.host.family == family {
            actions.append(.revoke(id, permission.host))
        }
        allocations[id]?.remove(family)
        return actions + [.closeFamily(id, family)] + mirror(id, replacing: nil, at: now)
    }

    /// Permissions and channels that expired while the allocation continues.
    private mutating func expireParts(of id: AllocationID, at now: MonotonicTime) -> [TurnAction] {
        guard let allocation = allocations[id] else { return [] }
        var actions: [TurnAction] = []
        for channel in allocation.channels where channel.expiry <= now {
            actions.append(.unbindChannel(id, channel.number))
        }
        for permission in allocation.permissions where permission.expiry <= now {
            actions.append(.revoke(id, permission.host))
        }
        allocations[id]?.channels.removeAll { $0.expiry <= now }
        allocations[id]?.permissions.removeAll { $0.expiry <= now }
        if let next = allocations[id]?.nextDeadline {
            allocations[id]?.scheduled = next
            heap.push(.allocation(id), at: next)
        }
        return actions + (actions.isEmpty ? [] : mirror(id, replacing: nil, at: now))
    }

    /// Checks the deadline of an allocation after one of its parts changed. A later deadline needs no action: the
    /// existing entry is corrected when it is due.
    mutating func reschedule(_ id: AllocationID) {
        guard let allocation = allocations[id], allocation.nextDeadline < allocation.scheduled else { return }
        allocations[id]?.scheduled = allocation.nextDeadline
        heap.push(.allocation(id), at: allocation.nextDeadline)
        compactHeap()
    }

    /// Keeps the heap in proportion to its live entries: earlier deadlines and replaced mirrors leave old entries
    /// behind.
    mutating func compactHeap() {
        guard heap.entries.count > 1024 + 8 * (allocations.count + openings.count + mirrors.count) else { return }
        let allocations = allocations
        let mirrors = mirrors
        heap.compact { entry in
            switch entry.subject {
            case .allocation(let id): allocations[id]?.scheduled == entry.deadline
            case .mirror(let ticket): mirrors[ticket] != nil
            case .opening, .reservation, .ending, .connection, .claim: true
            }
        }
    }

    /// A client's stream ended. An allocation with a ticket waits for its client to return; any other ends.
    public mutating func streamClosed(_ flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        var actions: [TurnAction] = []
        if let number = openingByFlow[flow], let opening = takeOpening(number) {
            abandon(opening, at: now)
            actions.append(.closeRelay(request: number))
        }
        actions += dataStreamClosed(flow, at: now)
        if let number = claimByFlow[flow] { _ = takeClaim(number) }
        guard let id = byFlow[flow], let allocation = allocations[id] else { return actions }
        guard allocation.ticket == nil else { return actions }
        return actions + end(id, .streamClosed, at: now)
    }

    /// Ends an allocation from the node's side: by an operator, or because its sockets failed.
    public mutating func close(_ id: AllocationID, at now: MonotonicTime) -> [TurnAction] {
        end(id, .closedByNode, at: now)
    }

    /// Replaces the revocation test. Credentials of revoked user names are refused from now on, and their allocations
    /// and mirrors end.
    public mutating func revoke(
        _ isRevoked: @escaping @Sendable (_ username: String) -> Bool, at now: MonotonicTime
    ) -> [TurnAction] {
        self.isRevoked = isRevoked
        mirrors = mirrors.filter { !isRevoked($0.value.state.username) }
        let ended = allocations.filter { isRevoked($0.value.username) }.keys.sorted { $0.rawValue < $1.rawValue }
        return ended.flatMap { end($0, .closedByNode, at: now) }
    }

    /// Ends allocations because the process ends, at most the given number, the oldest first. Their mirrors stay, so
    /// clients with tickets continue at other nodes.
    public mutating func shutDown(countMax: Int, at now: MonotonicTime) -> [TurnAction] {
        let first = allocations.keys.sorted { $0.rawValue < $1.rawValue }.prefix(countMax)
        return first.flatMap { end($0, .shutdown, at: now) }
    }

    /// Ended allocations whose last counters are still awaited.
    public var endingCount: Int { endings.count }

    /// Reports all ended allocations with the counters so far, without waiting longer.
    public mutating func endWaiting() -> [TurnAction] {
        let lives = endings.values.map(\.life).sorted { $0.allocation.rawValue < $1.allocation.rawValue }
        endings.removeAll()
        return lives.map { .ended($0) }
    }

    mutating func end(_ id: AllocationID, _ reason: AllocationSummary.Reason, at now: MonotonicTime) -> [TurnAction] {
        guard let allocation = allocations.removeValue(forKey: id) else { return [] }
        byFlow[allocation.flow] = nil
        releaseUser(allocation.user)
        let joinedCount = allocation.connections.count { number in
            if case .joined? = connections[number]?.state { true } else { false }
        }
        var actions: [TurnAction] = closePeers(of: allocation)
        if let ticket = allocation.ticket {
            byTicket[ticket] = nil
            if reason != .shutdown { actions.append(.unmirror(ticket)) }
        }
        actions.append(.remove(id))
        let life = AllocationSummary(
            allocation: id, user: allocation.user, flow: allocation.flow, relayed: allocation.relayed,
            started: allocation.started, counters: allocation.counters, reason: reason)
        endings[id] = Ending(
            life: life, countersBefore: allocation.countersBefore, connectionCount: joinedCount)
        heap.push(.ending(id), at: now + Self.finalCountersTimeout)
        return actions
    }

    /// The traffic that the plane has counted for an allocation; `isFinal` with the last report of this plane. The last
    /// report for an ended allocation completes it.
    public mutating func counted(_ id: AllocationID, _ counters: RelayCounters, isFinal: Bool) -> [TurnAction] {
        if let before = allocations[id]?.countersBefore {
            allocations[id]?.counters = before + counters
            if isFinal { allocations[id]?.countersBefore = before + counters }
            return []
        }
        guard isFinal, endings[id] != nil else { return [] }
        endings[id]?.counted = counters
        return notifyAll(id)
    }

    /// The traffic of a data connection of an allocation since the last report (RFC 6062); `isFinal` at its end.
    public mutating func connectionCarried(
        _ id: AllocationID, _ counters: RelayCounters, isFinal: Bool
    ) -> [TurnAction] {
        if let allocation = allocations[id] {
            allocations[id]?.counters = allocation.counters + counters
            allocations[id]?.countersBefore = allocation.countersBefore + counters
            return []
        }
        guard let ending = endings[id] else { return [] }
        endings[id]?.countersBefore = ending.countersBefore + counters
        if isFinal { endings[id]?.connectionCount -= 1 }
        return notifyAll(id)
    }

    /// Reports an ended allocation once all its counters are known.
    private mutating func notifyAll(_ id: AllocationID) -> [TurnAction] {
        guard let ending = endings[id], let counted = ending.counted, ending.connectionCount <= 0 else { return [] }
        endings[id] = nil
        var life = ending.life
        life.counters = ending.countersBefore + counted
        return [.ended(life)]
    }

    /// The user of a live allocation; nil for one that has ended.
    public func user(of id: AllocationID) -> String? { allocations[id]?.user }

    /// The traffic of a live allocation; nil for one that has ended.
    public func counters(of id: AllocationID) -> RelayCounters? { allocations[id]?.counters }
}

public import ApusCore

// Operators' view of allocations, and their commands to end them (D13).
extension TurnServerStateMachine {
    /// The selected allocations, the oldest first, up to the given number; `count` is the number of all selected ones.
    public func sessions(_ selection: RelaySelection, countMax: Int, at now: MonotonicTime) -> RelaySessions {
        let ids = selected(selection)
        let sessions = ids.prefix(countMax).compactMap { id in allocations[id].map { session($0, at: now) } }
        return RelaySessions(count: ids.count, sessions: sessions)
    }

    /// Ends the selected allocations. Their clients may allocate again as long as their credentials are valid.
    public mutating func end(
        _ selection: RelaySelection, at now: MonotonicTime
    ) -> (count: Int, actions: [TurnAction]) {
        let ids = selected(selection)
        return (ids.count, ids.flatMap { close($0, at: now) })
    }

    private func selected(_ selection: RelaySelection) -> [AllocationID] {
        switch selection {
        case .one(let number): return [AllocationID(rawValue: number)].filter { allocations[$0] != nil }
        case .user(let user):
            return allocations.values.filter { $0.user == user }.map(\.id).sorted { $0.rawValue < $1.rawValue }
        case .all: return allocations.keys.sorted { $0.rawValue < $1.rawValue }
        }
    }

    private func session(_ allocation: TurnAllocation, at now: MonotonicTime) -> RelaySessions.Session {
        RelaySessions.Session(
            id: allocation.id.rawValue, user: allocation.user, client: "\(allocation.flow.remote)",
            transport: "\(allocation.flow.transport)", relayed: allocation.relayed.map(\.description),
            permissions: allocation.permissions.count, channels: allocation.channels.count,
            connections: allocation.connections.count, age_s: (now - allocation.started).milliseconds / 1000,
            expires_in_s: max(0, (allocation.expiry - now).milliseconds / 1000),
            packets_up: allocation.counters.packetsUp, bytes_up: allocation.counters.bytesUp,
            packets_down: allocation.counters.packetsDown, bytes_down: allocation.counters.bytesDown)
    }
}

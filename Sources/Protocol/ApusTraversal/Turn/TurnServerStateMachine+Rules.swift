public import ApusCore

// Rules that an operator changes while the relay runs (D8).
extension TurnServerStateMachine {
    /// Replaces the secrets, users and rules for peers, of the same realm. No allocation ends.
    ///
    /// Existing allocations are checked again, in steps (``judgeMore()``): channels, permissions and TCP connections to
    /// peers that are refused now are removed. A client whose user or secret was removed is refused at its next
    /// request. Its allocation ends with its lifetime.
    public mutating func rulesChanged(
        credentials: RelayCredentials, users: StaticUsers, peers: PeerPolicy, at now: MonotonicTime
    ) -> [TurnAction] {
        configuration.credentials = credentials
        configuration.users = users
        return peersChanged(peers)
    }

    /// Replaces the rules for peers. Existing allocations are checked again as in
    /// ``rulesChanged(credentials:users:peers:at:)``.
    public mutating func peersChanged(_ peers: PeerPolicy) -> [TurnAction] {
        let before = configuration.peers
        configuration.peers = peers
        configuration.peers.keepOthers(of: before)
        return judgeAnew()
    }

    /// The number of channels, permissions and connections after which a step ends. A step always completes an
    /// allocation.
    static let judgedPerStep = 256

    /// True if allocations wait to be checked against changed rules. ``judgeMore()`` is then due.
    public var isJudging: Bool { !toJudge.isEmpty }

    /// Starts to check existing allocations against the changed rules for peers, and does the first step. New requests
    /// are checked against the new rules at once.
    mutating func judgeAnew() -> [TurnAction] {
        // If rules change before all are checked, allocations that still wait are checked first.
        let waiting = Set(toJudge)
        let others = allocations.keys.filter { !waiting.contains($0) }.sorted { $0.rawValue > $1.rawValue }
        toJudge = others + toJudge
        return judgeMore()
    }

    /// Does one step. The rules may have 512 entries and a node 65,536 allocations, which together take seconds.
    public mutating func judgeMore() -> [TurnAction] {
        var actions: [TurnAction] = []
        var count = 0
        while count < Self.judgedPerStep, let id = toJudge.popLast() {
            guard let allocation = allocations[id] else { continue }
            count += 1 + allocation.channels.count + allocation.permissions.count + allocation.connections.count
            actions += judge(allocation)
        }
        return actions
    }

    private mutating func judge(_ allocation: TurnAllocation) -> [TurnAction] {
        let (id, peers) = (allocation.id, configuration.peers)
        var actions: [TurnAction] = []
        let channels = allocation.channels.filter { channel in
            guard peers.refusal(of: channel.peer) != nil else { return true }
            actions.append(.unbindChannel(id, channel.number))
            return false
        }
        var permissions: [TurnAllocation.Permission] = []
        for var permission in allocation.permissions {
            let isRefused = peers.refusal(ofHost: permission.host) != nil
            let ports = peers.ports(of: permission.host)
            if isRefused || ports != permission.ports {
                actions.append(.revoke(id, permission.host))
                if !isRefused { actions.append(.permit(id, permission.host, ports: ports)) }
            }
            permission.ports = ports
            if !isRefused { permissions.append(permission) }
        }
        allocations[id]?.channels = channels
        allocations[id]?.permissions = permissions
        return actions + closeRefusedPeers(of: allocation)
    }
}

import ApusCore
import ApusTraversal
import Testing

@Suite("Rules that change while a relay runs, and operators' view of it (D8, D13)")
struct TurnRulesTests {
    private let peer = TransportAddress(v4: 0x0808_0808, port: 5_000)
    private let other = TransportAddress(v4: 0x0909_0909, port: 5_000)

    @Test("A reload takes back what is refused now, leaves the rest, and ends no allocation")
    func peers() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        #expect(try driver.code(driver.bind(0x4000, peer)) == 0)
        #expect(try driver.code(driver.bind(0x4001, other)) == 0)
        let denied = PeerPolicy(denied: [try #require(PeerRule("8.8.8.0/24"))])
        let actions = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: denied, at: driver.now)
        #expect(actions == [.unbindChannel(id, 0x4000), .revoke(id, peer.host)])
        #expect(driver.machine.allocationCount == 1)
        #expect(try driver.code(driver.bind(0x4000, peer)) == 403)
        #expect(try driver.code(driver.bind(0x4001, other)) == 0)
        // A port alone leaves the permission, whose ports are judged one by one from now on.
        let port = PeerPolicy(denied: [try #require(PeerRule("9.9.9.9:22"))])
        let narrowed = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: port, at: driver.now)
        #expect(narrowed == [.revoke(id, other.host), .permit(id, other.host, ports: PeerPolicy.judgedPorts)])
    }

    /// Many allocations, each with a channel and so a permission.
    private func crowd(_ count: Int) throws -> TurnDriver {
        var driver = TurnDriver {
            $0.allocationsPerUserMax = count
            ($0.challengeBurst, $0.portChallenges) = (10 * count, .init(burst: 10 * count, perSecond: 1))
        }
        for number in 0..<count {
            let flow = TurnDriver.flow(UInt16(1_000 + number))
            try driver.allocate(on: flow)
            let bound = try driver.ask(.channelBind, on: flow) { writer in
                writer.add(channelNumber: 0x4000)
                writer.add(.xorPeerAddress, xorAddress: peer)
            }
            try #require(try driver.code(bound) == 0)
        }
        return driver
    }

    @Test("Rules that change are applied to thousands of allocations in steps, each allocation once")
    func steps() throws {
        let count = 5_000
        var driver = try crowd(count)
        let denied = PeerPolicy(denied: [try #require(PeerRule("8.8.8.0/24"))])
        var step = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: denied, at: driver.now)
        var (unbound, revoked, stepCount) = (Set<AllocationID>(), 0, 0)
        while true {
            // A channel and a permission each: no more than one ring of commands takes beside others.
            #expect(step.count <= 256)
            for case .unbindChannel(let id, 0x4000) in step { unbound.insert(id) }
            for case .revoke in step { revoked += 1 }
            stepCount += 1
            guard driver.machine.isJudging else { break }
            step = driver.machine.judgeMore()
        }
        #expect(unbound.count == count && revoked == count && stepCount > 50)
        #expect(driver.machine.judgeMore().isEmpty)
    }

    @Test("Rules that change again before all is judged leave nothing judged by the former ones")
    func changedAgain() throws {
        let count = 1_000
        var driver = try crowd(count)
        let denied = PeerPolicy(denied: [try #require(PeerRule("8.8.8.0/24"))])
        let port = PeerPolicy(denied: [try #require(PeerRule("8.8.8.8:22"))])
        var actions = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: port, at: driver.now)
        let first = Set(actions.compactMap { if case .permit(let id, _, _) = $0 { id } else { nil } })
        #expect(!first.isEmpty && first.count < count && driver.machine.isJudging)
        actions = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: denied, at: driver.now)
        let second = Set(actions.compactMap { if case .revoke(let id, _) = $0 { id } else { nil } })
        #expect(second.isDisjoint(with: first), "those that wait go first")
        while driver.machine.isJudging { actions += driver.machine.judgeMore() }
        let all = Set(actions.compactMap { if case .revoke(let id, _) = $0 { id } else { nil } })
        #expect(all.count == count)
    }

    @Test("A reload closes TCP connections to peers that are refused now, and answers a Connect that waits (403)")
    func connections() throws {
        var driver = TurnDriver { $0.isTCPAllowed = true }
        let (control, data) = (TurnDriver.flow(1, transport: .tcp), TurnDriver.flow(2, transport: .tcp))
        let id = try driver.allocate(on: control, transport: 6)
        func connect(_ to: TransportAddress) throws -> UInt32 {
            let actions = try driver.ask(.connect, on: control) { $0.add(.xorPeerAddress, xorAddress: to) }
            for case .connectPeer(_, let number, _) in actions { return number }
            throw CancellationError()
        }
        let joined = try connect(peer)
        _ = driver.machine.peerConnected(joined, at: driver.now)
        driver.nonces[data] = try driver.nonce(for: control)
        _ = try driver.ask(.connectionBind, on: data) { $0.add(.connectionID, number: joined) }
        let pending = try connect(peer.withPort(22))
        _ = try connect(other)
        // Who connects to the client does so from a port that no list names.
        #expect(
            try driver.code(driver.ask(.createPermission, on: control) { $0.add(.xorPeerAddress, xorAddress: other) })
                == 0)
        let arrived = driver.machine.peerArrived(
            id, other.withPort(40_000), transaction: driver.transaction(), at: driver.now)
        #expect(arrived.connection != nil)
        let rules = try ["8.8.8.0/24", "9.9.9.9:40000"].map { try #require(PeerRule($0)) }
        let actions = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: PeerPolicy(denied: rules), at: driver.now)
        let closed = actions.filter { if case .closePeer = $0 { true } else { false } }
        #expect(closed == [.closePeer(id, connection: joined), .closePeer(id, connection: pending)])
        #expect(actions.contains(.closeStream(data)))
        #expect(try driver.code(actions) == 403)
        #expect(driver.machine.streamClosed(data, at: driver.now).isEmpty)
        let port = PeerPolicy(denied: [try #require(PeerRule("9.9.9.9:5000"))])
        let narrowed = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: port, at: driver.now)
        #expect(narrowed.count { if case .closePeer = $0 { true } else { false } } == 1, "that to the port")
    }

    @Test("What the cluster's other nodes are at stays known over a reload")
    func others() throws {
        var driver = TurnDriver()
        try driver.allocate()
        _ = driver.machine.othersAreAt(reached: [other], reported: [])
        _ = driver.machine.rulesChanged(
            credentials: TurnDriver.credentials, users: StaticUsers(), peers: PeerPolicy(), at: driver.now)
        #expect(try driver.code(driver.bind(0x4000, other)) == 403)
    }

    @Test("With another secret the credentials of before are refused, and the allocation lives until it expires")
    func secret() throws {
        var driver = TurnDriver()
        try driver.allocate()
        let new = RelayCredentials(realm: "apus", current: Array("another secret".utf8))
        _ = driver.machine.rulesChanged(credentials: new, users: StaticUsers(), peers: PeerPolicy(), at: driver.now)
        #expect(driver.machine.allocationCount == 1)
        #expect(try driver.code(driver.bind(0x4000, peer)) == 401)
        _ = driver.advance(.seconds(3_700))
        #expect(driver.machine.allocationCount == 0)
    }

    @Test("Allocations are listed and ended by number and by user")
    func sessions() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        let all = driver.machine.sessions(.all, countMax: 10, at: driver.now)
        #expect(all.count == 1 && all.sessions.map(\.id) == [id.rawValue] && all.sessions.map(\.user) == ["ann"])
        #expect(driver.machine.sessions(.user("bob"), countMax: 10, at: driver.now).count == 0)
        #expect(driver.machine.sessions(.all, countMax: 0, at: driver.now) == RelaySessions(count: 1))
        #expect(driver.machine.end(.user("bob"), at: driver.now).count == 0)
        #expect(driver.machine.end(.one(id.rawValue + 1), at: driver.now).count == 0)
        #expect(driver.machine.end(.user("ann"), at: driver.now).actions.contains(.remove(id)))
        #expect(driver.machine.allocationCount == 0)
    }
}

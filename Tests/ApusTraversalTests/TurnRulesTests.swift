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

    @Test("What the cluster's other nodes are at stays known over a reload")
    func others() throws {
        var driver = TurnDriver()
        try driver.allocate()
        _ = driver.machine.othersAreAt(reached: [other], told: [])
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

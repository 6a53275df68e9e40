import ApusCore
import ApusTraversal
import Testing

@Suite("An allocation goes on at another node (RFC 8016, D8)")
struct TurnStandbyTests {
    /// Node 1 with an allocation that has a ticket, and its newest mirror.
    private struct Home {
        var driver = TurnDriver {
            $0.node = 1; $0.hasPeers = true
        }
        var ticket: [UInt8] = []
        var mirror: AllocationMirror

        init(as user: (username: String, password: String) = TurnDriver.user()) throws {
            let asked = try driver.ask(.allocate, as: user) { writer in
                writer.add(requestedTransport: 17)
                writer.add(.mobilityTicket, [])
            }
            let opened = driver.open(asked)
            ticket = Array(try #require(try driver.answer(opened)?.value(of: .mobilityTicket)))
            let bound = try driver.ask(.channelBind, as: user) { writer in
                writer.add(channelNumber: 0x4000)
                writer.add(.xorPeerAddress, xorAddress: peer)
            }
            mirror = try #require(TurnStandbyTests.mirrors(bound).last)
        }
    }

    private static func mirrors(_ actions: [TurnAction]) -> [AllocationMirror] {
        actions.compactMap { if case .mirror(let state, _) = $0 { state } else { nil } }
    }

    private func other(_ change: (inout TurnServerConfiguration) -> Void = { _ in }) -> TurnDriver {
        TurnDriver(seed: 8) {
            $0.node = 2
            $0.hasPeers = true
            change(&$0)
        }
    }

    private func asked(_ actions: [TurnAction]) -> (number: UInt32, ticket: MobilityTicket, username: String)? {
        for case .claim(let number, let ticket, let username) in actions { return (number, ticket, username) }
        return nil
    }

    @Test("A node without the mirror asks the others, and goes on with what they give up")
    func claimed() throws {
        var home = try Home()
        var node = other()
        let asked = try node.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) }
        #expect(try node.answer(asked) == nil, "the answer waits for the other nodes")
        let claim = try #require(self.asked(asked))
        #expect(claim.ticket == home.mirror.ticket && claim.username == TurnDriver.user().username)
        #expect(try node.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) }.isEmpty, "one claim of a flow at once")
        let (state, ended) = home.driver.machine.surrender(claim.ticket, username: claim.username, at: home.driver.now)
        #expect(home.driver.machine.allocationCount == 0)
        #expect(ended.contains { if case .remove = $0 { true } else { false } })
        let opened = node.open(node.machine.claimed(claim.number, state, at: node.now))
        #expect(try node.code(opened) == 0)
        #expect(opened.contains(.revived(claim.ticket, home: 1)))
        let id = try #require(node.installed(opened))
        #expect(opened.contains(.bindChannel(id, 0x4000, peer)))
        #expect(node.machine.allocationCount == 1)
    }

    @Test("The same Refresh once more has the same answer, with the new relayed address")
    func lostAnswer() throws {
        let home = try Home()
        var node = other()
        node.machine.adopt(home.mirror, replacing: nil, at: node.now)
        let transaction = node.transaction()
        let asked = try node.ask(.refresh, transaction: transaction) { $0.add(.mobilityTicket, home.ticket) }
        let first = try #require(try node.answer(node.open(asked)))
        let again = try node.ask(.refresh, transaction: transaction) { $0.add(.mobilityTicket, home.ticket) }
        let second = try #require(try node.answer(again))
        #expect(try first.xorAddress(.xorRelayedAddress) == second.xorAddress(.xorRelayedAddress))
        #expect(try second.xorAddress(.xorRelayedAddress) != nil)
    }

    @Test("A claim that nobody answers ends with 437 after its time; what comes later is kept for the next try")
    func claimTimesOut() throws {
        let home = try Home()
        var node = other()
        let claim = try #require(asked(try node.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) }))
        #expect(try node.code(node.advance(.seconds(2))) == 437)
        #expect(node.machine.claimed(claim.number, home.mirror, at: node.now).isEmpty)
        #expect(node.machine.mirrorCount == 1)
        let again = node.open(try node.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) })
        #expect(try node.code(again) == 0)
        let nobody = try #require(
            self.asked(
                try node.ask(.refresh, on: TurnDriver.flow(2)) {
                    $0.add(.mobilityTicket, home.ticket)
                }))
        #expect(try node.code(node.machine.claimed(nobody.number, nil, at: node.now)) == 437)
    }

    @Test("A forged, changed or foreign ticket is refused without asking anybody; another user's with 441")
    func forged() throws {
        let home = try Home()
        var node = other()
        for index in home.ticket.indices {
            var changed = home.ticket
            changed[index] ^= 1
            let actions = try node.ask(.refresh) { $0.add(.mobilityTicket, changed) }
            #expect(try node.code(actions) == 400 && asked(actions) == nil)
        }
        let eve = try node.ask(.refresh, on: TurnDriver.flow(2), as: TurnDriver.user("eve")) {
            $0.add(.mobilityTicket, home.ticket)
        }
        #expect(try node.code(eve) == 441 && asked(eve) == nil)
        var outsider = TurnDriver(seed: 8) {
            $0.ticketKey = [9]; $0.node = 2; $0.hasPeers = true
        }
        #expect(try outsider.code(outsider.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) }) == 400)
        var alone = TurnDriver(seed: 8) { $0.node = 2 }
        #expect(try alone.code(alone.ask(.refresh) { $0.add(.mobilityTicket, home.ticket) }) == 400)
    }

    @Test("A ticket ends with its credential")
    func expired() throws {
        let short = TurnDriver.user(expiresIn: 60)
        let home = try Home(as: short)
        var node = other()
        node.machine.adopt(home.mirror, replacing: nil, at: node.now)
        _ = node.advance(.seconds(61))
        // The name itself is refused as well; a longer-lived one of the same user is another name.
        #expect(try node.code(node.ask(.refresh, as: short) { $0.add(.mobilityTicket, home.ticket) }) == 401)
        let longer = try node.ask(.refresh, on: TurnDriver.flow(2)) { $0.add(.mobilityTicket, home.ticket) }
        #expect(try node.code(longer) == 400)
    }

    @Test("Claims are bounded; one more is left without an answer")
    func bounded() throws {
        var node = other { $0.claimsMax = 1 }
        let (first, second) = (try Home(), try Home())
        #expect(asked(try node.ask(.refresh, on: TurnDriver.flow(1)) { $0.add(.mobilityTicket, first.ticket) }) != nil)
        #expect(try node.ask(.refresh, on: TurnDriver.flow(2)) { $0.add(.mobilityTicket, second.ticket) }.isEmpty)
    }

    @Test("When another node goes on with an allocation, it ends at the first; a second word of it changes nothing")
    func movedAway() throws {
        var home = try Home()
        let ended = home.driver.machine.movedAway(home.mirror.ticket, at: home.driver.now)
        #expect(ended.contains { if case .remove = $0 { true } else { false } })
        #expect(home.driver.machine.movedAway(home.mirror.ticket, at: home.driver.now).isEmpty)
        #expect(home.driver.machine.allocationCount == 0)
        #expect(home.driver.machine.surrender(home.mirror.ticket, username: "x", at: home.driver.now).state == nil)
    }

    @Test("A new standby is told of every allocation that can move, in the order of their numbers")
    func everything() throws {
        var home = try Home()
        try home.driver.allocate(on: TurnDriver.flow(7))
        let all = home.driver.machine.mirrorsOfAll(at: home.driver.now)
        #expect(all.map(\.ticket) == [home.mirror.ticket])
        #expect(all.first?.channels == home.mirror.channels)
    }
}

@Suite("A node that leaves (RFC 8489 §10, D8)")
struct TurnDrainTests {
    private let elsewhere = TransportAddress(v4: 0x0707_0707, port: 3478)
    private let secure = TransportAddress(v4: 0x0707_0707, port: 5349)

    private var alternate: RelayAlternate {
        RelayAlternate(
            endpoints: [
                RelayEndpoint(transport: .udp, address: elsewhere), RelayEndpoint(transport: .tcp, address: elsewhere),
                RelayEndpoint(transport: .tls, address: secure),
            ], domain: "relay.example")
    }

    @Test("An allocation with a ticket is sent after the others at its next Refresh; one without is refreshed")
    func refresh() throws {
        var driver = TurnDriver()
        let asked = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.mobilityTicket, [])
        }
        let ticket = Array(try #require(try driver.answer(driver.open(asked))?.value(of: .mobilityTicket)))
        try driver.allocate(on: TurnDriver.flow(2))
        driver.machine.drain(to: alternate, at: driver.now)
        let moved = try driver.ask(.refresh)
        #expect(try driver.code(moved) == 300)
        #expect(try driver.answer(moved)?.address(.alternateServer) == elsewhere)
        let byTicket = try driver.ask(.refresh, on: TurnDriver.flow(9)) { $0.add(.mobilityTicket, ticket) }
        #expect(try driver.code(byTicket) == 300)
        #expect(try driver.code(driver.ask(.refresh, on: TurnDriver.flow(2))) == 0)
        #expect(try driver.code(driver.ask(.binding)) == 0, "Binding stays")
        #expect(try driver.code(driver.ask(.refresh) { $0.add(.lifetime, number: UInt32(0)) }) == 0)
    }

    @Test("What lives ends with the draining's bound, and no Refresh goes beyond it")
    func bound() throws {
        var driver = TurnDriver { $0.drainLifetime = .seconds(120) }
        try driver.allocate { $0.add(.lifetime, number: UInt32(3600)) }
        driver.machine.drain(to: nil, at: driver.now)
        _ = driver.advance(.seconds(60))
        let refreshed = try driver.ask(.refresh) { $0.add(.lifetime, number: UInt32(3600)) }
        #expect(try driver.answer(refreshed)?.number32(.lifetime) == 60)
        #expect(driver.advance(.seconds(61)).contains { if case .remove = $0 { true } else { false } })
        #expect(driver.machine.allocationCount == 0)
    }

    @Test("After the end of a drain new allocations are accepted, and a Refresh has its whole lifetime again")
    func undrained() throws {
        var driver = TurnDriver { $0.drainLifetime = .seconds(120) }
        try driver.allocate { $0.add(.lifetime, number: UInt32(3600)) }
        driver.machine.drain(to: alternate, at: driver.now)
        let refused = try driver.ask(.allocate, on: TurnDriver.flow(2)) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(refused) == 300)
        driver.machine.undrain()
        #expect(!driver.machine.isDraining)
        try driver.allocate(on: TurnDriver.flow(2))
        let refreshed = try driver.ask(.refresh) { $0.add(.lifetime, number: UInt32(3600)) }
        #expect(try driver.answer(refreshed)?.number32(.lifetime) == 3600)
        _ = driver.advance(.seconds(121))
        #expect(driver.machine.allocationCount == 2)
    }

    @Test("A client is sent to an endpoint of its own kind and family; over TLS with the certificate's name; else 508")
    func endpoints() throws {
        var driver = TurnDriver()
        driver.machine.drain(to: alternate, at: driver.now)
        func answer(_ flow: RelayFlow) throws -> StunMessage? {
            try driver.answer(driver.ask(.allocate, on: flow) { $0.add(requestedTransport: 17) })
        }
        let tls = try #require(try answer(TurnDriver.flow(3, transport: .tls)))
        #expect(try tls.address(.alternateServer) == secure && tls.text(.alternateDomain) == "relay.example")
        let tcp = try #require(try answer(TurnDriver.flow(4, transport: .tcp)))
        #expect(try tcp.address(.alternateServer) == elsewhere && tcp.text(.alternateDomain) == nil)
        var v6 = TurnDriver.flow(5)
        v6.remote = TransportAddress(v6High: 0x2606_0000_0000_0000, low: 1, port: 5)
        #expect(try answer(v6)?.errorValue()?.code == .insufficientCapacity)
    }
}

@Suite("Quotas of a user (D8, D13)")
struct TurnQuotaTests {
    @Test("Allocations are counted over the cluster: 486 at the bound, while another user goes on")
    func cluster() throws {
        var driver = TurnDriver { $0.allocationsPerClusterUserMax = 3 }
        driver.machine.othersHave(["ann": 2])
        try driver.allocate(on: TurnDriver.flow(1))
        let over = try driver.ask(.allocate, on: TurnDriver.flow(2)) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(over) == 486)
        #expect(driver.machine.limitedAllocationCount == 1)
        try driver.allocate(on: TurnDriver.flow(3), as: TurnDriver.user("bob"))
        // A node that died, or let go, is not counted any more.
        driver.machine.othersHave([:])
        try driver.allocate(on: TurnDriver.flow(2))
        #expect(driver.machine.takeUsageChanges().map(\.user) == ["ann", "bob"])
        #expect(driver.machine.takeUsageChanges().isEmpty)
        #expect(driver.machine.usage.map(\.count) == [2, 1])
    }

    @Test("New peers come at a bounded rate; renewing them costs nothing")
    func peers() throws {
        var driver = TurnDriver { configuration in
            configuration.newPeerBurst = 2
            configuration.newPeersPerSecond = 1
        }
        try driver.allocate()
        func permit(_ host: UInt32) throws -> UInt16? {
            try driver.code(
                driver.ask(.createPermission) {
                    $0.add(.xorPeerAddress, xorAddress: TransportAddress(v4: host, port: 1))
                })
        }
        #expect(try permit(0x0808_0801) == 0 && permit(0x0808_0802) == 0)
        #expect(try permit(0x0808_0803) == 508)
        #expect(try permit(0x0808_0801) == 0)
        let bound = try driver.ask(.channelBind) { writer in
            writer.add(channelNumber: 0x4001)
            writer.add(.xorPeerAddress, xorAddress: TransportAddress(v4: 0x0808_0804, port: 9))
        }
        #expect(try driver.code(bound) == 508)
        _ = driver.advance(.seconds(1))
        #expect(try permit(0x0808_0803) == 0)
        #expect(driver.machine.limitedPeerCount == 2)
    }
}

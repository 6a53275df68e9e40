import ApusCore
import ApusTraversal
import Testing

@Suite("Mobility and the standby (RFC 8016, D8)")
struct TurnMobilityTests {
    private func ticket(_ driver: TurnDriver, _ actions: [TurnAction]) throws -> [UInt8] {
        Array(try #require(try driver.answer(actions)?.value(of: .mobilityTicket)))
    }

    /// An allocation with a ticket, a permission and a channel; answers the ticket and the last mirror.
    private func movable(_ driver: inout TurnDriver) throws -> (ticket: [UInt8], mirror: AllocationMirror) {
        let asked = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.mobilityTicket, [])
        }
        let opened = driver.open(asked)
        let bound = try driver.ask(.channelBind) { writer in
            writer.add(channelNumber: 0x4000)
            writer.add(.xorPeerAddress, xorAddress: peer)
        }
        let mirror = try #require(mirrors(bound).last)
        #expect(mirrors(opened).count == 1)
        return (try ticket(driver, opened), mirror)
    }

    private func mirrors(_ actions: [TurnAction]) -> [AllocationMirror] {
        actions.compactMap { if case .mirror(let state, _) = $0 { state } else { nil } }
    }

    @Test("A client takes its allocation to a new address with its ticket, and gets the next one")
    func move() throws {
        var driver = TurnDriver()
        let (first, _) = try movable(&driver)
        let elsewhere = TurnDriver.flow(7777, host: 0x0404_0404)
        let moved = try driver.ask(.refresh, on: elsewhere) { $0.add(.mobilityTicket, first) }
        #expect(try driver.code(moved) == 0)
        #expect(moved.contains { if case .moveFlow(_, elsewhere) = $0 { true } else { false } })
        let second = try ticket(driver, moved)
        #expect(second != first)
        #expect(try driver.code(driver.ask(.refresh)) == 437, "the old address has nothing any more")
        #expect(try driver.code(driver.ask(.refresh, on: elsewhere)) == 0)
        let again = try driver.ask(.refresh, on: elsewhere) { $0.add(.mobilityTicket, first) }
        #expect(try ticket(driver, again) == second, "a lost answer loses no ticket")
        let third = try driver.ask(.refresh, on: TurnDriver.flow(3)) { $0.add(.mobilityTicket, first) }
        #expect(try driver.code(third) == 400, "an old ticket is none")
    }

    @Test("A client that comes back at another plane takes permissions, channels and counters there")
    func otherPlane() throws {
        var driver = TurnDriver()
        let (ticket, _) = try movable(&driver)
        var elsewhere = TurnDriver.flow(7777)
        elsewhere.plane = 1
        let moved = try driver.ask(.refresh, on: elsewhere) { $0.add(.mobilityTicket, ticket) }
        guard case .transfer(let id, TurnDriver.flow(), elsewhere)? = moved.first else {
            Issue.record("it is not transferred: \(moved)")
            return
        }
        #expect(moved.contains(.permit(id, peer.host, ports: 1...65535)))
        #expect(moved.contains(.bindChannel(id, 0x4000, peer)))
        var counters = RelayCounters()
        counters.bytesUp = 10
        #expect(driver.machine.counted(id, counters, isFinal: true).isEmpty)
        #expect(driver.machine.counted(id, counters, isFinal: false).isEmpty)
        #expect(driver.machine.counters(of: id)?.bytesUp == 20)
    }

    @Test("A ticket is its user's: another gets 441, a made-up ticket 400, and 405 where nobody may move")
    func refused() throws {
        var driver = TurnDriver()
        let (ticket, _) = try movable(&driver)
        let eve = try driver.ask(.refresh, on: TurnDriver.flow(2), as: TurnDriver.user("eve")) {
            $0.add(.mobilityTicket, ticket)
        }
        #expect(try driver.code(eve) == 441)
        for bad in [[UInt8](repeating: 1, count: 16), [1], []] {
            let actions = try driver.ask(.refresh, on: TurnDriver.flow(3)) { $0.add(.mobilityTicket, bad) }
            #expect(try driver.code(actions) == 400)
        }
        var fixed = TurnDriver { $0.isMobilityAllowed = false }
        let asked = try fixed.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.mobilityTicket, [])
        }
        #expect(try fixed.code(asked) == 405)
    }

    @Test("A stream that breaks leaves an allocation with a ticket alive until its client comes back")
    func brokenStream() throws {
        var driver = TurnDriver()
        let flow = TurnDriver.flow(transport: .tcp)
        let asked = try driver.ask(.allocate, on: flow) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.mobilityTicket, [])
        }
        let ticket = try ticket(driver, driver.open(asked))
        #expect(driver.machine.streamClosed(flow, at: driver.now).isEmpty)
        let back = try driver.ask(.refresh, on: TurnDriver.flow(9, transport: .tcp)) { $0.add(.mobilityTicket, ticket) }
        #expect(try driver.code(back) == 0)
    }

    @Test("When a node has died, its client goes on at the standby with permissions and channels")
    func revive() throws {
        var dead = TurnDriver()
        let (ticket, mirror) = try movable(&dead)
        #expect(mirror.permissions == [peer.host])
        #expect(mirror.channels == [AllocationMirror.Channel(number: 0x4000, peer: peer)])
        var standby = TurnDriver(seed: 8)
        standby.machine.adopt(mirror, replacing: nil, at: standby.now)
        #expect(standby.machine.mirrorCount == 1)
        let asked = try standby.ask(.refresh) { $0.add(.mobilityTicket, ticket) }
        #expect(standby.opening(asked)?.preferredPort == mirror.relayed.first?.port)
        let opened = standby.open(asked)
        let id = try #require(standby.installed(opened))
        #expect(opened.contains(.permit(id, peer.host, ports: 1...65535)))
        #expect(opened.contains(.bindChannel(id, 0x4000, peer)))
        let answer = try #require(try standby.answer(opened))
        #expect(answer.type == StunMessageType(.success, .refresh))
        #expect(try answer.xorAddress(.xorRelayedAddress) == standby.relayed(.v4))
        #expect(try self.ticket(standby, opened) != ticket)
        #expect(standby.machine.mirrorCount == 0)
        #expect(try standby.code(standby.ask(.refresh)) == 0)
    }

    @Test("A mirror ends with the allocation it is of, and is bounded")
    func mirrorEnds() throws {
        var dead = TurnDriver()
        let (_, mirror) = try movable(&dead)
        let ended = try dead.ask(.refresh) { $0.add(.lifetime, number: UInt32(0)) }
        #expect(ended.contains(.unmirror(mirror.ticket)))
        var standby = TurnDriver { $0.mirrorsMax = 1 }
        standby.machine.adopt(mirror, replacing: nil, at: standby.now)
        let other = AllocationMirror(
            ticket: MobilityTicket(high: 1, low: 2), username: "1:a", relayed: mirror.relayed, remaining: .seconds(60),
            permissions: [], channels: [])
        standby.machine.adopt(other, replacing: nil, at: standby.now)
        #expect(standby.machine.mirrorCount == 1)
        standby.machine.adopt(other, replacing: mirror.ticket, at: standby.now)
        #expect(standby.machine.mirrorCount == 1)
        _ = standby.advance(.seconds(601))
        #expect(standby.machine.mirrorCount == 0 && standby.machine.nextDeadline == nil)
    }
}

@Suite("TCP relaying (RFC 6062)")
struct TurnConnectionTests {
    private let control = TurnDriver.flow(1, transport: .tcp)
    private let dataStream = TurnDriver.flow(2, transport: .tcp)

    private func driver() throws -> (TurnDriver, AllocationID) {
        var driver = TurnDriver { $0.isTCPAllowed = true }
        let id = try driver.allocate(on: control, transport: 6)
        return (driver, id)
    }

    private func connect(_ driver: inout TurnDriver, _ to: TransportAddress = peer) throws -> [TurnAction] {
        try driver.ask(.connect, on: control) { $0.add(.xorPeerAddress, xorAddress: to) }
    }

    private func number(_ actions: [TurnAction]) -> UInt32? {
        for case .connectPeer(_, let number, _) in actions { return number }
        return nil
    }

    @Test("Connect, then ConnectionBind on a second stream, joins the two (RFC 6062 §5.2, §5.4)")
    func join() throws {
        var (driver, id) = try driver()
        let connection = try #require(try number(connect(&driver)))
        #expect(try driver.code(connect(&driver)) == 446)
        let connected = driver.machine.peerConnected(connection, at: driver.now)
        #expect(try driver.answer(connected)?.number32(.connectionID) == connection)
        // The nonce of one connection is good on another of the same host.
        driver.nonces[dataStream] = try driver.nonce(for: control)
        let bound = try driver.ask(.connectionBind, on: dataStream) { $0.add(.connectionID, number: connection) }
        guard case .joinStreams(dataStream, id, connection: connection, let answer)? = bound.last else {
            Issue.record("\(bound)")
            return
        }
        #expect(try StunMessage(answer).type == StunMessageType(.success, .connectionBind))
        let twice = try driver.ask(.connectionBind, on: TurnDriver.flow(3, transport: .tcp)) {
            $0.add(.connectionID, number: connection)
        }
        #expect(try driver.code(twice) == 400)
        #expect(driver.machine.streamClosed(dataStream, at: driver.now) == [.closePeer(id, connection: connection)])
    }

    @Test("A peer that does not accept is 447; one that nobody binds is closed after 30 s")
    func timeouts() throws {
        var (driver, id) = try driver()
        let first = try #require(try number(connect(&driver)))
        #expect(try driver.code(driver.machine.peerClosed(first, at: driver.now)) == 447)
        let second = try #require(try number(connect(&driver)))
        #expect(try driver.code(driver.advance(.seconds(31))) == 447)
        let third = try #require(try number(connect(&driver)))
        _ = driver.machine.peerConnected(third, at: driver.now)
        #expect(driver.advance(.seconds(31)) == [.closePeer(id, connection: third)], "\(second)")
    }

    @Test("Connect is refused as a permission is, and on a UDP allocation with 400")
    func refused() throws {
        var (driver, _) = try driver()
        #expect(try driver.code(connect(&driver, TransportAddress(v4: 0x7f00_0001, port: 80))) == 403)
        #expect(try driver.code(driver.ask(.connect, on: control)) == 400)
        let udp = TurnDriver.flow(9)
        try driver.allocate(on: udp)
        let actions = try driver.ask(.connect, on: udp) { $0.add(.xorPeerAddress, xorAddress: peer) }
        #expect(try driver.code(actions) == 400)
        let overUDP = try driver.ask(.allocate, on: TurnDriver.flow(10)) { $0.add(requestedTransport: 6) }
        #expect(try driver.code(overUDP) == 400)
    }

    @Test("A life is told when all its data connections have told their end, with what they carried")
    func life() throws {
        var (driver, id) = try driver()
        let connection = try #require(try number(connect(&driver)))
        _ = driver.machine.peerConnected(connection, at: driver.now)
        _ = try driver.ask(.connectionBind, on: dataStream) { $0.add(.connectionID, number: connection) }
        var carried = RelayCounters()
        (carried.bytesUp, carried.bytesDown) = (10, 1)
        #expect(driver.machine.connectionCarried(id, carried, isFinal: false).isEmpty)
        #expect(driver.machine.counters(of: id)?.bytesUp == 10)
        // What the plane of the allocation itself counts is added.
        #expect(driver.machine.counted(id, RelayCounters(), isFinal: false).isEmpty)
        #expect(driver.machine.counters(of: id)?.bytesUp == 10)
        let ended = driver.machine.streamClosed(control, at: driver.now)
        #expect(ended.contains(.closeStream(dataStream)))
        #expect(driver.machine.counted(id, RelayCounters(), isFinal: true).isEmpty)
        let told = driver.machine.connectionCarried(id, carried, isFinal: true)
        guard case .ended(let life)? = told.first else {
            Issue.record("\(told)")
            return
        }
        #expect((life.counters.bytesUp, life.counters.bytesDown) == (20, 2))
        #expect(driver.advance(.seconds(5)).isEmpty)
    }

    @Test("Peers count against the user's new ones, and connections against the node's bound; no ticket is given")
    func bounds() throws {
        var driver = TurnDriver {
            $0.isTCPAllowed = true
            $0.connectionsPerNodeMax = 2
            $0.newPeersPerSecond = 1
            $0.newPeerBurst = 1
        }
        let asked = try driver.ask(.allocate, on: control) {
            $0.add(requestedTransport: 6)
            $0.add(.mobilityTicket, [])
        }
        let opened = driver.open(asked)
        #expect(try driver.answer(opened)?.has(.mobilityTicket) == false)
        #expect(try number(connect(&driver)) != nil)
        #expect(try driver.code(connect(&driver, TransportAddress(v4: 0x0808_0404, port: 1))) == 508)
        // The same host once more is no new peer.
        #expect(try number(connect(&driver, peer.withPort(4001))) != nil)
        #expect(try driver.code(connect(&driver, peer.withPort(4002))) == 508)
    }

    @Test("A permitted peer that connects is announced; the allocation's end closes all")
    func arrivals() throws {
        var (driver, id) = try driver()
        let number = driver.transaction()
        #expect(driver.machine.peerArrived(id, peer, transaction: number, at: driver.now).connection == nil)
        _ = try driver.ask(.createPermission, on: control) { $0.add(.xorPeerAddress, xorAddress: peer) }
        let arrived = driver.machine.peerArrived(id, peer, transaction: number, at: driver.now)
        let connection = try #require(arrived.connection)
        let told = try #require(try driver.answer(arrived.actions))
        #expect(told.type == StunMessageType(.indication, .connectionAttempt))
        let ended = driver.machine.streamClosed(control, at: driver.now)
        #expect(ended.contains(.closePeer(id, connection: connection)) && ended.contains(.remove(id)))
    }
}

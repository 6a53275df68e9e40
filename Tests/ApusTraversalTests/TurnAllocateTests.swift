import ApusCore
import ApusTraversal
import Testing

@Suite("Allocations (RFC 8656 §7, §8)")
struct TurnAllocateTests {
    @Test("A Binding request is told where it comes from (RFC 8489 §12)")
    func binding() throws {
        var driver = TurnDriver()
        let writer = StunWriter(StunMessageType(.request, .binding), driver.transaction())
        let answer = try #require(try driver.answer(driver.send(writer, on: TurnDriver.flow())))
        #expect(answer.kind == .success)
        #expect(try answer.xorAddress(.xorMappedAddress) == TurnDriver.flow().remote)
        #expect(answer.bytes.count == 32)
    }

    @Test("Allocate opens a relayed address and tells it, signed, with its lifetime")
    func allocate() throws {
        var driver = TurnDriver()
        let asked = try driver.ask(.allocate) { $0.add(requestedTransport: 17) }
        #expect(driver.opening(asked)?.families == [.v4])
        let actions = driver.open(asked)
        let answer = try #require(try driver.answer(actions))
        #expect(answer.kind == .success)
        #expect(try answer.xorAddress(.xorRelayedAddress) == driver.relayed(.v4))
        #expect(try answer.xorAddress(.xorMappedAddress) == TurnDriver.flow().remote)
        #expect(try answer.number32(.lifetime) == 600)
        let user = TurnDriver.user()
        #expect(answer.verifies(.sha1, key: StunKey(username: user.username, realm: "apus", password: user.password)))
        #expect(answer.isFingerprintRight == true)
        #expect(driver.machine.allocationCount == 1)
        guard case .install = actions.first else {
            Issue.record("the plane knows the allocation before the client does")
            return
        }
    }

    @Test("The same Allocate once more has the same answer; another one is refused with 437")
    func retransmission() throws {
        var driver = TurnDriver()
        let number = driver.transaction()
        let asked = try driver.ask(.allocate, transaction: number) { $0.add(requestedTransport: 17) }
        let meanwhile = try driver.ask(.allocate, transaction: number) { $0.add(requestedTransport: 17) }
        #expect(meanwhile.isEmpty)
        let first = try driver.answer(driver.open(asked))
        let again = try driver.ask(.allocate, transaction: number) { $0.add(requestedTransport: 17) }
        #expect(try driver.answer(again)?.bytes == first?.bytes)
        #expect(try driver.code(driver.ask(.allocate) { $0.add(requestedTransport: 17) }) == 437)
    }

    @Test(
        "A lifetime is between the default and the longest",
        arguments: [(UInt32?.none, UInt32(600)), (1, 600), (900, 900), (3600, 3600), (100_000, 3600), (.max, 3600)])
    func lifetime(asked: UInt32?, given: UInt32) throws {
        var driver = TurnDriver()
        let actions = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            if let asked { writer.add(.lifetime, number: asked) }
        }
        #expect(try driver.answer(driver.open(actions))?.number32(.lifetime) == given)
        let refreshed = try driver.ask(.refresh) { writer in
            if let asked { writer.add(.lifetime, number: asked) }
        }
        #expect(try driver.answer(refreshed)?.number32(.lifetime) == given)
    }

    @Test("A transport that is not relayed is refused with 442, a family that is not here with 440")
    func unsupported() throws {
        var driver = TurnDriver { $0.families = [.v4] }
        #expect(try driver.code(driver.ask(.allocate) { $0.add(requestedTransport: 6) }) == 442)
        #expect(try driver.code(driver.ask(.allocate) { $0.add(requestedTransport: 99) }) == 442)
        let v6 = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.requestedAddressFamily, family: .v6)
        }
        #expect(try driver.code(v6) == 440)
        let unknown = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.requestedAddressFamily, [9, 0, 0, 0])
        }
        #expect(try driver.code(unknown) == 440)
    }

    @Test("ADDITIONAL-ADDRESS-FAMILY opens both, or one and says why (RFC 8656 §7.2)")
    func dual() throws {
        var driver = TurnDriver()
        let both = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.additionalAddressFamily, family: .v6)
        }
        #expect(driver.opening(both)?.families == [.v4, .v6])
        #expect(try driver.answer(driver.open(both))?.has(.addressErrorCode) == false)
        var single = TurnDriver { $0.families = [.v4] }
        let one = try single.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.additionalAddressFamily, family: .v6)
        }
        let answer = try #require(try single.answer(single.open(one)))
        #expect(answer.value(of: .addressErrorCode).map { Array($0) } == [2, 0, 4, 40])
    }

    @Test("Attributes that exclude each other are refused with 400")
    func exclusive() throws {
        var driver = TurnDriver()
        let pairs: [(inout StunWriter) -> Void] = [
            {
                $0.add(.reservationToken, number: UInt64(1)); $0.add(.evenPort, [0])
            },
            {
                $0.add(.reservationToken, number: UInt64(1)); $0.add(.requestedAddressFamily, family: .v4)
            },
            {
                $0.add(.requestedAddressFamily, family: .v4); $0.add(.additionalAddressFamily, family: .v6)
            },
            { $0.add(.additionalAddressFamily, family: .v4) },
            {
                $0.add(.additionalAddressFamily, family: .v6); $0.add(.evenPort, [0x80])
            },
        ]
        for fill in pairs {
            let actions = try driver.ask(.allocate) { writer in
                writer.add(requestedTransport: 17)
                fill(&writer)
            }
            #expect(try driver.code(actions) == 400)
        }
    }

    @Test("EVEN-PORT keeps the next port for its user, once, and not for another")
    func reservation() throws {
        var driver = TurnDriver()
        let asked = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(.evenPort, [0x80])
        }
        #expect(driver.opening(asked)?.isEvenPort == true)
        let token = try #require(try driver.answer(driver.open(asked))?.number64(.reservationToken))
        #expect(driver.opening(asked)?.reserveNextAs == token)
        func take(_ port: UInt16, _ name: String) throws -> [TurnAction] {
            try driver.ask(.allocate, on: TurnDriver.flow(port), as: TurnDriver.user(name)) { writer in
                writer.add(requestedTransport: 17)
                writer.add(.reservationToken, number: token)
            }
        }
        #expect(try driver.code(take(2000, "bob")) == 508)
        #expect(try driver.opening(take(2001, "ann"))?.reserved == token)
        #expect(try driver.code(take(2002, "ann")) == 508)
    }

    @Test("A reserved port that nobody takes is given back")
    func reservationEnds() throws {
        var driver = TurnDriver()
        let id = try driver.allocate { $0.add(.evenPort, [0x80]) }
        let actions = driver.advance(.seconds(40))
        #expect(actions.contains { if case .closeReserved = $0 { true } else { false } })
        #expect(driver.machine.allocationCount == 1, "\(id)")
    }

    @Test("Refresh with 0 ends the allocation; its life is told with the last counters")
    func delete() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        let actions = try driver.ask(.refresh) { $0.add(.lifetime, number: UInt32(0)) }
        #expect(try driver.code(actions) == 0)
        #expect(actions.contains(.remove(id)))
        #expect(driver.machine.allocationCount == 0)
        var counters = RelayCounters()
        counters.packetsUp = 5
        let told = driver.machine.counted(id, counters, isFinal: true)
        guard case .ended(let life)? = told.first else {
            Issue.record("the life is not told")
            return
        }
        #expect(life.reason == .deleted && life.counters.packetsUp == 5 && life.user == "ann")
        #expect(try driver.code(driver.ask(.refresh)) == 437)
    }

    @Test("An allocation that is not refreshed ends with its lifetime; one that is, lives")
    func expiry() throws {
        var driver = TurnDriver()
        let first = try driver.allocate(on: TurnDriver.flow(1))
        let second = try driver.allocate(on: TurnDriver.flow(2))
        #expect(driver.advance(.seconds(500)).isEmpty)
        #expect(try driver.code(driver.ask(.refresh, on: TurnDriver.flow(2))) == 0)
        let actions = driver.advance(.seconds(101))
        #expect(actions.contains(.remove(first)) && !actions.contains(.remove(second)))
        #expect(driver.advance(.seconds(600)).contains(.remove(second)))
        #expect(driver.machine.allocationCount(of: "ann") == 0)
        _ = driver.advance(.seconds(3))
        #expect(driver.machine.nextDeadline == nil)
    }

    @Test("A user over the quota gets 486 while another is served; a full node says 508")
    func quotas() throws {
        var driver = TurnDriver {
            $0.allocationsPerUserMax = 2
            $0.allocationsMax = 3
        }
        try driver.allocate(on: TurnDriver.flow(1))
        try driver.allocate(on: TurnDriver.flow(2))
        let third = try driver.ask(.allocate, on: TurnDriver.flow(3)) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(third) == 486)
        try driver.allocate(on: TurnDriver.flow(4), as: TurnDriver.user("bob"))
        let full = try driver.ask(.allocate, on: TurnDriver.flow(5), as: TurnDriver.user("cid")) {
            $0.add(requestedTransport: 17)
        }
        #expect(try driver.code(full) == 508)
    }

    @Test("An address that cannot be opened is 508, one that is opened too late is closed again")
    func openingFails() throws {
        var driver = TurnDriver()
        let asked = try driver.ask(.allocate) { $0.add(requestedTransport: 17) }
        let number = try #require(driver.opening(asked)?.request)
        #expect(try driver.code(driver.machine.relayFailed(number, .noCapacity, at: driver.now)) == 508)
        let again = try driver.ask(.allocate) { $0.add(requestedTransport: 17) }
        let second = try #require(driver.opening(again)?.request)
        #expect(driver.advance(.seconds(6)).contains(.closeRelay(request: second)))
        let late = driver.machine.relayOpened(second, addresses: [driver.relayed(.v4)], at: driver.now)
        #expect(late == [.closeRelay(request: second)])
        #expect(driver.machine.allocationCount(of: "ann") == 0)
    }

    @Test("A node that leaves sends new clients elsewhere (300), and keeps the ones it has")
    func draining() throws {
        var driver = TurnDriver()
        try driver.allocate(on: TurnDriver.flow(1))
        let elsewhere = TransportAddress(v4: 0x0707_0707, port: 3478)
        driver.machine.drain(
            to: RelayAlternate(endpoints: [RelayEndpoint(transport: .udp, address: elsewhere)]), at: driver.now)
        let asked = try driver.ask(.allocate, on: TurnDriver.flow(2)) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(asked) == 300)
        #expect(try driver.answer(asked)?.address(.alternateServer) == elsewhere)
        #expect(try driver.code(driver.ask(.refresh, on: TurnDriver.flow(1))) == 0)
    }

    @Test("The end of a client's stream ends its allocation")
    func stream() throws {
        var driver = TurnDriver()
        let flow = TurnDriver.flow(transport: .tls)
        let id = try driver.allocate(on: flow)
        #expect(driver.machine.streamClosed(flow, at: driver.now).contains(.remove(id)))
        #expect(driver.machine.streamClosed(flow, at: driver.now).isEmpty)
    }

    @Test("10,000 allocations end in ticks of bounded size, each once")
    func many() throws {
        var driver = TurnDriver {
            $0.allocationsPerUserMax = 20_000
            $0.challengeBurst = 100_000
        }
        for index in 0..<10_000 {
            try driver.allocate(on: TurnDriver.flow(UInt16(1000 + index)))
        }
        #expect(driver.machine.allocationCount == 10_000)
        driver.now = driver.now + .seconds(601)
        var removed = 0
        var ticks = 0
        while let next = driver.machine.nextDeadline, next <= driver.now, ticks < 1000 {
            let actions = driver.machine.tick(at: driver.now)
            removed += actions.count { if case .remove = $0 { true } else { false } }
            #expect(actions.count <= 2 * 256)
            ticks += 1
        }
        #expect(removed == 10_000)
        #expect(driver.machine.allocationCount == 0)
    }
}

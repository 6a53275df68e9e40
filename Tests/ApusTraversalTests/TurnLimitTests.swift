import ApusCore
import ApusTraversal
import Testing

@Suite("What a source may ask for before it has authenticated (D8, D13)")
struct TurnLimitTests {
    private static let wrong = (username: TurnDriver.user().username, password: "wrong")

    private func plain(_ driver: inout TurnDriver, on flow: RelayFlow) -> [TurnAction] {
        var writer = StunWriter(StunMessageType(.request, .allocate), driver.transaction())
        writer.add(requestedTransport: 17)
        return driver.send(writer, on: flow)
    }

    private func wrongCodes(_ driver: inout TurnDriver, _ count: Int, on flow: RelayFlow) throws -> Int {
        var answered = 0
        for _ in 0..<count {
            let actions = try driver.ask(.allocate, on: flow, as: Self.wrong) { $0.add(requestedTransport: 17) }
            if try driver.code(actions) == 401 { answered += 1 }
        }
        return answered
    }

    @Test("Wrong codes of one client are looked at 64 times, then 16 times a second; its neighbour is served")
    func wrongCodesOfAPort() throws {
        var driver = TurnDriver()
        #expect(try wrongCodes(&driver, 500, on: TurnDriver.flow(1)) == 64)
        #expect(driver.machine.limitedProofCount == 436)
        try driver.allocate(on: TurnDriver.flow(2))
        _ = driver.advance(.seconds(1))
        #expect(try wrongCodes(&driver, 100, on: TurnDriver.flow(1)) == 16)
    }

    @Test("Wrong codes from many ports are bounded for their address; allocations behind it and other addresses go on")
    func wrongCodesOfAnAddress() throws {
        var driver = TurnDriver()
        try driver.allocate(on: TurnDriver.flow(1))
        var answered = 0
        for port in 10..<50 as Range<UInt16> { answered += try wrongCodes(&driver, 64, on: TurnDriver.flow(port)) }
        // The first 16 ports have all of the address, and the others what each has for itself.
        #expect((1_024 + 20...1_024 + 24).contains(answered), "\(answered)")
        #expect(try driver.code(driver.ask(.refresh, on: TurnDriver.flow(1))) == 0)
        try driver.allocate(on: TurnDriver.flow(2, host: 0x0101_0101))
    }

    @Test("A client whose neighbours show wrong codes without end comes in: it has a look of its own")
    func neighbours() throws {
        var driver = TurnDriver { $0.sourceRows = 8_192 }
        // Every port of the neighbours has its nonce, and fails as often as it may.
        for port in 100..<300 as Range<UInt16> { _ = try wrongCodes(&driver, 10, on: TurnDriver.flow(port)) }
        #expect(driver.machine.limitedProofCount > 0, "the address has nothing left")
        try driver.allocate(on: TurnDriver.flow(1))
        // One that fails has its look again after the interval, and no sooner.
        #expect(try wrongCodes(&driver, 5, on: TurnDriver.flow(2)) == 1)
        let flow = TurnDriver.flow(2)
        _ = try driver.nonce(for: flow)
        for port in 100..<300 as Range<UInt16> { _ = try wrongCodes(&driver, 1, on: TurnDriver.flow(port)) }
        #expect(try driver.ask(.allocate, on: flow) { $0.add(requestedTransport: 17) }.isEmpty)
    }

    @Test("An answer that is no longer than its question is bounded for no source: forged ones keep it from no client")
    func noLonger() throws {
        var driver = TurnDriver {
            $0.sourceRows = 8_192
            $0.challengesPerProof = 0
        }
        try driver.allocate(on: TurnDriver.flow(1))
        let old = try driver.nonce(for: TurnDriver.flow(1))
        // Somebody forges the address, from all of its ports, until it has nothing left.
        for port in 2...5_000 as ClosedRange<UInt16> { _ = plain(&driver, on: TurnDriver.flow(port)) }
        #expect(plain(&driver, on: TurnDriver.flow(6_000)).isEmpty)
        // The allocation's nonce is too old an hour later; it hears so, and goes on.
        for _ in 0..<7 {
            driver.now = driver.now + .seconds(550)
            driver.nonces[TurnDriver.flow(1)] = old
            var answer = try driver.ask(.refresh, on: TurnDriver.flow(1)) { $0.add(.lifetime, number: UInt32(3_600)) }
            for port in 2...5_000 as ClosedRange<UInt16> { _ = plain(&driver, on: TurnDriver.flow(port)) }
            if try driver.code(answer) == 438 {
                driver.nonces[TurnDriver.flow(1)] = try #require(try driver.answer(answer)).text(.nonce)
                answer = try driver.ask(.refresh, on: TurnDriver.flow(1)) { $0.add(.lifetime, number: UInt32(3_600)) }
            }
            #expect(try driver.code(answer) == 0)
        }
        #expect(driver.machine.allocationCount == 1)
    }

    @Test("Wrong codes on the flow of an allocation are bounded for it alone, and it goes on a second later")
    func wrongCodesOfAnAllocation() throws {
        var driver = TurnDriver()
        try driver.allocate(on: TurnDriver.flow(1))
        #expect(try wrongCodes(&driver, 200, on: TurnDriver.flow(1)) == 64)
        try driver.allocate(on: TurnDriver.flow(2))
        _ = driver.advance(.seconds(1))
        #expect(try driver.code(driver.ask(.refresh, on: TurnDriver.flow(1))) == 0)
    }

    @Test("A request with a fresh nonce is answered whatever its source was challenged before")
    func freshNonce() throws {
        var driver = TurnDriver {
            $0.challengeBurst = 2
            $0.challengesPerSecond = 0
            $0.challengesPerProof = 0
        }
        _ = try driver.nonce(for: TurnDriver.flow(1))
        _ = try driver.nonce(for: TurnDriver.flow(2))
        #expect(plain(&driver, on: TurnDriver.flow(3)).isEmpty)
        #expect(try wrongCodes(&driver, 5, on: TurnDriver.flow(2)) == 5)
        try driver.allocate(on: TurnDriver.flow(1))
    }

    @Test("A client that asks without end leaves its neighbours behind the same address their challenges")
    func onePort() {
        var driver = TurnDriver()
        #expect((0..<5_000).count { _ in !plain(&driver, on: TurnDriver.flow(1)).isEmpty } == 16)
        #expect(!plain(&driver, on: TurnDriver.flow(2)).isEmpty)
    }

    @Test("Reserved ports are bounded for each user, and another has its own")
    func reservations() throws {
        var driver = TurnDriver { $0.reservationsPerUserMax = 2 }
        func code(_ port: UInt16, _ user: String) throws -> UInt16? {
            let asked = try driver.ask(.allocate, on: TurnDriver.flow(port), as: TurnDriver.user(user)) {
                $0.add(requestedTransport: 17)
                $0.add(.evenPort, [0x80])
            }
            let opened = driver.open(asked)
            return try driver.code(opened.isEmpty ? asked : opened)
        }
        #expect(try (1...4 as ClosedRange<UInt16>).map { try code($0, "ann") } == [0, 0, 508, 508])
        #expect(try code(9, "bob") == 0)
    }

    @Test("An address that proves nothing is challenged 2,048 times at once and 128 times a second, from any ports")
    func noAmplifier() {
        var driver = TurnDriver { $0.sourceRows = 8_192 }
        func answers() -> Int {
            (1...60_000 as ClosedRange<UInt16>).count { !plain(&driver, on: TurnDriver.flow($0)).isEmpty }
        }
        #expect(answers() == 2_048)
        _ = driver.advance(.seconds(2))
        #expect(answers() == 256)
    }

    @Test(
        "3,000 clients behind one address are challenged with one retransmission at most, since those before are proven"
    )
    func manyBehindOneAddress() throws {
        var driver = TurnDriver {
            $0.sourceRows = 8_192
            $0.allocationsPerUserMax = 10_000
        }
        var waiting = (1...3_000 as ClosedRange<UInt16>).map { TurnDriver.flow($0) }
        var rounds: [Int] = []
        while !waiting.isEmpty, rounds.count < 5 {
            // All ask at once, and come back with their nonce when all have asked.
            var challenged: [RelayFlow] = []
            for flow in waiting {
                guard let answer = try driver.answer(plain(&driver, on: flow)) else { continue }
                driver.nonces[flow] = try answer.text(.nonce)
                challenged.append(flow)
            }
            for flow in challenged { try driver.allocate(on: flow) }
            rounds.append(challenged.count)
            waiting.removeAll { driver.nonces[$0] != nil }
            _ = driver.advance(.milliseconds(500))
        }
        #expect(driver.machine.allocationCount == 3_000)
        #expect(rounds.count == 2, "\(rounds)")
    }
}

import ApusCore
import ApusTraversal
import Testing

@Suite("Credentials, nonces and floods (RFC 8489 §9.2, D8)")
struct TurnSecurityTests {
    private func plain(_ driver: inout TurnDriver, on flow: RelayFlow) -> [TurnAction] {
        var writer = StunWriter(StunMessageType(.request, .allocate), driver.transaction())
        writer.add(requestedTransport: 17)
        return driver.send(writer, on: flow)
    }

    @Test("A request without a credential gets 401 with realm, nonce and algorithms, and leaves nothing behind")
    func challenge() throws {
        var driver = TurnDriver()
        let answer = try #require(try driver.answer(plain(&driver, on: TurnDriver.flow())))
        #expect(try answer.errorValue()?.code == .unauthenticated)
        #expect(try answer.text(.realm) == "apus")
        #expect(try answer.text(.nonce)?.hasPrefix("obMatJos2gAAA") == true)
        #expect(answer.value(of: .passwordAlgorithms).map { Array($0) } == [0, 2, 0, 0, 0, 1, 0, 0])
        #expect(!answer.has(.messageIntegrity) && !answer.has(.software))
        #expect(answer.bytes.count <= 100)
        #expect(driver.machine.nextDeadline == nil)
    }

    @Test(
        "A bare header is not answered over UDP, and refused without a nonce where its sender is who he says",
        arguments: [StunMethod.allocate, .refresh, .createPermission, .channelBind, .connect, .connectionBind])
    func bareHeader(method: StunMethod) throws {
        var driver = TurnDriver()
        let writer = StunWriter(StunMessageType(.request, method), driver.transaction())
        #expect(driver.send(writer, on: TurnDriver.flow()).isEmpty)
        let answer = try #require(try driver.answer(driver.send(writer, on: TurnDriver.flow(transport: .tcp))))
        #expect(answer.bytes.count == 28)
        #expect(try answer.errorValue()?.code == .badRequest)
    }

    @Test("A source that asks too often is not answered, while another is; with time it is again")
    func rateLimit() throws {
        var driver = TurnDriver {
            $0.challengeBurst = 5
            $0.challengesPerSecond = 1
        }
        let answers = (0..<100).count { _ in !plain(&driver, on: TurnDriver.flow()).isEmpty }
        #expect(answers == 5)
        #expect(!plain(&driver, on: TurnDriver.flow(host: 0x0101_0101)).isEmpty)
        _ = driver.advance(.seconds(3))
        #expect((0..<100).count { _ in !plain(&driver, on: TurnDriver.flow()).isEmpty } == 3)
    }

    @Test("A flood from 100,000 invented addresses leaves no state")
    func flood() {
        var driver = TurnDriver()
        for index in 0..<100_000 {
            let host = UInt32(truncatingIfNeeded: index) &* 2_654_435_761
            _ = plain(&driver, on: TurnDriver.flow(UInt16(index & 0xffff), host: host))
        }
        #expect(driver.machine.allocationCount == 0 && driver.machine.nextDeadline == nil)
    }

    @Test("A nonce is good for its own address, not for another, and not for ever: 438")
    func nonces() throws {
        var driver = TurnDriver()
        driver.nonces[TurnDriver.flow(1)] = try driver.nonce(for: TurnDriver.flow(2))
        let other = try driver.ask(.allocate, on: TurnDriver.flow(1)) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(other) == 438)
        #expect(try driver.answer(other)?.text(.nonce) != nil)
        let user = TurnDriver.user(expiresIn: 100_000)
        _ = driver.advance(.seconds(3500))
        let good = try driver.ask(.allocate, on: TurnDriver.flow(2), as: user) { $0.add(requestedTransport: 17) }
        #expect(driver.opening(good) != nil)
        _ = driver.advance(.seconds(200))
        let stale = try driver.ask(.allocate, on: TurnDriver.flow(2), as: user) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(stale) == 438)
    }

    @Test("Another node with the same key takes the nonce; one with another key does not")
    func sharedKey() throws {
        var first = TurnDriver()
        var second = TurnDriver()
        var third = TurnDriver { $0.nonceKey = [9] }
        let nonce = try first.nonce(for: TurnDriver.flow())
        second.nonces[TurnDriver.flow()] = nonce
        third.nonces[TurnDriver.flow()] = nonce
        #expect(try second.opening(second.ask(.allocate) { $0.add(requestedTransport: 17) }) != nil)
        #expect(try third.code(third.ask(.allocate) { $0.add(requestedTransport: 17) }) == 438)
    }

    @Test("A nonce whose features were taken out is no nonce (bid-down, RFC 8489 §9.2)")
    func bidDown() throws {
        var driver = TurnDriver()
        let nonce = try driver.nonce(for: TurnDriver.flow())
        driver.nonces[TurnDriver.flow()] = "obMatJos2AAAA" + nonce.dropFirst(13)
        #expect(try driver.code(driver.ask(.allocate) { $0.add(requestedTransport: 17) }) == 438)
    }

    @Test("SHA-256 is chosen with both attributes or not at all, and answered with SHA-256")
    func passwordAlgorithms() throws {
        var driver = TurnDriver()
        let chosen = try driver.ask(.allocate, algorithm: .sha256) { $0.add(requestedTransport: 17) }
        let answer = try #require(try driver.answer(driver.open(chosen)))
        #expect(answer.integrity == .sha256)
        let half = try driver.ask(.refresh) { $0.add(.passwordAlgorithm, [0, 2, 0, 0]) }
        #expect(try driver.code(half) == 400)
        let other = try driver.ask(.refresh) { writer in
            writer.add(.passwordAlgorithms, [0, 1, 0, 0])
            writer.add(.passwordAlgorithm, [0, 1, 0, 0])
        }
        #expect(try driver.code(other) == 400)
    }

    @Test("Credentials that are wrong, ended or of no secret are 401; both live secrets are taken")
    func credentials() throws {
        var driver = TurnDriver { $0.credentials.previous = Array("south".utf8) }
        func code(_ user: (username: String, password: String)) throws -> UInt16? {
            try driver.code(driver.ask(.allocate, as: user) { $0.add(requestedTransport: 17) })
        }
        let good = TurnDriver.user()
        #expect(try code((good.username, "wrong")) == 401)
        #expect(try code(("ann", good.password)) == 401)
        #expect(try code(("9999999999:bob", good.password)) == 401)
        #expect(try code(TurnDriver.user(expiresIn: -1)) == 401)
        let strange = RelayCredentials(realm: "apus", current: Array("east".utf8))
        #expect(try code(strange.issue(user: "ann", expiry: TurnDriver.epoch + 60)) == 401)
        let older = RelayCredentials(realm: "apus", current: Array("south".utf8))
        #expect(try code(older.issue(user: "ann", expiry: TurnDriver.epoch + 60)) == nil, "it is being opened")
    }

    @Test("A credential that ended begins nothing new, but keeps what lives for the grace time")
    func expiredCredential() throws {
        var driver = TurnDriver {
            $0.credentialGrace = .seconds(1000)
            $0.nonceLifetime = .seconds(100_000)
        }
        let user = TurnDriver.user(expiresIn: 300)
        try driver.allocate(as: user)
        _ = driver.advance(.seconds(500))
        #expect(try driver.code(driver.ask(.refresh, as: user)) == 0)
        let again = try driver.ask(.allocate, on: TurnDriver.flow(2), as: user) { $0.add(requestedTransport: 17) }
        #expect(try driver.code(again) == 401)
        _ = driver.advance(.seconds(599))
        #expect(try driver.code(driver.ask(.refresh, as: user)) == 0)
        _ = driver.advance(.seconds(300))
        #expect(try driver.code(driver.ask(.refresh, as: user)) == 401)
    }

    @Test("The name and password are those that others compute")
    func issued() {
        let issuer = RelayCredentials(realm: "r", current: Array("secret".utf8))
        let issued = issuer.issue(user: "bob", expiry: 1_433_895_918)
        #expect(issued.username == "1433895918:bob")
        #expect(issued.password == "KbMMjah8XWO/RaqFnx3Lzs6zLQk=")
        #expect(RelayCredentials.parse("12:a:b")?.user == "a:b")
        #expect(RelayCredentials.parse("12")?.user == "")
        #expect(RelayCredentials.parse("x:a") == nil && RelayCredentials.parse("-1:a") == nil)
        #expect(RelayCredentials.parse("1234567890123456789:a") == nil)
    }

    @Test("USERHASH is understood for a name that was seen, and 401 for another (RFC 8489 §14.4)")
    func userhash() throws {
        var driver = TurnDriver()
        let user = TurnDriver.user()
        func ask() throws -> [TurnAction] {
            var writer = StunWriter(StunMessageType(.request, .refresh), driver.transaction())
            writer.add(.userhash, RelayCredentials.userhash(of: user.username, realm: "apus"))
            writer.add(.realm, text: "apus")
            writer.add(.nonce, text: try driver.nonce(for: TurnDriver.flow()))
            writer.addIntegrity(.sha1, key: StunKey(username: user.username, realm: "apus", password: user.password))
            return driver.send(writer, on: TurnDriver.flow())
        }
        #expect(try driver.code(ask()) == 401)
        try driver.allocate()
        #expect(try driver.code(ask()) == 0)
    }

    @Test("A live allocation answers its own user only: 441")
    func wrongUser() throws {
        var driver = TurnDriver()
        try driver.allocate()
        for method: StunMethod in [.refresh, .createPermission, .channelBind] {
            let actions = try driver.ask(method, as: TurnDriver.user("eve")) { writer in
                writer.add(channelNumber: 0x4000)
                writer.add(.xorPeerAddress, xorAddress: peer)
            }
            #expect(try driver.code(actions) == 441)
        }
    }

    @Test("Attributes that must be understood and are not are named in a 420")
    func unknown() throws {
        var driver = TurnDriver()
        let actions = try driver.ask(.allocate) { writer in
            writer.add(requestedTransport: 17)
            writer.add(StunAttribute(rawValue: 0x7abc), [])
        }
        #expect(try driver.code(actions) == 420)
        #expect(try driver.answer(actions)?.value(of: .unknownAttributes).map { Array($0) } == [0x7a, 0xbc])
    }

    @Test("What cannot be read, has a wrong fingerprint, or is an answer, is dropped without a word")
    func dropped() throws {
        var driver = TurnDriver()
        var bad = StunVectorTests.request
        bad[bad.count - 1] ^= 1
        let answers: [[UInt8]] = [[], [0], bad, StunVectorTests.responseV4, Array(StunVectorTests.request.dropLast(4))]
        for bytes in answers {
            #expect(driver.machine.receive(bytes, on: TurnDriver.flow(), at: driver.now).isEmpty)
        }
        let unknown = StunWriter(StunMessageType(.request, StunMethod(rawValue: 0x0ff)), driver.transaction())
        #expect(driver.send(unknown, on: TurnDriver.flow()).isEmpty)
    }

    @Test("Any bytes are taken in without a trap, and nobody unknown gets an answer much larger", arguments: 0..<20)
    func randomBytes(seed: UInt64) throws {
        var driver = TurnDriver()
        var random = SeededRandom(seed: seed)
        let samples = [StunVectorTests.request, StunVectorTests.longTerm, StunVectorTests.userhash]
        for round in 0..<500 {
            var bytes = samples[round % samples.count]
            bytes[1] = [1, 3, 4, 6, 8, 9, 10, 11].randomElement(using: &random) ?? 1
            for _ in 0..<Int.random(in: 0..<6, using: &random) {
                bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: 0...255, using: &random)
            }
            for case .reply(_, let answer) in driver.machine.receive(bytes, on: TurnDriver.flow(), at: driver.now) {
                #expect(answer.count <= bytes.count + 120)
            }
        }
        #expect(driver.machine.allocationCount == 0)
    }
}

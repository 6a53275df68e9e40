import ApusCore
import ApusTraversal
import Testing

@Suite("Names of TURN users (RFC 8265 §4.2)")
struct OpaqueStringTests {
    /// A signed Allocate of a name as it stands on the wire, with a key that was computed of another.
    private func code(wire: String, key: String) throws -> UInt16? {
        var driver = TurnDriver()
        let flow = TurnDriver.flow()
        let issued = TurnDriver.credentials.issue(user: key, expiry: TurnDriver.epoch + 600)
        var writer = StunWriter(StunMessageType(.request, .allocate), driver.transaction())
        writer.add(requestedTransport: 17)
        writer.add(.username, text: "\(TurnDriver.epoch + 600):\(wire)")
        writer.add(.realm, text: "apus")
        writer.add(.nonce, text: try driver.nonce(for: flow))
        writer.addIntegrity(
            .sha1, key: StunKey(username: issued.username, realm: "apus", password: issued.password))
        let asked = driver.send(writer, on: flow)
        let opened = driver.open(asked)
        return try driver.code(opened.isEmpty ? asked : opened)
    }

    @Test("A name in another form, or with another space, is the prepared one")
    func prepared() throws {
        #expect(try code(wire: "ann", key: "ann") == 0)
        #expect(try code(wire: "e\u{301}va", key: "\u{e9}va") == 0)
        #expect(try code(wire: "a\u{3000}b\u{a0}c", key: "a b c") == 0)
    }

    @Test("Names that differ by case or width are two")
    func different() throws {
        #expect(try code(wire: "Ann", key: "ann") == 401)
        #expect(try code(wire: "\u{ff41}nn", key: "ann") == 401)
    }

    @Test(
        "Control characters, joiners, private use and what is no character make no name: 400",
        arguments: ["a\nb", "a\u{1b}[2J", "a\u{7f}", "a\u{200d}b", "a\u{ad}b", "\u{e000}", "a\u{2028}b"])
    func refused(name: String) throws {
        #expect(try code(wire: name, key: name) == 400)
    }

    /// An Allocate with this name, a nonce and a code that nobody looks at.
    private func unsigned(_ name: String, nonce: String, _ driver: inout TurnDriver) throws -> UInt16? {
        var writer = StunWriter(StunMessageType(.request, .allocate), driver.transaction())
        writer.add(requestedTransport: 17)
        writer.add(.username, text: name)
        writer.add(.realm, text: "apus")
        writer.add(.nonce, text: nonce)
        writer.addIntegrity(.sha1, key: StunKey(username: name, realm: "apus", password: "wrong"))
        return try driver.code(driver.send(writer, on: TurnDriver.flow()))
    }

    @Test("No name is prepared before its sender has shown where it is, since that costs more than all else (438)")
    func afterNonce() throws {
        var driver = TurnDriver()
        #expect(try unsigned("a\u{ad}b", nonce: "old", &driver) == 438)
        #expect(try unsigned("a\u{ad}b", nonce: try driver.nonce(for: TurnDriver.flow()), &driver) == 400)
    }

    @Test("What is no name counts as a wrong credential: 64 of one client are looked at, then 16 a second")
    func bounded() throws {
        var driver = TurnDriver()
        let nonce = try driver.nonce(for: TurnDriver.flow())
        var answered = 0
        for _ in 0..<500 where try unsigned("a\u{ad}b", nonce: nonce, &driver) == 400 { answered += 1 }
        #expect(answered == 64)
        #expect(driver.machine.limitedProofCount == 436)
    }

    @Test("An issued name is prepared, so that its holder's is the one on the wire")
    func issued() {
        let issued = TurnDriver.credentials.issue(user: "e\u{301}va", expiry: 9)
        #expect(Array(issued.username.utf8) == Array("9:\u{e9}va".utf8))
    }
}

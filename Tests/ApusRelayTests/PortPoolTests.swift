import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Ports of relays (RFC 8656 §7.2)")
struct PortPoolTests {
    @Test("Every port of a range is found, however few are left, and each once")
    func all() {
        var random = SeededRandom(seed: 1)
        var pool = PortPool(50_001...50_200)
        var found: Set<UInt16> = []
        while let port = pool.take(.any, using: &random) { #expect(found.insert(port).inserted) }
        #expect(found == Set(50_001...50_200) && pool.count == 0)
        pool.give(back: 50_077)
        pool.give(back: 50_077)
        pool.give(back: 9)
        #expect(pool.count == 1 && pool.take(.any, using: &random) == 50_077)
    }

    @Test("The only even port, and the only pair, are found")
    func even() {
        var random = SeededRandom(seed: 2)
        var pool = PortPool(50_000...50_999)
        for port in 50_000...50_999 as ClosedRange<UInt16> where port % 2 == 0 && port != 50_500 { pool.take(port) }
        #expect(pool.take(.pair, using: &random) == 50_500)
        #expect(pool.take(.even, using: &random) == nil)
        pool.give(back: 50_500)
        pool.take(50_501)
        #expect(pool.take(.pair, using: &random) == nil)
        #expect(pool.take(.even, using: &random) == 50_500)
    }

    @Test("A relay gives the last port of a small range, and a port that became free again")
    func smallRange() throws {
        let relay = try RelayUnderTest(ports: 23_100...23_139)
        defer { relay.control.stop() }
        let clients = (0..<41).map { relay.client(user: "u\($0)") }
        let codes = try clients.map { try $0.code(.allocate) { $0.add(requestedTransport: 17) } }
        #expect(codes == [UInt16?](repeating: 0, count: 40) + [508])
        #expect(try clients[7].code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        // The plane closes the socket a moment later.
        var code: UInt16? = 508
        for _ in 0..<50 where code == 508 {
            code = try clients[40].code(.allocate) { $0.add(requestedTransport: 17) }
            if code == 508 { pause(milliseconds: 20) }
        }
        #expect(code == 0)
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import Foundation
import Glibc
import Testing

@Suite("Floods, replays and quotas at a relay (D8)", .serialized)
struct RelayFloodAttackTests {
    private static let methods: [StunMethod] = [
        .allocate, .refresh, .createPermission, .channelBind, .connect, .connectionBind, .send, .data,
        StunMethod(rawValue: 0x002), StunMethod(rawValue: 0xfff),
    ]

    /// Bytes that this process has in memory.
    private static func residentBytes() -> Int {
        guard let text = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8) else { return 0 }
        return text.split(separator: " ").dropFirst().first.flatMap { Int($0) }.map { $0 * 4_096 } ?? 0
    }

    private static func unauthenticatedAllocate(_ number: UInt64) -> [UInt8] {
        var writer = StunWriter(StunMessageType(.request, .allocate), TransactionID(high: 3, low: number))
        writer.add(requestedTransport: 17)
        return writer.bytes
    }

    @Test("No bare header and no garbage is answered with more than came: the relay is no amplifier")
    func amplification() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        for method in Self.methods {
            for kind in StunClass.allCases {
                client.send(StunWriter(StunMessageType(kind, method), TransactionID(high: 4, low: 4)).bytes)
            }
        }
        #expect(client.isNextAnswered(), "a bare header was answered")
        var random = SystemRandomNumberGenerator()
        for count in 1...500 {
            var garbage = (0..<count).map { _ in UInt8.random(in: 0...255, using: &random) }
            // Half of it looks like STUN.
            if count > 20, count % 2 == 0 {
                garbage.replaceSubrange(0..<2, with: [0, [1, 3, 4, 8, 9, 0x16][count / 2 % 6]])
                garbage.replaceSubrange(4..<8, with: [0x21, 0x12, 0xa4, 0x42])
            }
            client.send(garbage)
            if count % 50 == 0 { #expect(client.isNextAnswered(), "garbage was answered") }
        }
    }

    @Test(
        "A flood of Allocates of unauthenticated clients from thousands of addresses: memory stays, answers are limited"
    )
    func flood() throws {
        let relay = try RelayUnderTest {
            $0.challengeBurst = 8
            $0.challengesPerSecond = 1
        }
        defer { relay.control.stop() }
        let victim = relay.client(user: "calm")
        _ = try victim.allocate()
        var before = 0
        var answers = 0
        let start = MonotonicTime.now()
        for round in 0..<3 {
            for index in 0..<1_000 as Range<UInt32> {
                let socket = LoopbackSocket(datagramsTo: relay.endpoint, from: 0x7F01_0000 + index)
                let outsider = TurnTestClient(socket, endpoint: nil, ("", ""))
                for number in 0..<40 { outsider.send(Self.unauthenticatedAllocate(UInt64(number))) }
                while socket.receive(milliseconds: 0) != nil { answers += 1 }
            }
            if round == 0 { before = Self.residentBytes() }
        }
        let growth = Self.residentBytes() - before
        // 80,000 requests came since: a hundred bytes kept of each would show.
        #expect(growth < 6 << 20, "the process grew by \(growth) bytes")
        let seconds = Int((MonotonicTime.now() - start).components.seconds) + 1
        #expect(answers <= 1_000 * (8 + seconds), "\(answers) answers")
        #expect(try victim.code(.refresh) == 0)
    }

    @Test("One source that floods is answered its share, another is answered as before")
    func oneSource() throws {
        let relay = try RelayUnderTest {
            $0.challengeBurst = 16
            $0.challengesPerSecond = 4
        }
        defer { relay.control.stop() }
        let flooder = relay.client(from: 0x7F02_0001)
        for number in 0..<2_000 { flooder.send(Self.unauthenticatedAllocate(UInt64(number))) }
        pause(milliseconds: 100)
        var answers = 0
        while flooder.socket.receive(milliseconds: 50) != nil { answers += 1 }
        #expect((1...24).contains(answers), "\(answers) answers")
        _ = try relay.client(from: 0x7F02_0002).allocate()
    }

    @Test("A credential that has ended begins nothing, whether asked for anew or replayed from the wire")
    func expiredCredential() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let past = relay.client(expiry: Int64(time(nil)) - 1)
        #expect(try past.code(.allocate) { $0.add(requestedTransport: 17) } == 401)
        let client = relay.client(expiry: Int64(time(nil)) + 2)
        _ = try client.allocate()
        let thief = relay.client(expiry: 0)
        let captured = client.request(.allocate) { $0.add(requestedTransport: 17) }
        // From another address the nonce is not good, while the credential is.
        thief.send(captured)
        #expect(try StunMessage(try #require(thief.socket.receive())).errorValue()?.code == .staleNonce)
        #expect(try client.code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        pause(milliseconds: 3_100)
        // From the client's own address, once its time is over.
        client.send(captured)
        #expect(try StunMessage(try #require(client.socket.receive())).errorValue()?.code == .unauthenticated)
    }

    @Test("A nonce that is replayed after its lifetime is stale: 438, and the new one is good")
    func staleNonce() throws {
        let relay = try RelayUnderTest { $0.nonceLifetime = .seconds(1) }
        defer { relay.control.stop() }
        let client = relay.client()
        _ = try client.allocate()
        let captured = client.request(.refresh)
        pause(milliseconds: 3_100)
        client.send(captured)
        let answer = try StunMessage(try #require(client.socket.receive()))
        #expect(try answer.errorValue()?.code == .staleNonce)
        client.nonce = try answer.text(.nonce)
        #expect(try client.code(.refresh) == 0)
    }

    @Test("A user at his quota is refused with 486 again and again; another one's flow loses nothing by it")
    func quota() throws {
        let relay = try RelayUnderTest { $0.allocationsPerUserMax = 2 }
        defer { relay.control.stop() }
        let calm = relay.client(user: "calm")
        let peer = LoopbackSocket()
        _ = try calm.allocate()
        let bound = try calm.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(bound == 0)
        let greedy = (0..<8).map { _ in relay.client(user: "greedy") }
        let codes = try greedy.map { try $0.code(.allocate) { $0.add(requestedTransport: 17) } }
        #expect(codes == [0, 0] + [UInt16?](repeating: 486, count: 6))
        var arrived = 0
        for round in 0..<1_000 {
            for client in greedy.dropFirst(2) {
                client.send(client.request(.allocate) { $0.add(requestedTransport: 17) })
            }
            let payload = [UInt8](repeating: UInt8(truncatingIfNeeded: round), count: 200)
            calm.send(PlaneHarness.channelData(0x4001, payload))
            if peer.receive(milliseconds: 0) != nil { arrived += 1 }
        }
        while peer.receive(milliseconds: 200) != nil { arrived += 1 }
        #expect(arrived == 1_000)
        #expect(try relay.client(user: "other").code(.allocate) { $0.add(requestedTransport: 17) } == 0)
        // A place that becomes free may be taken.
        #expect(try greedy[0].code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        #expect(try relay.client(user: "greedy").code(.allocate) { $0.add(requestedTransport: 17) } == 0)
    }
}

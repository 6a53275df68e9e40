import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Testing

@Suite(
    "TCP relaying to clients over TLS, and ends that come early (RFC 6062)", .serialized,
    .enabled(if: TestCertificate.canBeMade, "openssl is not installed"))
struct SecurePeerStreamTests {
    private static let payload = (0..<1_048_576).map { UInt8(truncatingIfNeeded: $0 &* 7 ^ $0 >> 9) }

    /// A relay, a client's data connection over TLS, and the peer at its other end.
    private final class Pair {
        let relay: RelayUnderTest
        let data: SecureClient
        /// Nil once the peer has closed its connection.
        var peer: LoopbackSocket?
        private let client: TurnTestClient

        /// - Parameter receiveBytes: what the kernel keeps for the client; as much as it likes where nil.
        init(receiveBytes: Int32? = nil, streamIdleMax: Duration = .seconds(30)) throws {
            let certificate = try TestCertificate()
            let security = try EndpointSecurity(certificateFile: certificate.certificate, keyFile: certificate.key)
            relay = try RelayUnderTest(security: security, streamIdleMax: streamIdleMax) { $0.isTCPAllowed = true }
            client = relay.client(isStream: true)
            #expect(try client.code(.allocate) { $0.add(requestedTransport: 6) } == 0)
            let listener = LoopbackSocket(listening: ())
            let connected = try client.ask(.connect) { $0.add(.xorPeerAddress, xorAddress: listener.address) }
            let number = try #require(try connected.number32(.connectionID))
            peer = try #require(listener.accept()).socket
            let endpoint = relay.control.planes[0].secureStreamAddresses[0]
            data = try #require(SecureClient(endpoint, isDatagram: false, receiveBytes: receiveBytes))
            // A nonce is good for the address that it was given to.
            let issued = RelayUnderTest.credentials.issue(user: "u", expiry: 4_000_000_000)
            let asking = TurnTestClient(data.socket, endpoint: nil, issued)
            data.write(asking.request(.connectionBind) { $0.add(.connectionID, number: number) })
            asking.nonce = try StunMessage(try #require(data.receive())).text(.nonce)
            data.write(asking.request(.connectionBind) { $0.add(.connectionID, number: number) })
            #expect(try StunMessage(try #require(data.receive())).kind == .success)
        }

        deinit { relay.control.stop() }

        /// The peer says all of these bytes, and the relay has them; the client reads only as far as it must for
        /// that, and gets so many.
        ///
        /// What a peer that has closed did not yet send is lost by TCP's own rules once it is spoken to (RFC 9293
        /// §3.10.7.1), whoever relays.
        func peerSays(_ bytes: [UInt8]) -> [UInt8] {
            var sent = 0
            var received: [UInt8] = []
            while let peer {
                let count = peer.writeNow(Array(bytes[sent...]))
                sent += count
                guard count == 0 else { continue }
                if sent == bytes.count, peer.hasSentAll(within: 200) { break }
                guard let more = data.receive(), !more.isEmpty else { break }
                received += more
            }
            return received
        }
    }

    @Test("A client over TLS has what one over TCP has, both ways and to the end")
    func both() throws {
        let pair = try Pair()
        let peer = try #require(pair.peer)
        let bytes = Array(Self.payload.prefix(300_000))
        for start in stride(from: 0, to: bytes.count, by: 10_000) {
            let piece = Array(bytes[start..<start + 10_000])
            pair.data.write(piece)
            #expect(peer.receive(bytes: piece.count) == piece)
            peer.write(piece)
            #expect(pair.data.receive(bytes: piece.count) == piece)
        }
        peer.write([1, 2, 3])
        peer.end()
        #expect(pair.data.receive(bytes: 3) == [1, 2, 3])
        #expect(pair.data.receive() == [])
        // What the client still has to say is the peer's (RFC 8446 §6.1).
        pair.data.write([4, 5])
        #expect(peer.receive(bytes: 2) == [4, 5])
    }

    /// How a peer ends when it has said all.
    enum End: Sendable, CaseIterable {
        /// It listens on, or it takes nothing any more.
        case oneWay, bothWays
    }

    @Test(
        "A peer says 1 MiB and ends: a client over TLS that reads slowly, and talks on, has all of it, then the end",
        arguments: End.allCases)
    func early(end: End) throws {
        let pair = try Pair(receiveBytes: 65_536)
        var received = pair.peerSays(Self.payload)
        if end == .oneWay { pair.peer?.end() } else { pair.peer = nil }
        #expect(received.count < Self.payload.count)
        // Nothing comes any more once the connection is closed.
        while received.count < Self.payload.count, let more = pair.data.receive(), !more.isEmpty {
            received += more
            pair.data.write([7])
            pause(milliseconds: 4)
        }
        // Compared first: where two long arrays differ, the test library looks for how, for minutes.
        let isWhole = received == Self.payload
        #expect(isWhole, "\(received.count) bytes")
        #expect(pair.data.receive() == [])
    }

    @Test("D13: a client over TLS that never reads costs its ended peer's connection no longer than silence may last")
    func neverReads() throws {
        let pair = try Pair(streamIdleMax: .milliseconds(400))
        let peer = try #require(pair.peer)
        peer.write(Array(Self.payload.prefix(50_000)))
        peer.end()
        // The other direction is open until then.
        #expect(peer.receive(milliseconds: 100) == nil)
        #expect(peer.receive() == [])
    }
}

import ApusCore
import ApusTLS
import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("TLS of a client (RFC 8446): trust, resumption, and bytes", .serialized, .timeLimit(.minutes(2)))
struct TLSClientTests {
    private static let key = [UInt8](repeating: 9, count: 32)
    private static let day: Int64 = 24 * 3600

    private static func tickets(_ key: [UInt8] = key, offset: Int64 = 0) -> TLSTicketKeys {
        TLSTicketKeys(clusterKey: key, lifetime: .seconds(12 * 3600), clockOffset: offset)
    }

    private static func echo(_ room: TestRoom, _ bytes: ByteBuffer) { room.send(bytes) }

    // MARK: - Resumption

    @Test("A client resumes at another node of its cluster, more than once with one ticket, and stays able to")
    func resumesElsewhere() async throws {
        let pki = try TestPKI()
        try await TestEndpoint.with(pki: pki, tickets: Self.tickets(), onRead: Self.echo) { first in
            try await TestEndpoint.with(pki: pki, tickets: Self.tickets(), onRead: Self.echo) { second in
                let client = try ResumingClient(pki)
                #expect(try await !client.visit(first))
                // Two at once, with the same ticket, as a client does that tries two nodes.
                async let here = client.visit(first)
                async let there = client.visit(second)
                #expect(try await [here, there] == [true, true])
                for _ in 0..<3 { #expect(try await client.visit(second)) }
            }
        }
    }

    @Test(
        "A ticket is taken in its epoch and the next, and where the other clock is behind; then it is a full handshake",
        arguments: [(0, true), (12, true), (-12, true), (24, false), (-24, false), (48, false)])
    func rotation(hours: Int64, isTaken: Bool) async throws {
        let pki = try TestPKI()
        try await TestEndpoint.with(pki: pki, tickets: Self.tickets(), onRead: Self.echo) { first in
            let later = Self.tickets(offset: hours * 3600)
            try await TestEndpoint.with(pki: pki, tickets: later, onRead: Self.echo) { second in
                let client = try ResumingClient(pki)
                #expect(try await !client.visit(first))
                #expect(try await client.visit(second) == isTaken)
                // Whatever became of the old ticket, the new one is taken.
                #expect(try await client.visit(second))
            }
        }
    }

    @Test("A ticket of another cluster's key, or to a node that takes none, is a full handshake")
    func foreignKey() async throws {
        let pki = try TestPKI()
        let others = [Self.tickets([UInt8](repeating: 8, count: 32)), nil]
        try await TestEndpoint.with(pki: pki, tickets: Self.tickets(), onRead: Self.echo) { first in
            for tickets in others {
                try await TestEndpoint.with(pki: pki, tickets: tickets, onRead: Self.echo) { second in
                    let client = try ResumingClient(pki)
                    #expect(try await !client.visit(first))
                    #expect(try await client.visit(first))
                    #expect(try await !client.visit(second))
                }
            }
        }
    }

    @Test("A ticket is offered only where the certificate behind it names the server too (RFC 8446 §4.6.1)")
    func otherName() async throws {
        let pki = try TestPKI(hosts: ["endpoint.example"])
        try await TestEndpoint.with(pki: pki, tickets: Self.tickets(), onRead: Self.echo) { endpoint in
            let client = try ResumingClient(pki)
            #expect(try await !client.visit(endpoint, host: "endpoint.example"))
            #expect(try await client.visit(endpoint, host: "endpoint.example"))
            // The certificate names the address, so the connection is made; a name that it lacks proves nothing.
            #expect(try await client.visit(endpoint, host: "other.example"))
        }
    }

    @Test("Another client is served with tickets as without")
    func otherClient() async throws {
        try await TestEndpoint.with(tickets: Self.tickets(), onRead: Self.echo) { endpoint in
            let client = try await TestClient(endpoint)
            client.send(ByteBuffer(string: "x"))
            try await eventually("the echo arrived") { client.received.readableBytes == 1 }
            try await client.channel.close()
            #expect(client.errors.isEmpty)
        }
    }

    // MARK: - Trust

    @Test("A server that another authority signed is refused, and told")
    func otherAuthority() async throws {
        try await TestEndpoint.with(onRead: Self.echo) { endpoint in
            let client = try ResumingClient(try TestPKI())
            let seen = try await client.fail(port: endpoint.port)
            #expect(seen.errors.contains { $0.contains("not trusted") }, "\(seen.errors)")
            #expect(!seen.isShakenHands)
            try await eventually("the server knows") { endpoint.seen.withLock { !$0.errors.isEmpty } }
        }
    }

    @Test(
        "A certificate is taken for its names, wildcards among them, and for its addresses, as libssl takes it",
        .enabled(if: TestCertificate.canBeMade),
        arguments: [
            (nil, false), ("other.example", false), ("endpoint.example", true), ("ENDPOINT.example", true),
            ("test", false),
            ("a.wild.example", true), ("a.b.wild.example", false), ("wild.example", false),
        ] as [(String?, Bool)])
    func identity(host: String?, isTaken: Bool) async throws {
        // The subject says "test": it does not count beside alternatives.
        let own = TestPKI(try TestCertificate(addresses: ["192.0.2.7"], names: ["endpoint.example", "*.wild.example"]))
        try await TestEndpoint.with(pki: own, onRead: Self.echo) { endpoint in
            let client = try ResumingClient(own)
            if isTaken {
                #expect(try await !client.visit(endpoint, host: host))
            } else {
                let seen = try await client.fail(port: endpoint.port, host: host)
                #expect(seen.errors.contains { $0.contains("another name or address") }, "\(seen.errors)")
                #expect(!seen.isShakenHands)
            }
            var settings = OtherTLSHandler.Settings()
            settings.authority = try String(contentsOfFile: own.authority, encoding: .utf8)
            (settings.serverName, settings.host, settings.address) = (host, host, "127.0.0.1")
            let reference = try await TestClient(endpoint, settings: settings)
            reference.send(ByteBuffer(string: "x"))
            try await eventually("it is taken or not") { reference.received.readableBytes > 0 || reference.isClosed }
            #expect((reference.received.readableBytes > 0) == isTaken, "libssl decides otherwise")
        }
    }

    @Test("A server that knows TLS 1.2 only, or no TLS, is refused", arguments: [true, false])
    func oldServer(speaksTLS: Bool) async throws {
        let pki = try TestPKI()
        let server = try await OtherServer(pki, hasTLS13: !speaksTLS, speaksTLS: speaksTLS)
        let seen = try await ResumingClient(pki).fail(port: server.port)
        #expect(!seen.errors.isEmpty && !seen.isShakenHands)
        try await server.stop()
    }

    @Test("An authority's file that holds no certificate is 10022")
    func badAuthority() throws {
        #expect(throws: ApusError(.configurationInvalid)) { try TLSClientContext(authorityFile: "/nowhere.pem") }
    }

    // MARK: - Bytes

    @Test(
        "Every size from 1 byte to 1 MiB goes to another server and back whole and in order, cut at every byte or not",
        arguments: [false, true])
    func bytes(isCut: Bool) async throws {
        let pki = try TestPKI()
        let server = try await OtherServer(pki)
        let stream = isCut ? Noise.bytes(100_000) : Noise.bytes(Noise.sizes.reduce(0, +))
        let client = try ResumingClient(pki)
        let (channel, seen) = try await client.connect(
            port: server.port, before: isCut ? [Slicer()] : [])
        try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
        for piece in Noise.pieces(of: stream, sizes: isCut ? [1, 2, 16_384, 16_385] : Noise.sizes) {
            channel.writeAndFlush(piece, promise: nil)
        }
        try await eventually("the echo arrived") {
            seen.value.withLock { $0.received.readableBytes } >= stream.readableBytes
        }
        #expect(seen.value.withLock { $0.received } == stream)
        try await channel.close()
        #expect(seen.value.withLock { $0.errors }.isEmpty)
        #expect(server.errors.isEmpty, "\(server.errors)")
        try await server.stop()
    }

    @Test("The last bytes before a close arrive, and both sides say goodbye", arguments: 0..<10)
    func lastBytes(_ run: Int) async throws {
        let pki = try TestPKI()
        let bytes = Noise.bytes(300_000)
        try await TestEndpoint.with(pki: pki, closeTimeout: .seconds(60)) { _, _ in
        } _: { endpoint in
            let client = try ResumingClient(pki)
            let (channel, seen) = try await client.connect(port: endpoint.port)
            try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
            channel.writeAndFlush(bytes, promise: nil)
            try await channel.close()
            try await eventually("everything arrived") { endpoint.receivedCount >= bytes.readableBytes }
            #expect(endpoint.seen.withLock { $0.received } == bytes)
            try await eventually("the server is done with it") { endpoint.closedCount == 1 }
            #expect(endpoint.seen.withLock { $0.errors }.isEmpty)
            #expect(seen.value.withLock { $0.errors }.isEmpty)
        }
    }

    @Test("A server that closes is answered; one that breaks off is an error")
    func serverEnds() async throws {
        let pki = try TestPKI()
        try await TestEndpoint.with(pki: pki) { room, _ in
            room.close()
        } _: { endpoint in
            let client = try ResumingClient(pki)
            let (polite, seen) = try await client.connect(port: endpoint.port)
            try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
            polite.writeAndFlush(ByteBuffer(string: "x"), promise: nil)
            try await eventually("it is closed") { !polite.isActive }
            #expect(seen.value.withLock { $0.errors }.isEmpty)
        }
        let server = try await OtherServer(pki)
        let (channel, seen) = try await ResumingClient(pki).connect(port: server.port)
        try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
        try await server.breakOff()
        try await eventually("it is closed") { !channel.isActive }
        #expect(!seen.value.withLock { $0.errors }.isEmpty)
        try await server.stop()
    }
}

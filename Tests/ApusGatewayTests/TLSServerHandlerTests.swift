import ApusCore
import ApusGateway
import ApusTestKit
import NIOCore
import NIOPosix
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite(
    "TLS at the client endpoint, against another implementation (D7, RFC 8446)", .serialized, .timeLimit(.minutes(2)))
struct TLSServerHandlerTests {
    private static let stream = Noise.bytes(Noise.sizes.reduce(0, +))

    // MARK: - Bytes

    @Test("Every size from 1 byte to 1 MiB reaches a slow reader whole and in order")
    func slowReader() async throws {
        let pieces = Noise.pieces(of: Self.stream, sizes: Noise.sizes)
        try await TestEndpoint.with { room, _ in
            room.pump(pieces[...])
        } _: { endpoint in
            let client = try await TestClient(endpoint, before: [Pacer(pause: .microseconds(500))])
            client.send(ByteBuffer(string: "x"))
            try await eventually("everything arrived") { client.received.readableBytes >= Self.stream.readableBytes }
            #expect(client.received == Self.stream)
            #expect(client.errors.isEmpty)
        }
    }

    @Test("Every size from 1 byte to 1 MiB is taken by a slow endpoint whole and in order")
    func slowEndpoint() async throws {
        try await TestEndpoint.with(before: { Pacer(pause: .microseconds(200)) }) { _, _ in
        } _: { endpoint in
            let client = try await TestClient(endpoint)
            for piece in Noise.pieces(of: Self.stream, sizes: Noise.sizes) { client.send(piece) }
            try await eventually("everything arrived") { endpoint.receivedCount >= Self.stream.readableBytes }
            #expect(endpoint.seen.withLock { $0.received } == Self.stream)
            #expect(client.errors.isEmpty)
        }
    }

    @Test("Handshake, records and goodbye may be cut at every byte")
    func cutAtEveryByte() async throws {
        let bytes = Noise.bytes(100_000)
        try await TestEndpoint.with(before: { Slicer() }) { room, bytes in
            room.send(bytes)
        } _: { endpoint in
            let client = try await TestClient(endpoint)
            for piece in Noise.pieces(of: bytes, sizes: [1, 2, 16_384, 16_385, 20_000]) { client.send(piece) }
            try await eventually("the echo arrived") { client.received.readableBytes >= bytes.readableBytes }
            #expect(client.received == bytes)
            try await client.channel.close()
            #expect(client.errors.isEmpty)
        }
    }

    @Test("A record whose last byte comes alone is passed on in large parts, not byte by byte")
    func lastByteAlone() async throws {
        let bytes = Noise.bytes(16_384)
        let readCount = Mutex(0)
        try await TestEndpoint.with(before: { Slicer() }) { _, _ in
            readCount.withLock { $0 += 1 }
        } _: { endpoint in
            let client = try await TestClient(endpoint)
            client.send(bytes)
            try await eventually("everything arrived") { endpoint.receivedCount >= bytes.readableBytes }
            #expect(endpoint.seen.withLock { $0.received } == bytes)
        }
        let count = readCount.withLock { $0 }
        #expect(count <= 8, "\(count) parts")
    }

    // MARK: - The end

    @Test("A client's close_notify is answered with one before the end (RFC 8446 §6.1)", arguments: 0..<10)
    func clientCloses(_ run: Int) async throws {
        try await TestEndpoint.with { room, bytes in
            room.send(bytes)
        } _: { endpoint in
            let client = try await TestClient(endpoint)
            client.send(ByteBuffer(string: "x"))
            try await eventually("the echo arrived") { client.received.readableBytes == 1 }
            // Fails with `uncleanShutdown` where the endpoint only closes its socket.
            try await client.channel.close()
            #expect(client.errors.isEmpty)
            try await eventually("the endpoint is done with it") { endpoint.closedCount == 1 }
            #expect(endpoint.seen.withLock { $0.errors }.isEmpty)
        }
    }

    @Test("The last frame and close_notify arrive though unread input waits, and nobody waits for the time limit")
    func goodbyeArrives() async throws {
        let goodbye = ByteBuffer(string: "goodbye")
        try await TestEndpoint.with(closeTimeout: .seconds(60)) { room, _ in
            // As while a hello is checked.
            room.context?.channel.setOption(.autoRead, value: false).whenFailure { _ in }
            let time = TimeAmount.milliseconds(200)
            room.context?.eventLoop.scheduleTask(in: time) {
                room.send(goodbye)
                room.close()
            }
        } _: { endpoint in
            let client = try await TestClient(endpoint)
            client.send(ByteBuffer(string: "hello"))
            try await client.shakenHands()
            client.send(Noise.bytes(1 << 20))
            try await eventually("both sides are closed") { client.isClosed && endpoint.closedCount == 1 }
            #expect(client.received == goodbye)
            #expect(client.errors.isEmpty)
        }
    }

    @Test("A client that neither reads nor closes is let go when time is up")
    func neverCloses() async throws {
        let pacer = Pacer()
        try await TestEndpoint.with(closeTimeout: .milliseconds(100)) { room, _ in
            room.send(Noise.bytes(1 << 20))
            room.close()
            // Harmless when repeated, and nothing is sent any more.
            room.send(ByteBuffer(string: "late"))
        } _: { endpoint in
            let client = try await TestClient(endpoint, before: [pacer])
            try await client.shakenHands()
            try await client.channel.eventLoop.submit { pacer.hold() }.get()
            client.send(ByteBuffer(string: "x"))
            try await eventually("the endpoint is done with it") { endpoint.closedCount == 1 }
        }
    }

    @Test("A client that resets in the middle harms nobody: not the echo of another on the same loops")
    func resets() async throws {
        let stream = Noise.bytes(300_000, seed: 7)
        try await TestEndpoint.with { room, bytes in
            // Sends more than it was sent, so that much is on its way when the reset comes.
            if bytes.readableBytes == 3 { room.pump(Array(repeating: Noise.bytes(70_000), count: 12)[...]) }
            if bytes.readableBytes != 3 { room.send(bytes) }
        } _: { endpoint in
            let good = try await TestClient(endpoint)
            for (index, piece) in Noise.pieces(of: stream, sizes: Array(repeating: 10_000, count: 30)).enumerated() {
                let bad = try await TestClient(endpoint, before: [Pacer(pause: .milliseconds(1))])
                bad.send(ByteBuffer(string: "bad"))
                good.send(piece)
                try await eventually("it began") { bad.received.readableBytes > index * 1000 }
                try await (bad.channel as? any SocketOptionProvider)?.setSoLinger(linger(l_onoff: 1, l_linger: 0)).get()
                // TLS would say goodbye: the socket is closed under it.
                try await bad.channel.eventLoop.submit {
                    try bad.channel.pipeline.syncOperations.context(handlerType: Pacer.self).close(promise: nil)
                }.get()
            }
            try await eventually("the echo arrived") { good.received.readableBytes >= stream.readableBytes }
            #expect(good.received == stream && good.errors.isEmpty)
            try await eventually("the endpoint is done with the others") { endpoint.closedCount == 30 }
        }
    }

    // MARK: - Strangers

    @Test(
        "Who does not speak TLS 1.3 is let go at once",
        arguments: [
            Array("GET / HTTP/1.0\r\n\r\n".utf8), Array(repeating: 0x41, count: 40_000), [0x16, 3, 1, 0xff, 0xff],
            [0x16, 3, 1, 0, 5, 1, 0xff, 0xff, 0xff, 0], [0x15, 3, 3, 0, 2, 2, 0], [0x17, 3, 3, 0, 1, 0],
            [0x14, 3, 3, 0, 1, 2], Array(repeating: 0, count: 5),
        ])
    func garbage(_ bytes: [UInt8]) async throws {
        try await TestEndpoint.with(closeTimeout: .seconds(60)) { _, _ in
        } _: { endpoint in
            let outsider = try await endpoint.connectPlain()
            try await outsider.writeAndFlush(ByteBuffer(bytes: bytes))
            try await eventually("the client is closed") { endpoint.closedCount == 1 }
            #expect(endpoint.seen.withLock { $0.errors.count } == 1)
            #expect(endpoint.receivedCount == 0)
        }
    }

    @Test("A client that knows TLS 1.2 only is told and let go")
    func oldVersion() async throws {
        try await TestEndpoint.with(closeTimeout: .seconds(60)) { _, _ in
        } _: { endpoint in
            var settings = OtherTLSHandler.Settings()
            settings.hasTLS13 = false
            let client = try await TestClient(endpoint, settings: settings)
            try await eventually("it is let go") { client.isClosed && endpoint.closedCount == 1 }
            #expect(client.errors.contains { $0.contains("protocol version") }, "\(client.errors)")
        }
    }

    // MARK: - Bounds

    @Test("A client that asks and asks and never reads is not read either, and goes on where it stopped")
    func neverReads() async throws {
        let stream = Noise.bytes(8 << 20)
        let pacer = Pacer()
        try await TestEndpoint.with { room, bytes in
            room.send(bytes)
        } _: { endpoint in
            let client = try await TestClient(endpoint, before: [pacer])
            try await client.shakenHands()
            try await client.channel.eventLoop.submit { pacer.hold() }.get()
            client.send(stream)
            var (before, quiet) = (-1, 0)
            while quiet < 5, before < stream.readableBytes {
                try await Task.sleep(for: .milliseconds(100))
                let now = endpoint.receivedCount
                quiet = now == before ? quiet + 1 : 0
                before = now
            }
            #expect(before < 2 << 20)
            try await client.channel.eventLoop.submit { pacer.goOn() }.get()
            try await eventually("the echo arrived") { client.received.readableBytes >= stream.readableBytes }
            #expect(client.received == stream && client.errors.isEmpty)
        }
    }
}

import ApusCore
import ApusTLS
import ApusTestKit
import ApusTransport
import NIOCore
import NIOEmbedded
import Synchronization
import Testing

@Suite("TLS of a channel: bytes, closes and ends, against libssl alone and against itself", .timeLimit(.minutes(2)))
struct TLSHandlerTests {
    enum Peer: CaseIterable { case ours, otherClient, otherServer }

    private static func wire(_ peer: Peer = .ours, closeTimeout: Duration = .seconds(1)) throws -> Wire {
        let authority = try TestAuthority()
        let identity = try authority.node()
        var other = identity.settings
        other.authority = authority.issued.certificatePEM
        let client: any ChannelHandler
        let server: any ChannelHandler
        if peer == .otherClient {
            client = OtherTLSHandler(other)
        } else {
            let context = try TLSClientContext(trust: authority.trust, identity: identity)
            client = TLSHandler(unnamed: context, closeTimeout: closeTimeout)
        }
        if peer == .otherServer {
            other.isServer = true
            server = OtherTLSHandler(other)
        } else {
            server = TLSHandler(try TLSServerContext(identity, trust: authority.trust), closeTimeout: closeTimeout)
        }
        return try Wire(client, server)
    }

    private static func open(_ peer: Peer = .ours) throws -> Wire {
        let wire = try wire(peer)
        try wire.pump()
        try #require(wire.client.isSecured && wire.server.isSecured)
        return wire
    }

    // MARK: - Bytes

    @Test(
        "Every size passes both ways, whole and in order, however the ciphertext is cut", arguments: Peer.allCases,
        [1, 2, 7, 1000, 16_389, .max])
    func sizes(peer: Peer, pieces: Int) throws {
        let wire = try Self.wire(peer)
        defer { wire.end() }
        try wire.pump(pieces: pieces)
        #expect(wire.client.isSecured && wire.server.isSecured)
        let sizes: [Int] = [0, 1, 2, 100, 16_383, 16_384, 16_385, 40_000] + (pieces > 100 ? [1 << 20] : [])
        let stream = Noise.bytes(sizes.reduce(0, +))
        var rest = stream
        for size in sizes {
            let piece = rest.readSlice(length: size) ?? ByteBuffer()
            wire.client.send(piece)
            wire.server.send(piece)
            if size % 2 == 0 { try wire.pump(pieces: pieces) }
        }
        try wire.pump(pieces: pieces)
        #expect(wire.client.received == stream && wire.server.received == stream)
        #expect(wire.client.errors.isEmpty && wire.server.errors.isEmpty)
    }

    @Test("Megabytes pass in both directions at once", arguments: Peer.allCases)
    func large(peer: Peer) throws {
        let wire = try Self.open(peer)
        defer { wire.end() }
        let stream = Noise.bytes(5 << 20)
        wire.client.send(stream)
        wire.server.send(stream)
        try wire.pump(pieces: 65_536)
        #expect(wire.client.received == stream && wire.server.received == stream)
    }

    @Test("Writes up to a flush are one buffer for the channel, and nothing leaves without it")
    func coalesced() throws {
        let wire = try Self.open()
        defer { wire.end() }
        for round in 1...3 {
            let written = Atomic(0)
            for number in 0..<100 {
                wire.client.channel.write(ByteBuffer(string: "\(number) ")).whenSuccess {
                    written.add(1, ordering: .relaxed)
                }
            }
            #expect(try wire.client.channel.readOutbound(as: ByteBuffer.self) == nil)
            #expect(written.load(ordering: .relaxed) == 0)
            wire.client.channel.flush()
            let only = try #require(try wire.client.channel.readOutbound(as: ByteBuffer.self))
            #expect(try wire.client.channel.readOutbound(as: ByteBuffer.self) == nil)
            #expect(written.load(ordering: .relaxed) == 100)
            wire.deliver(only, to: wire.server)
            #expect(wire.server.text.hasSuffix(" 98 99 "), "\(round)")
        }
    }

    @Test("A buffer that was handed over is not changed by later writes")
    func handedOver() throws {
        let wire = try Self.open()
        defer { wire.end() }
        wire.client.send("one")
        let one = try #require(try wire.client.channel.readOutbound(as: ByteBuffer.self))
        wire.client.send("two")
        wire.deliver(one, to: wire.server)
        try wire.pump()
        #expect(wire.server.text == "onetwo")
    }

    @Test("Many records of one read are passed on together, and a large record that comes in bytes is not")
    func reads() throws {
        let wire = try Self.open()
        defer { wire.end() }
        for _ in 0..<100 { wire.client.send("x") }
        try wire.pump()
        #expect(wire.server.received.readableBytes == 100 && wire.server.readCount == 1)
        wire.client.send(Noise.bytes(16_384))
        try wire.pump(pieces: 1)
        #expect(wire.server.received.readableBytes == 16_484 && wire.server.readCount <= 4, "\(wire.server.readCount)")
    }

    @Test("What answers within a read, closes within a read, or reads within a read harms nothing")
    func reentrancy() throws {
        let wire = try Self.open()
        defer { wire.end() }
        wire.server.onRead = { side, bytes in side.send(bytes) }
        wire.client.onRead = { side, bytes in
            // A peer in the same thread, whose answer comes within this read.
            guard bytes.readableBytes == 3, side.received.readableBytes < 9 else { return }
            side.send(bytes)
            try? wire.pump()
        }
        wire.client.send("abc")
        try wire.pump()
        #expect(wire.client.text == "abcabcabcabc", "\(wire.client.text)")
        #expect(wire.client.errors.isEmpty && wire.server.errors.isEmpty)
        wire.server.onRead = { side, _ in side.channel.close(promise: nil) }
        for _ in 0..<50 { wire.client.channel.write(Noise.bytes(16_384), promise: nil) }
        wire.client.channel.flush()
        try wire.pump()
        #expect(!wire.server.channel.isActive && !wire.client.channel.isActive)
    }

    @Test("A write before the handshake fails with 21023, and so does one after the close")
    func early() throws {
        let wire = try Self.wire()
        defer { wire.end() }
        func failure() -> ErrorCode? {
            let failure = Mutex<ErrorCode?>(nil)
            wire.client.channel.writeAndFlush(ByteBuffer(string: "x")).whenFailure { error in
                failure.withLock { $0 = (error as? ApusError)?.code }
            }
            return failure.withLock { $0 }
        }
        #expect(failure() == .notConnected)
        wire.client.onSecured = { $0.send("first") }
        try wire.pump()
        #expect(wire.server.text == "first")
        wire.client.channel.close(promise: nil)
        #expect(failure() == .notConnected)
    }

    // MARK: - The end

    @Test("A close is answered with close_notify, and what was written before it arrives", arguments: Peer.allCases)
    func closes(peer: Peer) throws {
        for isClient in [true, false] {
            let wire = try Self.open(peer)
            let (near, far) = isClient ? (wire.client, wire.server) : (wire.server, wire.client)
            let isClosed = Atomic(false)
            near.channel.write(ByteBuffer(string: "last"), promise: nil)
            near.channel.close().whenSuccess { isClosed.store(true, ordering: .relaxed) }
            // A second one waits as the first one does.
            if peer == .ours { near.channel.close(promise: nil) }
            #expect(near.channel.isActive)
            try wire.pump()
            #expect(
                far.text == "last" && !near.channel.isActive && !far.channel.isActive
                    && isClosed.load(ordering: .relaxed))
            #expect(near.errors.isEmpty && far.errors.isEmpty, "\(near.errors) \(far.errors)")
        }
    }

    @Test("Who does not answer a close is let go after the time-out")
    func unanswered() throws {
        let wire = try Self.open()
        wire.client.channel.close(promise: nil)
        wire.client.channel.embeddedEventLoop.advanceTime(by: .milliseconds(900))
        #expect(wire.client.channel.isActive)
        wire.client.channel.embeddedEventLoop.advanceTime(by: .milliseconds(200))
        #expect(!wire.client.channel.isActive && wire.client.errors.isEmpty)
    }

    @Test("A close within the handshake, before it and after the end is at once")
    func otherStates() throws {
        let wire = try Self.wire()
        wire.client.channel.close(promise: nil)
        #expect(!wire.client.channel.isActive && wire.client.errors.isEmpty)
        wire.client.channel.close(promise: nil)
        let idle = try Side(TLSHandler(try TLSServerContext(try TestAuthority().node())))
        idle.channel.close(promise: nil)
        #expect(!idle.channel.isActive && idle.errors.isEmpty)
    }

    @Test("A stream that ends without close_notify is an error, in the handshake too, and promises fail")
    func truncated() throws {
        let half = try Self.wire()
        half.cut(half.client)
        half.cut(half.server)
        #expect(half.client.kinds == [.truncated] && half.server.kinds == [.truncated])
        let wire = try Self.open()
        let isFailed = Atomic(false)
        wire.client.channel.write(ByteBuffer(string: "x")).whenFailure { _ in
            isFailed.store(true, ordering: .relaxed)
        }
        wire.cut(wire.client)
        #expect(wire.client.kinds == [.truncated] && isFailed.load(ordering: .relaxed))
    }

    @Test("Data after close_notify is not passed on")
    func afterClose() throws {
        let wire = try Self.open(.otherClient)
        wire.client.channel.close(promise: nil)
        try wire.collect()
        var bytes = wire.toServer
        wire.dropClient()
        bytes.writeBytes([0x17, 3, 3, 0, 20] + [UInt8](repeating: 7, count: 20))
        wire.deliver(bytes, to: wire.server)
        #expect(wire.server.received.readableBytes == 0 && wire.server.errors.isEmpty)
        #expect(!wire.server.channel.isActive)
    }

    @Test("The end of a stream without close_notify ends one half with an error where the server allows halves")
    func truncatedHalf() throws {
        let wire = try Self.open()
        defer { wire.end() }
        wire.server.channel.pipeline.fireUserInboundEventTriggered(ChannelEvent.inputClosed)
        #expect(wire.server.kinds == [.truncated] && wire.server.isInputClosed && wire.server.channel.isActive)
        wire.server.send("answer")
        try wire.pump()
        #expect(wire.client.text == "answer")
        let half = try Self.wire()
        half.server.channel.pipeline.fireUserInboundEventTriggered(ChannelEvent.inputClosed)
        #expect(half.server.kinds == [.truncated] && !half.server.channel.isActive)
    }

    // MARK: - Strangers

    @Test(
        "Who does not speak TLS is refused at once",
        arguments: [
            Array("GET / HTTP/1.0\r\n\r\n".utf8), Array(repeating: 0x41, count: 40_000), [0x16, 3, 1, 0xff, 0xff],
            [0x16, 3, 1, 0, 5, 1, 0xff, 0xff, 0xff, 0], [0x15, 3, 3, 0, 2, 2, 0], [0x17, 3, 3, 0, 1, 0],
        ] as [[UInt8]])
    func garbage(bytes: [UInt8]) throws {
        let wire = try Self.wire()
        wire.deliver(ByteBuffer(bytes: bytes), to: wire.server)
        wire.deliver(ByteBuffer(bytes: bytes), to: wire.client)
        #expect(wire.server.kinds == [.protocolViolated] && wire.client.kinds == [.protocolViolated])
        #expect(!wire.server.channel.isActive && !wire.client.channel.isActive)
    }

    @Test("A record that was changed on its way ends the connection, and nothing of it is passed on")
    func changed() throws {
        let wire = try Self.open()
        wire.client.send("secret")
        try wire.collect()
        var bytes = wire.toServer
        let place = bytes.writerIndex - 1
        bytes.setInteger((bytes.getInteger(at: place, as: UInt8.self) ?? 0) ^ 1, at: place)
        wire.deliver(bytes, to: wire.server)
        #expect(wire.server.kinds == [.protocolViolated] && wire.server.received.readableBytes == 0)
        #expect(!wire.server.channel.isActive)
    }

    @Test("Key updates are answered, and a peer that sends nothing else is cut off")
    func keyUpdates() throws {
        let wire = try Self.open(.otherClient)
        let other = try #require(wire.client.tls as? OtherTLSHandler)
        let context = try wire.client.channel.pipeline.syncOperations.context(handler: other)
        for round in 0..<500 {
            other.updateKey(context: context)
            wire.client.send("\(round % 10)")
            wire.server.send("\(round % 10)")
            try wire.pump()
        }
        #expect(wire.server.received.readableBytes == 500 && wire.client.received.readableBytes == 500)
        for _ in 0..<500 where wire.server.channel.isActive {
            other.updateKey(context: context)
            try wire.pump()
        }
        #expect(!wire.server.channel.isActive && wire.server.kinds == [.protocolViolated])
    }
}

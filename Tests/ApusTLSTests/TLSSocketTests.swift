import ApusCore
import ApusTLS
import ApusTestKit
import NIOCore
import NIOPosix
import NIOTLS
import Synchronization
import Testing

@Suite("TLS of a channel over sockets", .timeLimit(.minutes(2)))
struct TLSSocketTests {
    @Test("A client may end its half where the server allows it, and gets the rest of the answer")
    func halves() async throws {
        let pair = try await SocketPair { server, event in
            // The answer comes after the request's end.
            guard case .inputClosed? = event as? ChannelEvent else { return }
            server.writeAndFlush(ByteBuffer(string: "answer"), promise: nil)
            server.close(promise: nil)
        }
        pair.client.write(ByteBuffer(string: "request"), promise: nil)
        try await pair.client.close(mode: .output)
        try await eventually("both are closed") { !pair.client.isActive && pair.accepted.isClosed }
        #expect(pair.accepted.text == "request" && pair.received.text == "answer")
        #expect(pair.accepted.errors.isEmpty && pair.received.errors.isEmpty)
        try await pair.listener.close()
    }

    @Test("Megabytes pass in both directions at once, and a full socket stops the writer")
    func large() async throws {
        let pair = try await SocketPair()
        let stream = Noise.bytes(16 << 20)
        let server = try #require(pair.accepted.channel)
        for channel in [pair.client, server] {
            var rest = stream
            while let piece = rest.readSlice(length: min(100_000, rest.readableBytes)), piece.readableBytes > 0 {
                channel.writeAndFlush(piece, promise: nil)
            }
        }
        try await eventually("everything arrived") {
            pair.accepted.count == stream.readableBytes && pair.received.count == stream.readableBytes
        }
        #expect(pair.accepted.bytes == stream && pair.received.bytes == stream)
        try await pair.client.setOption(.autoRead, value: false).get()
        let piece = Noise.bytes(100_000)
        var sentCount = 0
        while server.isWritable, sentCount < 1000 {
            try await server.eventLoop.submit { server.writeAndFlush(piece, promise: nil) }
                .get()
            sentCount += 1
        }
        #expect(sentCount < 1000)
        try await pair.client.setOption(.autoRead, value: true).get()
        try await eventually("the rest arrived") {
            pair.received.count == stream.readableBytes + sentCount * 100_000 && server.isWritable
        }
        try await pair.client.close()
        try await eventually("both are closed") { pair.accepted.isClosed }
        #expect(pair.accepted.errors.isEmpty && pair.received.errors.isEmpty)
        try await pair.listener.close()
    }

    @Test("A read that was asked for once goes on until it brings content")
    func reads() async throws {
        let pair = try await SocketPair()
        try await pair.client.setOption(.autoRead, value: false).get()
        let server = try #require(pair.accepted.channel)
        // A record that comes in many packets.
        try await pair.client.setOption(.recvAllocator, value: FixedSizeRecvByteBufferAllocator(capacity: 100)).get()
        pair.client.read()
        server.writeAndFlush(Noise.bytes(16_000), promise: nil)
        try await eventually("content arrived") { pair.received.count == 16_000 }
        try await pair.client.setOption(.autoRead, value: true).get()
        try await pair.client.close()
        try await pair.listener.close()
    }
}

/// A client and a server of TLS with a socket between them.
private final class SocketPair: Sendable {
    let client: any Channel
    let listener: any Channel
    let received = Received()
    let accepted = Received()

    /// - Parameter onEvent: of the server; without it the server closes when the client does.
    init(
        onEvent: @escaping @Sendable (any Channel, Any) -> Void = { server, event in
            if case .inputClosed? = event as? ChannelEvent { server.close(promise: nil) }
        }
    ) async throws {
        let authority = try TestAuthority()
        let identity = try authority.node()
        let server = try TLSServerContext(identity, trust: authority.trust)
        let connecting = try TLSClientContext(trust: authority.trust, identity: identity)
        let (accepted, received) = (accepted, received)
        listener = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .childChannelOption(.allowRemoteHalfClosure, value: true)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandlers([
                        TLSHandler(server), KeepingHandler(accepted, onEvent),
                    ])
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        client = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandlers([
                        TLSHandler(unnamed: connecting), KeepingHandler(received) { _, _ in },
                    ])
                }
            }
            .connect(host: "127.0.0.1", port: listener.localAddress?.port ?? 0).get()
        try await eventually("the handshakes are complete") { accepted.isSecured && received.isSecured }
    }
}

/// What one side has received.
private final class Received: Sendable {
    private struct State {
        var bytes = ByteBuffer()
        var errors: [String] = []
        var isSecured = false
        var isClosed = false
        var channel: (any Channel)?
    }
    private let state = Mutex(State())

    var bytes: ByteBuffer { state.withLock(\.bytes) }
    var count: Int { state.withLock { $0.bytes.readableBytes } }
    var text: String { String(buffer: bytes) }
    var errors: [String] { state.withLock(\.errors) }
    var isSecured: Bool { state.withLock(\.isSecured) }
    var isClosed: Bool { state.withLock(\.isClosed) }
    var channel: (any Channel)? { state.withLock(\.channel) }

    func add(_ bytes: ByteBuffer) { state.withLock { _ = $0.bytes.writeImmutableBuffer(bytes) } }
    func add(_ error: any Error) { state.withLock { $0.errors.append("\(error)") } }
    func secured(_ channel: any Channel) {
        state.withLock {
            $0.isSecured = true
            $0.channel = channel
        }
    }
    func closed() { state.withLock { $0.isClosed = true } }
}

private final class KeepingHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let received: Received
    private let onEvent: (any Channel, Any) -> Void

    init(_ received: Received, _ onEvent: @escaping (any Channel, Any) -> Void) {
        (self.received, self.onEvent) = (received, onEvent)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) { received.add(unwrapInboundIn(data)) }
    func errorCaught(context: ChannelHandlerContext, error: any Error) { received.add(error) }
    func channelInactive(context: ChannelHandlerContext) { received.closed() }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent { received.secured(context.channel) }
        onEvent(context.channel, event)
    }
}

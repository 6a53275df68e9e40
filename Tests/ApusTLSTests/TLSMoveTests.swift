import ApusCore
import ApusTLS
import ApusTestKit
import NIOCore
import NIOPosix
import NIOTLS
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A server's connection whose socket moves to a channel of another event loop (docs/decisions/58).
@Suite("TLS of a moved connection", .timeLimit(.minutes(2)))
struct TLSMoveTests {
    @Test("Bytes that are sent beside the channel and through it arrive in order, also where the socket is full")
    func order() async throws {
        let pair = try await MovedPair()
        defer { pair.stop() }
        // A client that does not read at first: the socket fills, and the channel keeps the rest.
        try await pair.client.setOption(.autoRead, value: false).get()
        let sizes = [1, 900, 16_384, 16_385, 40_000, 120_000]
        var sent = ByteBuffer()
        for round in 0..<200 {
            let piece = Noise.bytes(sizes[round % sizes.count])
            sent.writeImmutableBuffer(piece)
            try await pair.onServer { handler, channel in
                switch round % 5 {
                case 3: channel.writeAndFlush(piece, promise: nil)
                case 4: channel.write(piece, promise: nil)
                default: handler.send(piece)
                }
            }
        }
        try await pair.onServer { _, channel in channel.flush() }
        let isWritable = try await pair.onServer { _, channel in channel.isWritable }
        #expect(!isWritable, "the channel does not notice that its socket is full")
        try await pair.client.setOption(.autoRead, value: true).get()
        try await eventually("everything arrived") { pair.received.count == sent.readableBytes }
        #expect(pair.received.bytes == sent)
        // With the socket free again, bytes are sent beside the channel as before.
        let last = Noise.bytes(50_000)
        try await pair.onServer { handler, _ in handler.send(last) }
        try await eventually("the last bytes arrived") { pair.received.count == sent.readableBytes + 50_000 }
        #expect(pair.received.errors.isEmpty)
    }

    @Test("What the client sends arrives, and a close reaches both sides as one of TLS")
    func closing() async throws {
        let pair = try await MovedPair()
        defer { pair.stop() }
        let request = Noise.bytes(300_000)
        pair.client.writeAndFlush(request, promise: nil)
        try await eventually("the request arrived") { pair.accepted.count == 300_000 }
        #expect(pair.accepted.bytes == request)
        try await pair.onServer { handler, channel in
            handler.send(ByteBuffer(string: "the last answer"))
            channel.close(promise: nil)
            handler.send(ByteBuffer(string: "nobody gets this"))
        }
        try await eventually("both are closed") { pair.received.isClosed && pair.accepted.isClosed }
        #expect(String(buffer: pair.received.bytes) == "the last answer")
        #expect(pair.received.errors.isEmpty && pair.accepted.errors.isEmpty)
        // The handler belongs to a closed channel.
        try await pair.onServer { handler, _ in handler.send(ByteBuffer(string: "nobody")) }
    }
}

/// A client, and a server whose connection has moved to another event loop.
private final class MovedPair: Sendable {
    let client: any Channel
    let received = Kept()
    let accepted = Kept()
    private let listener: any Channel
    private let place = Mutex<(handler: TLSHandler, channel: any Channel)?>(nil)

    private struct Handler: @unchecked Sendable {  // SAFETY: used on the event loop of the other channel alone.
        let value: TLSHandler
    }

    private static let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private static let authority = Result { try TestAuthority() }

    init() async throws {
        let loops = Array(Self.group.makeIterator())
        let authority = try Self.authority.get()
        let identity = try authority.node()
        let server = try TLSServerContext(identity)
        let connecting = try TLSClientContext(trust: authority.trust)
        let (accepted, received) = (accepted, received)
        let moving = Mutex<(any Channel)?>(nil)
        listener = try await ServerBootstrap(group: loops[0])
            .childChannelInitializer { channel in
                moving.withLock { $0 = channel }
                return channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(TLSHandler(server))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        client = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandlers([
                        TLSHandler(unnamed: connecting), KeptHandler(received),
                    ])
                }
            }
            .connect(host: "127.0.0.1", port: listener.localAddress?.port ?? 0).get()
        try await eventually("the handshake is complete") { received.isSecured && moving.withLock { $0 != nil } }
        let old = try #require(moving.withLock { $0 })
        // The server completes its handshake a moment after the client.
        var moved: (socket: CInt, handler: Handler)?
        for _ in 0..<200 where moved == nil {
            moved = try await old.eventLoop.submit { try Self.take(from: old) }.get()
            if moved == nil { try await Task.sleep(for: .milliseconds(5)) }
        }
        let (socket, handler) = try #require(moved)
        let channel = try await ClientBootstrap(group: loops[1])
            .channelOption(.writeBufferWaterMark, value: .init(low: 16 << 10, high: 64 << 10))
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandlers([handler.value, KeptHandler(accepted)])
                }
            }
            .withConnectedSocket(socket).get()
        place.withLock { $0 = (handler.value, channel) }
    }

    private static func take(from channel: any Channel) throws -> (socket: CInt, handler: Handler)? {
        let pipeline = channel.pipeline.syncOperations
        guard let handler = try pipeline.handler(type: TLSHandler.self).moved() else { return nil }
        let socket = try #require(
            try pipeline.withUnsafeTransportIfAvailable(of: NIOBSDSocket.Handle.self) {
                fcntl($0, F_DUPFD_CLOEXEC, 0)
            })
        channel.close(promise: nil)
        return (socket, Handler(value: handler))
    }

    func onServer<T: Sendable>(_ body: @escaping @Sendable (TLSHandler, any Channel) -> T) async throws -> T {
        let (handler, channel) = try #require(place.withLock { $0 })
        let bound = Handler(value: handler)
        return try await channel.eventLoop.submit { body(bound.value, channel) }.get()
    }

    func stop() {
        client.close(promise: nil)
        listener.close(promise: nil)
        place.withLock { $0?.channel.close(promise: nil) }
    }
}

/// What one side has received.
private final class Kept: Sendable {
    private struct State {
        var bytes = ByteBuffer()
        var errors: [String] = []
        var isSecured = false
        var isClosed = false
    }
    private let state = Mutex(State())

    var bytes: ByteBuffer { state.withLock(\.bytes) }
    var count: Int { state.withLock { $0.bytes.readableBytes } }
    var errors: [String] { state.withLock(\.errors) }
    var isSecured: Bool { state.withLock(\.isSecured) }
    var isClosed: Bool { state.withLock(\.isClosed) }

    func add(_ bytes: ByteBuffer) { state.withLock { _ = $0.bytes.writeImmutableBuffer(bytes) } }
    func add(_ error: any Error) { state.withLock { $0.errors.append("\(error)") } }
    func secured() { state.withLock { $0.isSecured = true } }
    func closed() { state.withLock { $0.isClosed = true } }
}

private final class KeptHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let kept: Kept

    init(_ kept: Kept) { self.kept = kept }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) { kept.add(unwrapInboundIn(data)) }
    func errorCaught(context: ChannelHandlerContext, error: any Error) { kept.add(error) }
    func channelInactive(context: ChannelHandlerContext) { kept.closed() }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent { kept.secured() }
        context.fireUserInboundEventTriggered(event)
    }
}

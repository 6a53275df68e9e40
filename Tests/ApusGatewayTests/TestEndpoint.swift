import ApusCore
import ApusGateway
import ApusTLS
import ApusTestKit
import ApusTransport
import NIOCore
import NIOPosix
import Synchronization

/// What came to one side of a connection.
struct Seen: Sendable {
    var received = ByteBuffer()
    var errors: [String] = []
    var isShakenHands = false
    var openCount = 0
    var closedCount = 0
}

/// An authority, with the certificate and key of a server that it signed.
final class TestPKI: Sendable {
    let authority: String
    let certificate: String
    let key: String
    /// Keeps the files.
    private let owner: any Sendable

    /// - Parameter hosts: What the certificate is for beside this machine.
    init(hosts: [String] = []) throws {
        let folder = Folder()
        owner = folder
        (authority, certificate, key) = (folder.file("ca.pem"), folder.file("server.pem"), folder.file("server.key"))
        let issued = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test"))
        try ClusterPKI.write(issued, certificate: authority, key: folder.file("ca.key"))
        try ClusterPKI.write(
            try ClusterPKI.issueClientEndpoint(hosts: hosts, authority: issued), certificate: certificate, key: key)
    }

    /// A certificate that is its own authority.
    init(_ own: TestCertificate) {
        owner = own
        (authority, certificate, key) = (own.certificate, own.certificate, own.key)
    }
}

/// TLS as the client endpoint has it, on a socket of its own, and behind it what a test says.
final class TestEndpoint: Sendable {
    let seen = Mutex(Seen())
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let channel = Mutex<(any Channel)?>(nil)
    private let tls: TLSServerContext
    private let onRead: @Sendable (TestRoom, ByteBuffer) -> Void

    init(
        pki: TestPKI? = nil, tickets: TLSTicketKeys? = nil,
        onRead: @escaping @Sendable (TestRoom, ByteBuffer) -> Void
    ) throws {
        let pki = try pki ?? TestPKI()
        tls = try TLSServerContext(certificateFile: pki.certificate, keyFile: pki.key, tickets: tickets)
        self.onRead = onRead
    }

    /// Opens an endpoint, runs the body, and closes everything; `before` stands between the socket and TLS.
    static func with(
        pki: TestPKI? = nil, tickets: TLSTicketKeys? = nil, closeTimeout: Duration = .seconds(1),
        before: (@Sendable () -> any ChannelHandler)? = nil,
        onRead: @escaping @Sendable (TestRoom, ByteBuffer) -> Void, _ body: (TestEndpoint) async throws -> Void
    ) async throws {
        let endpoint = try TestEndpoint(pki: pki, tickets: tickets, onRead: onRead)
        try await endpoint.open(closeTimeout: closeTimeout, before: before)
        do {
            try await body(endpoint)
        } catch {
            try await endpoint.group.shutdownGracefully()
            throw error
        }
        try await endpoint.group.shutdownGracefully()
    }

    var port: Int { channel.withLock { $0?.localAddress?.port ?? 0 } }

    /// Small buffers of the kernel, so that the socket is full early and often.
    private func open(closeTimeout: Duration, before: (@Sendable () -> any ChannelHandler)?) async throws {
        let listening = try await ServerBootstrap(group: group)
            .childChannelOption(.socketOption(.so_sndbuf), value: 16 << 10)
            .childChannelOption(.socketOption(.so_rcvbuf), value: 64 << 10)
            .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
            .childChannelOption(.writeBufferWaterMark, value: .init(low: 16 << 10, high: 64 << 10))
            .childChannelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture {
                    let endpoint = TLSServerHandler(context: tls, closeTimeout: closeTimeout)
                    if let before { try channel.pipeline.syncOperations.addHandler(before()) }
                    try channel.pipeline.syncOperations.addHandler(endpoint)
                    try channel.pipeline.syncOperations.addHandler(
                        TestRoom(endpoint: endpoint, owner: self, onRead: onRead))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        channel.withLock { $0 = listening }
    }

    /// A client over plain TCP.
    func connectPlain() async throws -> any Channel {
        try await ClientBootstrap(group: group)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(IgnoringErrors())
                }
            }
            .connect(host: "127.0.0.1", port: port).get()
    }

    var receivedCount: Int { seen.withLock { $0.received.readableBytes } }
    var closedCount: Int { seen.withLock { $0.closedCount } }
}

/// What is behind the endpoint of one connection.
///
/// Confined to the connection's event loop.
final class TestRoom: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = ByteBuffer

    let endpoint: TLSServerHandler
    private(set) var context: ChannelHandlerContext?
    private let owner: TestEndpoint
    private let onRead: @Sendable (TestRoom, ByteBuffer) -> Void

    init(endpoint: TLSServerHandler, owner: TestEndpoint, onRead: @escaping @Sendable (TestRoom, ByteBuffer) -> Void) {
        self.endpoint = endpoint
        self.owner = owner
        self.onRead = onRead
    }

    func handlerAdded(context: ChannelHandlerContext) {
        self.context = context
        owner.seen.withLock { $0.openCount += 1 }
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        self.context = nil
        owner.seen.withLock { $0.closedCount += 1 }
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        var bytes = unwrapInboundIn(data)
        let copy = bytes
        owner.seen.withLock { _ = $0.received.writeBuffer(&bytes) }
        onRead(self, copy)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        owner.seen.withLock { $0.errors.append("\(error)") }
        context.close(promise: nil)
    }

    func send(_ bytes: ByteBuffer) { endpoint.send(bytes, now: .now()) }
    func close() { context?.close(promise: nil) }

    /// Sends pieces at once, soon, and a little later in turn, so that the socket is found full and free alike.
    func pump(_ pieces: ArraySlice<ByteBuffer>) {
        guard let piece = pieces.first, let eventLoop = context?.eventLoop else { return }
        send(piece)
        let rest = pieces.dropFirst()
        switch rest.count % 3 {
        case 0: pump(rest)
        case 1: eventLoop.execute { self.pump(rest) }
        default: eventLoop.scheduleTask(in: .microseconds(300)) { self.pump(rest) }
        }
    }
}

/// A client of libssl alone, without Apus's handlers.
final class TestClient: Sendable {
    let channel: any Channel
    private let seen: Collector

    /// - Parameter before: Stands between the socket and TLS.
    init(
        _ endpoint: TestEndpoint, before: [any ChannelHandler & Sendable] = [],
        settings: OtherTLSHandler.Settings = .init()
    ) async throws {
        let seen = Collector()
        self.seen = seen
        channel = try await ClientBootstrap(group: endpoint.group)
            .channelOption(.socketOption(.so_rcvbuf), value: 16 << 10)
            .channelOption(.recvAllocator, value: FixedSizeRecvByteBufferAllocator(capacity: 8 << 10))
            .channelOption(.maxMessagesPerRead, value: 1)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    let pipeline = channel.pipeline.syncOperations
                    for handler in before { try pipeline.addHandler(handler) }
                    try pipeline.addHandler(OtherTLSHandler(settings))
                    try pipeline.addHandler(CollectorHandler(seen))
                }
            }
            .connect(host: "127.0.0.1", port: endpoint.port).get()
    }

    func send(_ bytes: ByteBuffer) { channel.writeAndFlush(bytes, promise: nil) }

    func shakenHands() async throws {
        try await eventually("the handshake is done") { self.seen.value.withLock { $0.isShakenHands } }
    }

    var received: ByteBuffer { seen.value.withLock { $0.received } }
    var errors: [String] { seen.value.withLock { $0.errors } }
    var isClosed: Bool { !channel.isActive }
}

final class Collector: Sendable {
    let value = Mutex(Seen())
}

final class CollectorHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let seen: Collector

    init(_ seen: Collector) { self.seen = seen }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        seen.value.withLock { $0.isShakenHands = true }
        context.fireUserInboundEventTriggered(event)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        var bytes = unwrapInboundIn(data)
        seen.value.withLock { _ = $0.received.writeBuffer(&bytes) }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        seen.value.withLock { $0.errors.append("\(error)") }
    }
}

private final class IgnoringErrors: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {}
    func errorCaught(context: ChannelHandlerContext, error: any Error) {}
}

/// Reads from the socket only after a pause, or not at all while it is held.
final class Pacer: ChannelOutboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias OutboundIn = ByteBuffer

    private let pause: TimeAmount
    private var isHeld = false
    private var heldContext: ChannelHandlerContext?

    init(pause: TimeAmount = .zero) { self.pause = pause }

    func read(context: ChannelHandlerContext) {
        if isHeld {
            heldContext = context
        } else if pause > .zero {
            context.eventLoop.assumeIsolated().scheduleTask(in: pause) { context.read() }
        } else {
            context.read()
        }
    }

    func handlerRemoved(context: ChannelHandlerContext) { heldContext = nil }

    /// On the event loop.
    func hold() { isHeld = true }

    /// On the event loop.
    func goOn() {
        isHeld = false
        heldContext?.read()
        heldContext = nil
    }
}

/// Hands what comes on in pieces of one byte.
final class Slicer: ChannelInboundHandler, Sendable {
    typealias InboundIn = ByteBuffer
    typealias InboundOut = ByteBuffer

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        var bytes = unwrapInboundIn(data)
        while let byte = bytes.readSlice(length: 1) { context.fireChannelRead(wrapInboundOut(byte)) }
    }
}

/// Bytes of which no part is like another.
enum Noise {
    static func bytes(_ count: Int, seed: UInt64 = 1) -> ByteBuffer {
        var state = seed &* 0x9E37_79B9_7F4A_7C15 | 1
        var buffer = ByteBufferAllocator().buffer(capacity: count + 8)
        while buffer.readableBytes < count {
            state ^= state << 13
            state ^= state >> 7
            state ^= state << 17
            buffer.writeInteger(state)
        }
        return buffer.readSlice(length: count) ?? ByteBuffer()
    }

    /// Cuts bytes into pieces of these sizes; what remains is the last.
    static func pieces(of bytes: ByteBuffer, sizes: [Int]) -> [ByteBuffer] {
        var (rest, pieces) = (bytes, [ByteBuffer]())
        for size in sizes {
            if let piece = rest.readSlice(length: size) { pieces.append(piece) }
        }
        if rest.readableBytes > 0 { pieces.append(rest) }
        return pieces
    }

    /// Each size from one byte to a bit over 300, and those around the limits of records and buffers to 1 MiB.
    static let sizes: [Int] = {
        let large: [Int] = [
            4095, 4096, 4097, 16_383, 16_384, 16_385, 16_406, 32_768, 65_535, 65_536, 65_537, 262_143, 262_144, 1 << 20,
        ]
        var sizes: [Int] = []
        for size in 1...308 {
            sizes.append(size)
            if size % 22 == 0 { sizes.append(large[size / 22 - 1]) }
        }
        return sizes
    }()
}

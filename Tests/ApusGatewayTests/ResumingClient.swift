import ApusCore
import ApusTLS
import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// A client with the TLS of ours, which keeps its ticket between connections.
///
/// All its connections are on one event loop, as those of a session are.
final class ResumingClient: Sendable {
    private let context: TLSClientContext
    private let resumption = TLSResumption()
    private let loop = MultiThreadedEventLoopGroup.singleton.next()

    init(_ pki: TestPKI) throws { context = try TLSClientContext(authorityFile: pki.authority) }

    /// Connects; what comes is collected.
    func connect(
        port: Int, host: String? = nil, before: [any ChannelHandler & Sendable] = []
    ) async throws -> (channel: any Channel, seen: Collector) {
        let seen = Collector()
        let channel = try await ClientBootstrap(group: loop)
            .channelOption(.recvAllocator, value: FixedSizeRecvByteBufferAllocator(capacity: 8 << 10))
            .channelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture {
                    let pipeline = channel.pipeline.syncOperations
                    for handler in before { try pipeline.addHandler(handler) }
                    try pipeline.addHandler(TLSHandler(context, host: host, resumption: resumption))
                    try pipeline.addHandler(CollectorHandler(seen))
                }
            }
            .connect(host: "127.0.0.1", port: port).get()
        return (channel, seen)
    }

    /// Connects, has a byte echoed, and leaves; whether the session was resumed.
    func visit(_ endpoint: TestEndpoint, host: String? = nil) async throws -> Bool {
        let (channel, seen) = try await connect(port: endpoint.port, host: host)
        try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
        channel.writeAndFlush(ByteBuffer(string: "x"), promise: nil)
        try await eventually("the echo arrived") { seen.value.withLock { $0.received.readableBytes == 1 } }
        let isResumed = try await channel.eventLoop.submit {
            try channel.pipeline.syncOperations.handler(type: TLSHandler.self).isResumed
        }.get()
        try await channel.close()
        let errors = seen.value.withLock { $0.errors }
        if !errors.isEmpty { throw ApusError(.connectFailed, "\(errors)") }
        return isResumed
    }

    /// Connects where that must fail; what was seen until the end.
    func fail(port: Int, host: String? = nil) async throws -> Seen {
        let (channel, seen) = try await connect(port: port, host: host)
        try await channel.closeFuture.get()
        return seen.value.withLock { $0 }
    }
}

/// A server of libssl alone, or of no TLS, that sends back what it is sent.
final class OtherServer: Sendable {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let channel: any Channel
    private let seen = Collector()
    private let accepted = Accepted()

    init(_ pki: TestPKI, hasTLS13: Bool = true, speaksTLS: Bool = true) async throws {
        var settings = OtherTLSHandler.Settings()
        settings.isServer = true
        settings.hasTLS13 = hasTLS13
        settings.certificate = try String(contentsOfFile: pki.certificate, encoding: .utf8)
        settings.key = try String(contentsOfFile: pki.key, encoding: .utf8)
        let (tls, seen, accepted) = (settings, seen, accepted)
        channel = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    accepted.channels.withLock { $0.append(channel) }
                    let pipeline = channel.pipeline.syncOperations
                    if speaksTLS { try pipeline.addHandler(OtherTLSHandler(tls)) }
                    try pipeline.addHandler(EchoHandler(seen))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
    }

    private final class Accepted: Sendable { let channels = Mutex<[any Channel]>([]) }

    var port: Int { channel.localAddress?.port ?? 0 }
    var errors: [String] { seen.value.withLock { $0.errors } }

    /// Closes the sockets under TLS.
    func breakOff() async throws {
        for channel in accepted.channels.withLock({ $0 }) {
            try await channel.eventLoop.submit {
                try channel.pipeline.syncOperations.context(handlerType: OtherTLSHandler.self).close(promise: nil)
            }.get()
        }
    }

    func stop() async throws { try await group.shutdownGracefully() }
}

private final class EchoHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private let seen: Collector

    init(_ seen: Collector) { self.seen = seen }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        context.writeAndFlush(wrapOutboundOut(unwrapInboundIn(data)), promise: nil)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        seen.value.withLock { $0.errors.append("\(error)") }
        context.close(promise: nil)
    }
}

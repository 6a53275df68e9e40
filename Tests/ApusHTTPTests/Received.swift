import ApusCore
import NIOCore
import NIOPosix
import Synchronization

/// What a client of the listener has received, as one text.
final class Received: ChannelInboundHandler, Sendable {
    typealias InboundIn = ByteBuffer

    private let content = Mutex("")

    var text: String { content.withLock { $0 } }

    func contains(_ part: String) -> Bool { content.withLock { $0.contains(part) } }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let buffer = unwrapInboundIn(data)
        content.withLock { $0 += String(buffer: buffer) }
    }

    /// A connection to the listener. The kernel receives little ahead of the client.
    static func connect(_ address: HostPort) async throws -> (any Channel, Received) {
        let received = Received()
        let channel = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelOption(.socketOption(.so_rcvbuf), value: 1 << 18)
            .channelInitializer { $0.pipeline.addHandler(received) }
            .connect(host: address.host, port: address.port).get()
        return (channel, received)
    }
}

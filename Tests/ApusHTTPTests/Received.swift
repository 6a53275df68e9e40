import ApusCore
import NIOCore
import NIOPosix
import Synchronization

/// What a client of the listener has received.
final class Received: ChannelInboundHandler, Sendable {
    typealias InboundIn = ByteBuffer

    private let content = Mutex<[UInt8]>([])

    var bytes: [UInt8] { content.withLock { $0 } }

    var text: String { String(decoding: bytes, as: UTF8.self) }

    func contains(_ part: String) -> Bool { text.contains(part) }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let buffer = unwrapInboundIn(data)
        content.withLock { $0 += buffer.readableBytesView }
    }

    /// A connection to the listener. The kernel receives little ahead of the client.
    ///
    /// - Parameter source: the client's own address; nil: the kernel chooses it.
    static func connect(_ address: HostPort, from source: String? = nil) async throws -> (any Channel, Received) {
        let received = Received()
        var bootstrap = ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelOption(.socketOption(.so_rcvbuf), value: 1 << 18)
            .channelInitializer { $0.pipeline.addHandler(received) }
        if let source { bootstrap = bootstrap.bind(to: try SocketAddress(ipAddress: source, port: 0)) }
        return (try await bootstrap.connect(host: address.host, port: address.port).get(), received)
    }
}

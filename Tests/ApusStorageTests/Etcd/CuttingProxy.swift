import NIOCore
import NIOPosix
import Synchronization

/// A TCP proxy in front of one server, whose connections a test can cut, or whose answers it can drop.
///
/// Concurrency model: each connection and its counterpart share an event loop. A `Mutex` guards the mode.
final class CuttingProxy: Sendable {
    enum Mode: Sendable {
        /// Passes everything.
        case open
        /// Passes what clients send, and drops what the server answers.
        case dropsAnswers
        /// Closes every connection.
        case cut
    }

    private struct State: Sendable {
        var mode = Mode.open
        var channels: [ObjectIdentifier: any Channel] = [:]
        var listener: (any Channel)?
    }

    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let state = Mutex(State())

    private init() {}

    /// The port at which clients connect.
    var port: Int { state.withLock { $0.listener }?.localAddress?.port ?? 0 }

    /// Listens at the port, on loopback, for the server at another port there.
    static func open(at port: Int, to server: Int) async throws -> CuttingProxy {
        let proxy = CuttingProxy()
        let listener = try await ServerBootstrap(group: proxy.group)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelOption(.autoRead, value: false)
            .childChannelInitializer { client in proxy.connect(client, to: server) }
            .bind(host: "127.0.0.1", port: port).get()
        proxy.state.withLock { $0.listener = listener }
        return proxy
    }

    /// Changes what happens to the bytes from now on.
    func set(_ mode: Mode) {
        let channels = state.withLock { state in
            state.mode = mode
            return mode == .cut ? Array(state.channels.values) : []
        }
        for channel in channels { channel.close(promise: nil) }
    }

    func close() async throws {
        try await state.withLock { $0.listener }?.close()
        try await group.shutdownGracefully()
    }

    private func connect(_ client: any Channel, to server: Int) -> EventLoopFuture<Void> {
        guard state.withLock({ $0.mode != .cut }) else { return client.close() }
        note(client)
        return ClientBootstrap(group: client.eventLoop)
            .channelOption(.autoRead, value: false)
            .connect(host: "127.0.0.1", port: server)
            .flatMap { upstream in
                self.note(upstream)
                let loop = client.eventLoop
                return loop.submit {
                    try client.pipeline.syncOperations.addHandler(Passing(to: upstream) { true })
                    try upstream.pipeline.syncOperations.addHandler(
                        Passing(to: client) { self.state.withLock { $0.mode == .open } })
                }.flatMap {
                    client.setOption(.autoRead, value: true).and(upstream.setOption(.autoRead, value: true))
                        .map { _ in }
                }
            }
    }

    private func note(_ channel: any Channel) {
        let id = ObjectIdentifier(channel)
        state.withLock { $0.channels[id] = channel }
        channel.closeFuture.whenComplete { _ in self.state.withLock { $0.channels[id] = nil } }
    }

    /// Writes what one channel reads to another one.
    private final class Passing: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer

        private let other: any Channel
        private let isPassing: () -> Bool

        init(to other: any Channel, if isPassing: @escaping () -> Bool) {
            self.other = other
            self.isPassing = isPassing
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            let bytes = unwrapInboundIn(data)
            if isPassing() { other.writeAndFlush(bytes, promise: nil) }
        }

        func channelInactive(context: ChannelHandlerContext) {
            other.close(promise: nil)
        }
    }
}

import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A TCP proxy that is a long line: what goes through it takes half a round trip each way, a connect takes one round
/// trip more, and some connects are refused.
///
/// The kernel accepts a connection before the proxy can delay it, so the round trip of the connect is put before the
/// connection's first bytes; and a refusal is a reset right after the accept.
///
/// Concurrency model: each pair of connections is confined to one event loop; ``set(_:)`` and the counts are for any
/// thread.
final class DelayProxy: Sendable {
    /// What the line is like; it holds for what is sent from now on.
    struct Line: Sendable {
        /// There and back.
        var roundTrip: TimeAmount = .zero
        /// Of 100 connects.
        var refusedPercent = 0
    }

    private struct State {
        var line: Line
        var acceptedCount = 0
        var refusedCount = 0
    }

    private let state: Mutex<State>
    private let group: any EventLoopGroup
    private let host: String
    private let port: Int
    private let listener: Mutex<(any Channel)?> = Mutex(nil)

    /// - Parameters:
    ///   - port: of the loopback, where the proxy listens.
    ///   - target: port of the loopback, where what comes goes to.
    init(port: Int, target: Int, line: Line = Line(), group: any EventLoopGroup) async throws {
        state = Mutex(State(line: line))
        self.group = group
        host = "127.0.0.1"
        self.port = target
        let channel = try await ServerBootstrap(group: group)
            .serverChannelOption(.backlog, value: 1024)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
            .childChannelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture { try accept(channel) }
            }
            .bind(host: host, port: port).get()
        listener.withLock { $0 = channel }
    }

    func set(_ line: Line) { state.withLock { $0.line = line } }

    /// Connections since the start, refused ones included.
    var acceptedCount: Int { state.withLock { $0.acceptedCount } }
    var refusedCount: Int { state.withLock { $0.refusedCount } }

    /// Takes no more connections; those that stand go on.
    func close() async throws { try await listener.withLock { $0 }?.close() }

    /// How long bytes are on their way now.
    fileprivate var way: TimeAmount { .nanoseconds(state.withLock { $0.line.roundTrip.nanoseconds } / 2) }

    private func accept(_ channel: any Channel) throws {
        let (line, isRefused) = state.withLock { state in
            state.acceptedCount += 1
            let isRefused = Int.random(in: 0..<100) < state.line.refusedPercent
            if isRefused { state.refusedCount += 1 }
            return (state.line, isRefused)
        }
        guard !isRefused else {
            // RFC 9293 §3.6: a close that lingers for no time is a reset.
            (channel as? any SocketOptionProvider)?.setSoLinger(linger(l_onoff: 1, l_linger: 0)).whenFailure { _ in }
            throw ChannelError.eof
        }
        let loop = channel.eventLoop
        let opened = loop.makePromise(of: (any Channel).self)
        try channel.pipeline.syncOperations.addHandler(DelayedPipe(proxy: self, peer: opened.futureResult))
        let near = loop.makeSucceededFuture(channel)
        loop.scheduleTask(in: line.roundTrip) { [self] in
            ClientBootstrap(group: loop)
                .channelOption(.tcpOption(.tcp_nodelay), value: 1)
                .channelInitializer { [self] far in
                    far.eventLoop.makeCompletedFuture {
                        try far.pipeline.syncOperations.addHandler(DelayedPipe(proxy: self, peer: near))
                    }
                }
                .connect(host: host, port: port).cascade(to: opened)
        }
        opened.futureResult.whenFailure { _ in channel.close(promise: nil) }
    }
}

/// One way of a connection through a ``DelayProxy``; confined to its event loop, which is that of its peer.
private final class DelayedPipe: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to its event loop.
    typealias InboundIn = ByteBuffer

    private let proxy: DelayProxy
    private let peer: EventLoopFuture<any Channel>
    /// When what was read last arrives: nothing overtakes it.
    private var lastArrival = NIODeadline.uptimeNanoseconds(0)

    init(proxy: DelayProxy, peer: EventLoopFuture<any Channel>) {
        self.proxy = proxy
        self.peer = peer
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        deliver(on: context.eventLoop) { $0.writeAndFlush(bytes, promise: nil) }
    }

    func channelInactive(context: ChannelHandlerContext) {
        deliver(on: context.eventLoop) { $0.close(promise: nil) }
        context.fireChannelInactive()
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    private func deliver(on eventLoop: any EventLoop, _ body: @escaping @Sendable (any Channel) -> Void) {
        lastArrival = max(lastArrival, .now() + proxy.way)
        eventLoop.scheduleTask(deadline: lastArrival) { [peer] in peer.whenSuccess(body) }
    }
}

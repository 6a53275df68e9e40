import ApusCore
import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Simulates slow networks on one machine: TCP listeners that forward bytes to a target after a delay in each
/// direction, and refuse a share of the connections.
/// Limit: the TCP handshake is made with the proxy, without delay.
/// Concurrency model: connections are confined to the event loop of the proxy; methods may be called from any task.
final class DelayProxy: Sendable {
    /// The properties of a slow network.
    struct Line: Sendable {
        var roundTrip: Duration
        /// The share of connections that are reset, 0 to 1.
        var refusedShare: Double = 0
    }

    /// The maximum number of bytes in transit in one direction of a connection. Beyond it the connection is closed.
    static let pendingByteCountMax = 64 << 20

    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let line: Line
    private let random: Mutex<SeededRandom>
    private let refused = Mutex(0)

    /// - Parameter seed: determines which connections are refused.
    init(_ line: Line, seed: UInt64) {
        self.line = line
        random = Mutex(SeededRandom(seed: seed))
    }

    /// The number of refused connections.
    var refusedCount: Int { refused.withLock { $0 } }

    /// Listens at an address and forwards to the target.
    /// - Throws: 10019 if the address is in use.
    func listen(at address: HostPort, target: HostPort) async throws {
        let delay = TimeAmount.nanoseconds(line.roundTrip.nanoseconds / 2)
        do {
            _ = try await ServerBootstrap(group: group)
                .serverChannelOption(.backlog, value: 4096)
                .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
                .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
                .childChannelInitializer { [self] channel in
                    guard isTaken() else { return Self.reset(channel) }
                    return Self.connect(channel, to: target, delay: delay)
                }
                .bind(host: address.host, port: address.port).get()
        } catch {
            throw ApusError(.addressInUse, "the proxy cannot listen at \(address): \(error)")
        }
    }

    func stop() async { try? await group.shutdownGracefully() }

    private func isTaken() -> Bool {
        guard random.withLock({ $0.nextUnit() }) < line.refusedShare else { return true }
        refused.withLock { $0 += 1 }
        return false
    }

    /// Ends a connection with RST, as a host without a listener does.
    private static func reset(_ channel: any Channel) -> EventLoopFuture<Void> {
        let refusal: EventLoopFuture<Void> = channel.eventLoop.makeFailedFuture(ApusError(.connectFailed))
        guard let provider = channel as? any SocketOptionProvider else { return refusal }
        return provider.setSoLinger(linger(l_onoff: 1, l_linger: 0)).flatMap { refusal }
    }

    private static func connect(
        _ channel: any Channel, to target: HostPort, delay: TimeAmount
    ) -> EventLoopFuture<Void> {
        let near = DelayedPipe(delay: delay)
        let far = DelayedPipe(delay: delay)
        return ClientBootstrap(group: channel.eventLoop)
            .channelOption(.tcpOption(.tcp_nodelay), value: 1)
            .channelInitializer { upstream in
                far.target = channel
                return upstream.eventLoop.makeCompletedFuture {
                    try upstream.pipeline.syncOperations.addHandler(far)
                }
            }
            .connect(host: target.host, port: target.port)
            .flatMap { upstream in
                near.target = upstream
                return channel.eventLoop.makeCompletedFuture { try channel.pipeline.syncOperations.addHandler(near) }
            }
    }
}

/// Forwards what one channel receives to another after a delay, in order.
///
/// Concurrency model: confined to the one event loop of both channels.
private final class DelayedPipe: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to its event loop.
    typealias InboundIn = ByteBuffer

    private enum Item {
        case bytes(ByteBuffer)
        case end
    }

    private let delay: TimeAmount
    private var pending = CircularBuffer<Item>()
    private var pendingByteCount = 0
    var target: (any Channel)?

    init(delay: TimeAmount) { self.delay = delay }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        pendingByteCount += bytes.readableBytes
        guard pendingByteCount <= DelayProxy.pendingByteCountMax else { return context.close(promise: nil) }
        later(.bytes(bytes), on: context.eventLoop)
    }

    func channelInactive(context: ChannelHandlerContext) { later(.end, on: context.eventLoop) }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    private func later(_ item: Item, on eventLoop: any EventLoop) {
        pending.append(item)
        eventLoop.assumeIsolated().scheduleTask(in: delay) { [self] in deliver() }
    }

    /// Each task delivers the oldest item, so the result does not depend on the order of the tasks.
    private func deliver() {
        guard let item = pending.popFirst(), let target else { return }
        switch item {
        case .bytes(let bytes):
            pendingByteCount -= bytes.readableBytes
            target.writeAndFlush(bytes, promise: nil)
        case .end: target.close(promise: nil)
        }
    }
}

import ApusCore
import ApusTLS
import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Moves the socket of an upgraded connection to an event loop of the channels (docs/decisions/58).
///
/// The HTTP listener has a loop of its own, so that no scrape and no request delays a frame. It accepts the socket,
/// does the TLS handshake and reads the upgrade. Then the socket is duplicated, this channel is closed without a
/// farewell, and a channel of the other loop continues with the duplicate, the keys of TLS, and what was read.
///
/// Confined to the connection's event loop.
final class SocketMove: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    /// What the channel of the other loop begins with.
    struct Luggage: Sendable {
        /// The duplicated socket. Its receiver closes it.
        let socket: CInt
        /// Nil without TLS.
        let tls: MovedTLS?
        /// Content that was read from the socket, and that nobody has seen.
        let received: ByteBuffer
    }

    /// The handler of a connection on its way to another loop.
    struct MovedTLS: @unchecked Sendable {  // SAFETY: the old loop has given it up; the new one takes it once.
        let handler: TLSHandler
    }

    /// False while the HTTP handlers are still in the pipeline.
    private let isReady: (any Channel) -> Bool
    /// Nil: the socket could not be moved, and is closed.
    private let onMoved: (Luggage?) -> Void
    private var received = ByteBuffer()
    private var isDone = false
    private var attempts = 0
    /// Each attempt is a turn of the loop. The handlers leave in the first.
    private static let attemptsMax = 16

    init(isReady: @escaping (any Channel) -> Bool, onMoved: @escaping (Luggage?) -> Void) {
        (self.isReady, self.onMoved) = (isReady, onMoved)
    }

    func handlerAdded(context: ChannelHandlerContext) {
        try? context.channel.syncOptions?.setOption(.autoRead, value: false)
        next(context.channel)
    }

    func handlerRemoved(context: ChannelHandlerContext) { finish(nil) }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        received.writeImmutableBuffer(unwrapInboundIn(data))
    }

    /// Waits for another turn, and until everything before was sent: the answer to the upgrade.
    private func next(_ channel: any Channel) {
        let bound = NIOLoopBound(self, eventLoop: channel.eventLoop)
        channel.eventLoop.execute {
            channel.writeAndFlush(ByteBuffer()).assumeIsolated().whenComplete { _ in bound.value.move(channel) }
        }
    }

    private func move(_ channel: any Channel) {
        guard !isDone, channel.isActive else { return finish(nil) }
        let pipeline = channel.pipeline.syncOperations
        let tls = try? pipeline.handler(type: TLSHandler.self)
        let socket = isReady(channel) ? Self.duplicate(pipeline) : nil
        guard let socket else {
            attempts += 1
            guard attempts < Self.attemptsMax else {
                channel.close(promise: nil)
                return finish(nil)
            }
            return next(channel)
        }
        var moved: MovedTLS?
        if let tls {
            guard let handler = tls.moved() else {
                Self.close(socket)
                channel.close(promise: nil)
                return finish(nil)
            }
            moved = MovedTLS(handler: handler)
        }
        finish(Luggage(socket: socket, tls: moved, received: received))
        channel.close(promise: nil)
    }

    private func finish(_ luggage: Luggage?) {
        guard !isDone else { return }
        isDone = true
        onMoved(luggage)
    }

    /// Another descriptor of the same socket; nil if the process has none left.
    private static func duplicate(_ pipeline: ChannelPipeline.SynchronousOperations) -> CInt? {
        let copy = try? pipeline.withUnsafeTransportIfAvailable(of: NIOBSDSocket.Handle.self) { socket in
            fcntl(socket, F_DUPFD_CLOEXEC, 0)
        }
        return copy.flatMap { $0 >= 0 ? $0 : nil }
    }

    static func close(_ socket: CInt) {
        #if canImport(Glibc)
        _ = Glibc.close(socket)
        #elseif canImport(Musl)
        _ = Musl.close(socket)
        #endif
    }
}

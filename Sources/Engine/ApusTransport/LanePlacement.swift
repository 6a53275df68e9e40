import ApusCore
import ApusWire
import NIOCore
import NIOTLS

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The event loop of a control lane, at both of its ends.
///
/// The dialer sends the lane's number as the server name of its ClientHello (RFC 6066 §3). The acceptor therefore knows
/// it before it has read anything else. Two nodes with the same number of loops handle a shard's messages on the same
/// loop, and the lanes of a pair are never on one loop together. Before, SwiftNIO assigned loops in turn to all
/// connections: with two lanes and two loops, both lanes were on one loop in half of all cases.
///
/// The name is not authenticated when it is read. This part of it selects an event loop and nothing else.
struct LanePlacement: Sendable, Equatable {
    private static let prefix = "lane-"

    let number: UInt16

    /// - Parameters:
    ///   - number: the lane's number.
    ///   - loopCount: the dialer's loops. If there are more loops than lanes, different pairs of nodes begin at
    ///     different loops.
    init(_ number: Int, of laneCount: Int, from dialer: NodeName, to peer: NodeName, loopCount: Int) {
        guard loopCount > laneCount else {
            self.number = UInt16(truncatingIfNeeded: number)
            return
        }
        // FNV-1a, because its result is the same at every node and in every run.
        let hash = "\(dialer) \(peer)".utf8.reduce(UInt32(2_166_136_261)) { ($0 ^ UInt32($1)) &* 16_777_619 }
        self.number = UInt16(truncatingIfNeeded: (hash >> 16) &* UInt32(laneCount) &+ UInt32(number))
    }

    /// Nil if the name is not a placement. A dialer of an earlier version sends none.
    init?(serverName: String) {
        guard serverName.hasPrefix(Self.prefix), let number = UInt16(serverName.dropFirst(Self.prefix.count)) else {
            return nil
        }
        self.number = number
    }

    var serverName: String { "\(Self.prefix)\(number)" }

    func index(of loopCount: Int) -> Int { Int(number) % loopCount }
}

/// Reads the ``LaneName`` of an accepted connection, and moves the connection to another event loop, or forwards it to
/// another node, if it must.
///
/// SwiftNIO selects a loop before it reads from a connection, and cannot move a channel. This handler duplicates the
/// socket's descriptor, closes the channel, and opens another channel with the duplicate on the other loop.
///
/// Isolation: the connection's event loop.
final class LanePlacementHandler: ChannelInboundHandler, RemovableChannelHandler {
    typealias InboundIn = ByteBuffer

    struct Delegate: Sendable {
        /// The name of this node.
        var local: NodeName
        var loop: @Sendable (LanePlacement) -> any EventLoop
        /// The address to which a connection is forwarded. Throws if this node does not forward it.
        var address: @Sendable (ForwardDestination) throws(ApusError) -> HostPort
        /// Forwards the connection. The bytes read so far are passed along.
        var forward: @Sendable (any Channel, HostPort, ByteBuffer) -> Void
        /// The connection stays on its loop. Adds the handlers that read its bytes.
        var stay: @Sendable (any Channel) throws -> Void
        /// Takes over the descriptor for a channel on another loop. The bytes read so far are passed along.
        var move: @Sendable (CInt, any EventLoop, ByteBuffer) -> Void
        var failed: @Sendable (RejectReason, any Error) -> Void
    }

    private enum Target {
        case loop(any EventLoop)
        case node(HostPort)
    }

    private enum Step {
        case waiting
        case leaving(Target, ByteBuffer)
        case over
    }

    /// The longest ClientHello, in bytes: one TLS record with its header (RFC 8446 §5.1).
    static let helloByteCountMax = 5 + (1 << 14)

    private let timeout: TimeAmount
    private let delegate: Delegate
    private var step = Step.waiting
    private var timer: Scheduled<Void>?

    init(timeout: TimeAmount, delegate: Delegate) {
        (self.timeout, self.delegate) = (timeout, delegate)
    }

    /// Adds the handler to the channel. Call on the channel's loop.
    func add(to channel: any Channel) throws {
        let bound = NIOLoopBound((self, channel), eventLoop: channel.eventLoop)
        let names = SNIHandler { result in
            let (handler, channel) = bound.value
            handler.named(result, channel)
            return channel.eventLoop.makeSucceededVoidFuture()
        }
        try channel.pipeline.syncOperations.addHandlers([
            ByteToMessageHandler(names, maximumBufferSize: Self.helloByteCountMax), self,
        ])
    }

    func handlerAdded(context: ChannelHandlerContext) {
        let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
        timer = context.eventLoop.scheduleTask(in: timeout) {
            let (handler, context) = bound.value
            handler.fail(.timeout, ApusError(.handshakeTimeout), context)
        }
    }

    func handlerRemoved(context: ChannelHandlerContext) { timer?.cancel() }

    private func named(_ result: SNIResult, _ channel: any Channel) {
        guard case .waiting = step else { return }
        timer?.cancel()
        guard case .hostname(let text) = result, let name = LaneName(serverName: text) else { return stay(channel) }
        do throws(ApusError) {
            guard let target = try target(of: name, from: channel.eventLoop) else { return stay(channel) }
            step = .leaving(target, ByteBuffer())
            // The rest is read at the target.
            try? channel.syncOptions?.setOption(.autoRead, value: false)
        } catch {
            step = .over
            delegate.failed(.refused, error)
            channel.close(promise: nil)
        }
    }

    /// Where the connection continues; nil if it stays.
    private func target(of name: LaneName, from loop: any EventLoop) throws(ApusError) -> Target? {
        if let destination = name.destination, destination.node != delegate.local {
            return .node(try delegate.address(destination))
        }
        guard let wanted = name.placement.map({ delegate.loop($0) }), wanted !== loop else { return nil }
        return .loop(wanted)
    }

    private func stay(_ channel: any Channel) {
        step = .over
        do {
            try delegate.stay(channel)
            channel.pipeline.syncOperations.removeHandler(self, promise: nil)
        } catch {
            delegate.failed(.truncated, error)
            channel.close(promise: nil)
        }
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard case .leaving(let target, var bytes) = step else { return context.fireChannelRead(data) }
        if bytes.readableBytes == 0 {
            let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
            // Bytes that were read in the meantime come before this.
            context.eventLoop.execute {
                let (handler, context) = bound.value
                handler.leave(context)
            }
        }
        bytes.writeImmutableBuffer(unwrapInboundIn(data))
        step = .leaving(target, bytes)
    }

    private func leave(_ context: ChannelHandlerContext) {
        guard case .leaving(let target, let bytes) = step else { return }
        switch target {
        case .loop(let loop): move(to: loop, bytes, context)
        case .node(let address):
            step = .over
            let channel = context.channel
            context.pipeline.syncOperations.removeHandler(context: context, promise: nil)
            delegate.forward(channel, address, bytes)
        }
    }

    private func move(to loop: any EventLoop, _ bytes: ByteBuffer, _ context: ChannelHandlerContext) {
        let descriptor = try? context.pipeline.syncOperations.withUnsafeTransportIfAvailable(
            of: NIOBSDSocket.Handle.self
        ) { fcntl($0, F_DUPFD_CLOEXEC, 0) }
        if let descriptor, descriptor >= 0 {
            step = .over
            context.close(promise: nil)
            return delegate.move(descriptor, loop, bytes)
        }
        // If no descriptor is available, the connection stays on its loop.
        stay(context.channel)
        context.pipeline.fireChannelRead(bytes)
        context.pipeline.fireChannelReadComplete()
        try? context.channel.syncOptions?.setOption(.autoRead, value: true)
    }

    func channelInactive(context: ChannelHandlerContext) {
        fail(.truncated, ApusError(.linkLost, "the connection ended within the handshake"), context)
        context.fireChannelInactive()
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        if case .over = step { return context.fireErrorCaught(error) }
        fail(error is ByteToMessageDecoderError.PayloadTooLargeError ? .oversized : .truncated, error, context)
    }

    private func fail(_ reason: RejectReason, _ error: any Error, _ context: ChannelHandlerContext) {
        if case .over = step { return }
        step = .over
        delegate.failed(reason, error)
        context.close(promise: nil)
    }
}

import ApusCore
import ApusTLS
import ApusWire
import NIOCore

/// The session of an established connection. Every method is called on the connection's event loop.
protocol LaneSession: AnyObject, SendableMetatype {
    /// A read begins. ``readCompleted()`` follows.
    func readBegan()
    /// A frame arrived that is not a ping or pong.
    ///
    /// - Throws: an error that closes the link.
    func received(_ frame: LinkFrame) throws(ApusError)
    /// Some frames of a read were delivered, and more follow. The session may flush its output.
    func batchHandled()
    func readCompleted()
    func writabilityChanged()
    /// The connection ended. This is the last call.
    func closed()
}

/// Decodes the frames of an established connection, keeps the connection alive with pings, and closes it if the peer
/// violates the protocol (D3). Other connections are not affected.
final class LaneHandler<Session: LaneSession>: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    /// The number of frames of one read after which the session may flush, so that the peer has work while the rest of
    /// the read is handled. Without it the two sides of a busy link alternate. The number doubles with each flush, up
    /// to ``batchFrameCountMax``. There is no flush if fewer bytes remain than were handled since the last one: each
    /// flush costs a write of some microseconds at both ends.
    private static var batchFrameCountMin: Int { 16 }
    private static var batchFrameCountMax: Int { 128 }

    private let session: Session
    private let peer: LinkPeer
    private let isInitiator: Bool
    private let limits: Limits
    private let faulted: @Sendable (RejectReason, any Error) -> Void
    private let heard: @Sendable () -> Void
    // Confined to the event loop. Nothing calls back into this object while it uses them.
    @exclusivity(unchecked) private var decoder: LinkFrameDecoder
    @exclusivity(unchecked) private var lastRead = NIODeadline.now()
    private var lastInterval = NIODeadline.now()
    @exclusivity(unchecked) private var lastHeard = NIODeadline.uptimeNanoseconds(0)
    private var pinging: RepeatedTask?
    @exclusivity(unchecked) private var hasFaulted = false

    struct Limits: Sendable {
        var frameByteCountMax: Int
        var pingInterval: TimeAmount
        var heardInterval: TimeAmount
    }

    init(
        session: Session, peer: LinkPeer, isInitiator: Bool, limits: Limits,
        heard: @escaping @Sendable () -> Void,
        faulted: @escaping @Sendable (RejectReason, any Error) -> Void
    ) {
        self.session = session
        self.peer = peer
        self.isInitiator = isInitiator
        self.limits = limits
        self.heard = heard
        self.faulted = faulted
        decoder = LinkFrameDecoder(lengthMax: limits.frameByteCountMax + LinkFrame.lengthMin)
    }

    func handlerAdded(context: ChannelHandlerContext) {
        let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
        pinging = context.eventLoop.scheduleRepeatedTask(
            initialDelay: limits.pingInterval, delay: limits.pingInterval
        ) { _ in
            let (handler, context) = bound.value
            handler.intervalPassed(context)
        }
    }

    func handlerRemoved(context: ChannelHandlerContext) { pinging?.cancel() }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard !hasFaulted else { return }
        noteRead()
        session.readBegan()
        decoder.append(unwrapInboundIn(data))
        do throws(ApusError) {
            var (count, due) = (0, Self.batchFrameCountMin)
            var left = decoder.bufferedByteCount
            while let frame = try decoder.next() {
                count += 1
                if count >= due, decoder.bufferedByteCount >= left - decoder.bufferedByteCount {
                    session.batchHandled()
                    (count, due) = (0, min(due * 2, Self.batchFrameCountMax))
                    left = decoder.bufferedByteCount
                }
                switch frame.kind {
                case .ping: write(.pong, context)
                case .pong: break
                default: try session.received(frame)
                }
            }
        } catch {
            fault(error.code == .frameTooLarge ? .oversized : .malformed, error, context)
        }
    }

    func channelReadComplete(context: ChannelHandlerContext) { session.readCompleted() }

    func channelWritabilityChanged(context: ChannelHandlerContext) { session.writabilityChanged() }

    func channelInactive(context: ChannelHandlerContext) {
        pinging?.cancel()
        if decoder.bufferedByteCount > 0, !hasFaulted {
            hasFaulted = true
            faulted(.truncated, ApusError(.linkLost, "the connection ended within a frame"))
        }
        session.closed()
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        guard event is PeerEnded else { return context.fireUserInboundEventTriggered(event) }
        guard !hasFaulted else { return }
        hasFaulted = true
        faulted(.incarnation, ApusError(.fenced))
        let channel = context.channel
        context.eventLoop.scheduleTask(in: TimeAmount(PeerEnded.grace)) { closeAtOnce(channel) }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        // A process that is killed sends no TLS close_notify, and may reset the connection. Both are ordinary ends of a
        // link.
        if error is IOError || (error as? TLSError)?.kind == .truncated {
            context.close(promise: nil)
        } else {
            fault(.tls, error, context)
        }
    }

    private func intervalPassed(_ context: ChannelHandlerContext) {
        let now = NIODeadline.now()
        // If this node was late itself, it cannot judge the peer's silence (D4).
        let isLate = now - lastInterval > limits.pingInterval * 2
        lastInterval = now
        let silence = now - lastRead
        if isLate { lastRead = now }
        if !isLate, silence >= limits.pingInterval * 3 {
            discardUnsent(context.channel)
            fault(.silent, ApusError(.idleTimeout), context)
        } else if isInitiator, silence >= limits.pingInterval / 2 {
            write(.ping, context)
        }
    }

    private func noteRead() {
        lastRead = .now()
        guard lastRead - lastHeard >= limits.heardInterval else { return }
        lastHeard = lastRead
        heard()
    }

    private func write(_ kind: FrameKind, _ context: ChannelHandlerContext) {
        var buffer = context.channel.allocator.buffer(capacity: LinkFrame.headerByteCount)
        LinkFrame(kind: kind).encode(into: &buffer)
        context.writeAndFlush(wrapOutboundOut(buffer), promise: nil)
    }

    private func fault(_ reason: RejectReason, _ error: any Error, _ context: ChannelHandlerContext) {
        guard !hasFaulted else { return }
        hasFaulted = true
        faulted(reason, error)
        context.close(promise: nil)
    }
}

extension TimeAmount {
    fileprivate static func / (amount: TimeAmount, divisor: Int64) -> TimeAmount {
        .nanoseconds(amount.nanoseconds / divisor)
    }

    /// Converts a duration to NIO's type.
    init(_ duration: Duration) { self = .nanoseconds(duration.nanoseconds) }
}

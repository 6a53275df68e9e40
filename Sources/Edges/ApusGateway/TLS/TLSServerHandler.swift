import ApusChannels
package import ApusCore
package import ApusTLS
import CApusMemory
package import NIOCore

/// Notes when a connection was last sent something, by its slot.
protocol SendClock: AnyObject {
    func sent(_ slot: Int, now: MonotonicTime)
}

/// TLS of a client's connection, on libssl: decrypts what comes, and sends what ``send(_:now:)`` is given.
///
/// Sending does not go through the channel's pipeline. A viewer gets one buffer a frame, and the pipeline with its
/// list of pending writes cost more than the encryption (docs/decisions/5). Ciphertext goes to the socket at once;
/// only what the socket does not take goes to the channel, and all that follows until the channel has sent it, so that
/// order, water marks and writability are the channel's.
///
/// Concurrency model: confined to the channel's event loop.
package final class TLSServerHandler: ChannelInboundHandler, ChannelOutboundHandler, FramePort,
    @unchecked Sendable  // SAFETY: confined to the channel's event loop.
{
    package typealias InboundIn = ByteBuffer
    package typealias InboundOut = ByteBuffer
    package typealias OutboundIn = ByteBuffer
    package typealias OutboundOut = ByteBuffer

    private enum State {
        case handshaking
        case open
        /// close_notify is sent; what comes is dropped until the peer closes too, or time is up.
        case closing
        case closed
    }

    /// False while the socket is behind.
    package private(set) var isWritable = true
    private let context: TLSServerContext
    private let closeTimeout: TimeAmount
    private var session: TLSSession?
    private var addresses: TLSSession.Addresses?
    /// Where it is noted that bytes were sent.
    var place: (clock: any SendClock, slot: Int)?
    private var state = State.handshaking
    private var channelContext: ChannelHandlerContext?
    /// Writes that the channel has not finished; while there are any, all others queue up behind them.
    private var channelWriteCount = 0
    /// Ciphertext that came while the socket was behind, in bytes.
    private var heardWhileBehind = 0
    /// A read was asked for and waits for the socket to catch up.
    private var isReadHeld = false
    private var scratch = ByteBuffer()
    /// Only the ticket waits, and goes with the first bytes that are sent.
    private var isTicketHeld = false
    private var hasSocket = false

    /// - Parameter closeTimeout: How long the peer may take to close after the goodbye.
    package init(context: TLSServerContext, closeTimeout: Duration = .seconds(1)) {
        self.context = context
        self.closeTimeout = .nanoseconds(closeTimeout.nanoseconds)
    }

    // MARK: - The channel

    package func handlerAdded(context: ChannelHandlerContext) {
        channelContext = context
        let socket = try? context.pipeline.syncOperations.withUnsafeTransportIfAvailable(
            of: NIOBSDSocket.Handle.self
        ) { $0 }
        session = TLSSession(self.context, socket: socket ?? -1)
        addresses = session?.addresses
        // Without a socket of its own everything goes through the channel.
        hasSocket = socket != nil
        if !hasSocket { session?.setDirect(false) }
    }

    package func handlerRemoved(context: ChannelHandlerContext) { ended() }

    package func channelInactive(context: ChannelHandlerContext) {
        ended()
        context.fireChannelInactive()
    }

    /// The socket is not this connection's any more.
    private func ended() {
        state = .closed
        isWritable = false
        session = nil
        addresses = nil
        channelContext = nil
    }

    package func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        guard state == .handshaking || state == .open else { return }
        if !isWritable { heardWhileBehind += bytes.readableBytes }
        bytes.withUnsafeReadableBytes { ciphertext in
            session?.feed(ciphertext)
            if state == .handshaking { shakeHands(context: context) }
            while state == .open, readRecord(context: context, byteCountMax: bytes.readableBytes) {}
            // Reading may have made an answer, such as to a change of keys (RFC 8446 §4.6.3).
            if !isTicketHeld { sendPending() }
            session?.feed(UnsafeRawBufferPointer(start: nil, count: 0))
        }
    }

    package func channelWritabilityChanged(context: ChannelHandlerContext) {
        isWritable = context.channel.isWritable && state != .closed
        if isWritable { heardWhileBehind = 0 }
        context.fireChannelWritabilityChanged()
        if isWritable { releaseRead(context: context) }
    }

    /// A peer that asks but does not read is not read for long either: the answers would pile up here. Until then it is
    /// heard, so that a viewer on a slow line can stop its stream.
    package func read(context: ChannelHandlerContext) {
        if isWritable || state != .open || heardWhileBehind < Self.heardWhileBehindMax {
            context.read()
        } else {
            isReadHeld = true
        }
    }
    private static let heardWhileBehindMax = 16 << 10

    private func releaseRead(context: ChannelHandlerContext) {
        guard isReadHeld else { return }
        isReadHeld = false
        context.read()
    }

    private func shakeHands(context: ChannelHandlerContext) {
        let isDone = session?.handshake() ?? nil
        if isDone == true {
            // The ticket waits for what is said first: a packet of its own would cost both sides as much as that.
            state = .open
            isTicketHeld = channelWriteCount == 0 && hasSocket && session?.isWaiting == true
        }
        if !isTicketHeld { sendPending() }
        guard state == .handshaking else { return }
        if isDone == nil { fail(context: context) }
    }

    /// Hands the content of one record on, or a part of it; false when there is no more.
    ///
    /// A record's content is smaller than what came of it: room for as much as came, and most frames of audio need no
    /// more than a small piece of memory.
    private func readRecord(context: ChannelHandlerContext, byteCountMax: Int) -> Bool {
        let capacity = min(byteCountMax, Self.recordByteCountMax)
        scratch.clear(minimumCapacity: capacity)
        var read = TLSSession.Read.failed
        scratch.writeWithUnsafeMutableBytes(minimumWritableBytes: capacity) { bytes in
            read = session?.read(into: bytes) ?? .failed
            if case .bytes(let count) = read { return count }
            return 0
        }
        switch read {
        case .bytes:
            context.fireChannelRead(wrapInboundOut(scratch))
            // Asking libssl once more for nothing would cost as much as a small record.
            return session?.hasMore ?? false
        case .wantsMore:
            return false
        case .ended:
            // RFC 8446 §6.1: the peer gets a close_notify too before the end.
            sayGoodbye(context: context)
            if channelWriteCount == 0 { closeNow(context: context, promise: nil) }
            return false
        case .failed:
            fail(context: context)
            return false
        }
    }
    /// RFC 8446 §5.1.
    private static let recordByteCountMax = 1 << 14

    private func fail(context: ChannelHandlerContext) {
        guard state != .closed else { return }
        state = .closing
        let reason = TLSSession.reason()
        // The alert that says why.
        sendPending()
        context.fireErrorCaught(ApusError(.malformed, "TLS failed: \(reason)"))
        closeNow(context: context, promise: nil)
    }

    // MARK: - Out

    /// Sends bytes; nothing is sent before the handshake is done or after the end.
    package func send(_ bytes: ByteBuffer, now: MonotonicTime) {
        guard state == .open else { return }
        let waiting = bytes.withUnsafeReadableBytes { session?.write($0) } ?? nil
        if let place { place.clock.sent(place.slot, now: now) }
        if waiting == 0 { return }
        if isTicketHeld {
            isTicketHeld = false
            if session?.flush() == 0 { return }
        }
        guard waiting != nil else {
            if let channelContext { fail(context: channelContext) }
            return
        }
        sendPending()
    }

    package func prefetch() {
        guard let addresses else { return }
        apus_prefetch(addresses.connection, 64)
        apus_prefetch(addresses.library, 256)
    }

    /// Leaves the ciphertext that waits to the channel.
    private func sendPending() {
        guard let channelContext, let ciphertext = session?.takePending() else { return }
        let promise = channelContext.eventLoop.makePromise(of: Void.self)
        channelWriteCount += 1
        session?.setDirect(false)
        promise.futureResult.assumeIsolated().whenComplete { [self] _ in
            channelWriteCount -= 1
            if channelWriteCount == 0, self.channelContext?.channel.isActive == true { session?.setDirect(true) }
        }
        channelContext.writeAndFlush(wrapOutboundOut(ciphertext), promise: promise)
    }

    /// Says goodbye and waits a little for the peer to close, so that what was sent before is not lost to a reset.
    package func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        guard mode == .all else { return context.close(mode: mode, promise: promise) }
        guard state == .open else { return closeNow(context: context, promise: promise) }
        context.channel.closeFuture.cascade(to: promise)
        sayGoodbye(context: context)
        // What waits is read and dropped: the peer's end comes after it, and a socket that is closed over unread input
        // answers with a reset, which can overtake the goodbye.
        try? context.channel.syncOptions?.setOption(.autoRead, value: true)
    }

    private func sayGoodbye(context: ChannelHandlerContext) {
        state = .closing
        session?.close()
        sendPending()
        releaseRead(context: context)
        context.eventLoop.assumeIsolated().scheduleTask(in: closeTimeout) { [self] () -> Void in
            guard let channelContext else { return }
            closeNow(context: channelContext, promise: nil)
        }
    }

    private func closeNow(context: ChannelHandlerContext, promise: EventLoopPromise<Void>?) {
        if state != .closed { state = .closing }
        session?.setDirect(false)
        context.close(promise: promise)
    }
}

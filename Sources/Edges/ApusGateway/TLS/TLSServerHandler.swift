import ApusChannels
package import ApusCore
package import ApusTLS
import CApusMemory
package import NIOCore

/// Notes the time at which a connection was last sent something, by its slot.
protocol SendClock: AnyObject {
    func sent(_ slot: Int, now: MonotonicTime)
}

/// TLS of a client's connection, on libssl. Decrypts received bytes, and encrypts and sends those of ``send(_:now:)``.
/// Sending bypasses the channel's pipeline. A viewer gets one buffer per frame, and the pipeline with its list of
/// pending writes cost more than the encryption (docs/decisions/5). Ciphertext is written to the socket at once. If the
/// socket does not accept all of it, the rest is written to the channel, and so is everything after it until the
/// channel has sent it. The channel therefore determines order, water marks and writability.
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
        /// close_notify was sent. Received bytes are dropped until the peer closes too, or the time-out passes.
        case closing
        case closed
    }

    /// False while the socket is behind.
    package private(set) var isWritable = true
    let context: TLSServerContext
    private let closeTimeout: TimeAmount
    private var session: TLSSession?
    private var addresses: TLSSession.Addresses?
    /// The clock to which sends are reported, and the connection's slot there.
    var place: (clock: any SendClock, slot: Int)?
    private var state = State.handshaking
    private var channelContext: ChannelHandlerContext?
    /// The number of the channel's unfinished writes. While there are any, further writes queue behind them.
    private var channelWriteCount = 0
    /// The number of ciphertext bytes received while the socket was behind.
    private var heardWhileBehind = 0
    /// True if a read was requested and waits until the socket has caught up.
    private var isReadHeld = false
    private var scratch = ByteBuffer()
    /// True while only the session ticket is pending. It is sent with the first bytes of data.
    private var isTicketHeld = false
    private var hasSocket = false

    /// - Parameter closeTimeout: how long the peer may take to close after close_notify.
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
        // Without a socket, everything is sent through the channel.
        hasSocket = socket != nil
        if !hasSocket { session?.setDirect(false) }
    }

    package func handlerRemoved(context: ChannelHandlerContext) { ended() }

    package func channelInactive(context: ChannelHandlerContext) {
        ended()
        context.fireChannelInactive()
    }

    /// The socket no longer belongs to this connection.
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
            var capacity = min(bytes.readableBytes, Self.recordByteCountMax)
            while state == .open, let count = readRecord(context: context, capacity: capacity) {
                // A full buffer: this is a record that began in an earlier read, whose size may be many times as large.
                if count >= capacity { capacity = Self.recordByteCountMax }
            }
            // Reading may have produced a reply, for example to a key update (RFC 8446 §4.6.3).
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

    /// Stops reading from a peer that sends requests but does not read: the answers would accumulate here. A bounded
    /// number of bytes is still read, so that a viewer on a slow line can stop its stream.
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
            // The ticket is sent with the first data: a packet of its own would cost both sides as much as the data.
            state = .open
            isTicketHeld = channelWriteCount == 0 && hasSocket && session?.isWaiting == true
        }
        if !isTicketHeld { sendPending() }
        guard state == .handshaking else { return }
        if isDone == nil { fail(context: context) }
    }

    /// Passes on the content of one record, or a part of it. Returns its byte count if there is more, otherwise nil.
    /// A record's content is smaller than its ciphertext, so a buffer of the received size suffices for a record that
    /// came in one read. It is small for most frames of audio.
    private func readRecord(context: ChannelHandlerContext, capacity: Int) -> Int? {
        scratch.clear(minimumCapacity: capacity)
        var read = TLSSession.Read.failed
        scratch.writeWithUnsafeMutableBytes(minimumWritableBytes: capacity) { bytes in
            read = session?.read(into: bytes) ?? .failed
            if case .bytes(let count) = read { return count }
            return 0
        }
        switch read {
        case .bytes(let count):
            context.fireChannelRead(wrapInboundOut(scratch))
            // Another call of libssl without a result would cost as much as a small record.
            return session?.hasMore == true ? count : nil
        case .wantsMore:
            return nil
        case .ended:
            // RFC 8446 §6.1: the peer receives a close_notify before the connection closes.
            sayGoodbye(context: context)
            if channelWriteCount == 0 { closeNow(context: context, promise: nil) }
            return nil
        case .failed:
            fail(context: context)
            return nil
        }
    }
    /// RFC 8446 §5.1.
    private static let recordByteCountMax = 1 << 14

    private func fail(context: ChannelHandlerContext) {
        guard state != .closed else { return }
        state = .closing
        let reason = TLSSession.reason()
        // The TLS alert with the reason.
        sendPending()
        context.fireErrorCaught(ApusError(.malformed, "TLS failed: \(reason)"))
        closeNow(context: context, promise: nil)
    }

    // MARK: - Out

    /// Sends bytes. They are discarded before the end of the handshake and after the close.
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

    /// Writes the pending ciphertext to the channel.
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

    /// Sends close_notify and waits for a bounded time until the peer closes, so that a reset does not discard sent
    /// data.
    package func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        guard mode == .all else { return context.close(mode: mode, promise: promise) }
        guard state == .open else { return closeNow(context: context, promise: promise) }
        context.channel.closeFuture.cascade(to: promise)
        sayGoodbye(context: context)
        // Pending input is read and dropped. The peer's close arrives after it, and closing a socket with unread input
        // sends a reset, which can overtake the close_notify.
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

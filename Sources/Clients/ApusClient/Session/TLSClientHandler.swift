import ApusCore
package import ApusTLS
package import NIOCore
import NIOTLS

/// TLS of a client's connection, on libssl: does the handshake, checks the server's certificate, encrypts and decrypts.
/// Unlike NIOSSL it resumes sessions, at any node of the cluster (RFC 8446 §2.2).
///
/// Fires `TLSUserEvent.handshakeCompleted` when bytes may be written. Earlier writes fail with 21023. Errors are 21022,
/// with libssl's reason.
///
/// Concurrency model: confined to the channel's event loop.
package final class TLSClientHandler: ChannelDuplexHandler {
    package typealias InboundIn = ByteBuffer
    package typealias InboundOut = ByteBuffer
    package typealias OutboundIn = ByteBuffer
    package typealias OutboundOut = ByteBuffer

    private enum State {
        case idle
        case handshaking
        case open
        /// close_notify is sent. Received data is dropped until the server closes too, or the time-out.
        case closing
        case closed
    }

    private let context: TLSClientContext
    private let host: String?
    private let resumption: TLSResumption?
    private let closeTimeout: TimeAmount
    private var address: String?
    private var session: TLSSession?
    private var state = State.idle
    /// True if the handshake used a ticket; false before it is complete.
    package private(set) var isResumed = false

    /// - Parameters:
    ///   - host: The server's name. Nil if it was given as an address, which its certificate must then name.
    ///   - resumption: Stores tickets between connections. With nil every handshake is a full one.
    ///   - closeTimeout: How long to wait for the server to close after this side did.
    package init(
        context: TLSClientContext, host: String?, resumption: TLSResumption?, closeTimeout: Duration = .seconds(1)
    ) {
        self.context = context
        self.host = host
        self.resumption = resumption
        self.closeTimeout = .nanoseconds(closeTimeout.nanoseconds)
    }

    // MARK: - The channel

    package func handlerAdded(context: ChannelHandlerContext) {
        if context.channel.isActive { begin(context: context) }
    }

    package func handlerRemoved(context: ChannelHandlerContext) { ended() }

    package func channelActive(context: ChannelHandlerContext) {
        begin(context: context)
        context.fireChannelActive()
    }

    package func channelInactive(context: ChannelHandlerContext) {
        if state == .handshaking || state == .open {
            // RFC 8446 §6.1: without a close_notify anyone may have ended the connection.
            context.fireErrorCaught(ApusError(.connectFailed, "the server broke off"))
        }
        ended()
        context.fireChannelInactive()
    }

    private func ended() {
        state = .closed
        session = nil
    }

    private func begin(context: ChannelHandlerContext) {
        guard state == .idle else { return }
        state = .handshaking
        address = context.remoteAddress?.ipAddress
        session = TLSSession(self.context, host: host, address: address, resumption: resumption)
        if session == nil {
            context.fireErrorCaught(ApusError(.connectFailed, "TLS cannot be started; check that the name is valid"))
            return context.close(promise: nil)
        }
        shakeHands(context: context)
    }

    package func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        guard state == .handshaking || state == .open || state == .closing else { return }
        bytes.withUnsafeReadableBytes { ciphertext in
            session?.feed(ciphertext)
            if state == .handshaking { shakeHands(context: context) }
            while state == .open || state == .closing, read(context: context, byteCountMax: bytes.readableBytes) {}
            // The read may have produced an answer, for example to a key update (RFC 8446 §4.6.3).
            if state != .closed { sendPending(context: context) }
            session?.feed(UnsafeRawBufferPointer(start: nil, count: 0))
        }
    }

    private func shakeHands(context: ChannelHandlerContext) {
        let isDone = session?.handshake() ?? nil
        guard let isDone else { return fail(context: context, session?.connectingReason() ?? "it is closed") }
        guard isDone else { return sendPending(context: context) }
        guard session?.isFor(host: host, address: address) == true else {
            return fail(context: context, "the server's certificate is for another name or address")
        }
        isResumed = session?.isResumed ?? false
        state = .open
        // The first data is sent in one packet with the end of the handshake.
        if let ciphertext = session?.takePending() { context.write(wrapOutboundOut(ciphertext), promise: nil) }
        context.fireUserInboundEventTriggered(TLSUserEvent.handshakeCompleted(negotiatedProtocol: nil))
        context.flush()
    }

    /// Passes on the contents of the received records. Returns false when there is no more.
    private func read(context: ChannelHandlerContext, byteCountMax: Int) -> Bool {
        var content = context.channel.allocator.buffer(capacity: byteCountMax)
        var last = TLSSession.Read.wantsMore
        repeat {
            content.writeWithUnsafeMutableBytes(minimumWritableBytes: 1) { bytes in
                last = session?.read(into: bytes) ?? .failed
                if case .bytes(let count) = last { return count }
                return 0
            }
            guard case .bytes = last else { break }
        } while session?.hasMore == true && content.writableBytes > 0
        if content.readableBytes > 0, state == .open { context.fireChannelRead(wrapInboundOut(content)) }
        switch last {
        case .bytes: return session?.hasMore ?? false
        case .wantsMore: return false
        case .ended:
            if state == .open { session?.close() }
            sendPending(context: context)
            if state != .closed {
                state = .closing
                context.close(promise: nil)
            }
            return false
        case .failed:
            if state == .open { fail(context: context, TLSSession.reason()) }
            return false
        }
    }

    private func fail(context: ChannelHandlerContext, _ reason: String) {
        guard state != .closed else { return }
        state = .closed
        // Sends the alert with the reason.
        sendPending(context: context)
        context.fireErrorCaught(ApusError(.connectFailed, "TLS failed: \(reason)"))
        context.close(promise: nil)
    }

    // MARK: - Out

    package func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        guard state == .open else { return promise?.fail(ApusError(.notConnected)) ?? () }
        let bytes = unwrapOutboundIn(data)
        let waiting = bytes.withUnsafeReadableBytes { session?.write($0) } ?? nil
        guard waiting != nil, let ciphertext = session?.takePending() else {
            promise?.fail(ApusError(.linkLost))
            if waiting == nil { fail(context: context, TLSSession.reason()) }
            return
        }
        context.write(wrapOutboundOut(ciphertext), promise: promise)
    }

    private func sendPending(context: ChannelHandlerContext) {
        guard let ciphertext = session?.takePending() else { return }
        context.writeAndFlush(wrapOutboundOut(ciphertext), promise: nil)
    }

    /// Sends close_notify and waits briefly for the server to close, so that a reset does not discard data that was
    /// sent before.
    package func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        guard mode == .all, state == .open else { return context.close(mode: mode, promise: promise) }
        state = .closing
        context.channel.closeFuture.cascade(to: promise)
        session?.close()
        sendPending(context: context)
        let bound = NIOLoopBound(context, eventLoop: context.eventLoop)
        let timeout = context.eventLoop.scheduleTask(in: closeTimeout) { bound.value.close(promise: nil) }
        context.channel.closeFuture.whenComplete { _ in timeout.cancel() }
    }
}

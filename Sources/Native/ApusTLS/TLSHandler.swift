import ApusCore
package import NIOCore
import NIOTLS

/// TLS of one connection of a channel, as client or server, on libssl: does the handshake, checks the peer's
/// certificate, encrypts and decrypts.
///
/// Fires `TLSUserEvent.handshakeCompleted` when bytes may be written. Earlier writes fail with 21023. Errors are
/// ``TLSError``, and end the connection. A close sends close_notify, and waits briefly for the peer to close.
///
/// Writes are encrypted at once, one behind the other in one buffer, which the flush hands to the channel. A connection
/// that was moved to another channel (``moved()``) also has ``send(_:)``, which writes ciphertext to the socket itself.
///
/// Concurrency model: confined to the channel's event loop.
package final class TLSHandler: ChannelDuplexHandler {
    package typealias InboundIn = ByteBuffer
    package typealias InboundOut = ByteBuffer
    package typealias OutboundIn = ByteBuffer
    package typealias OutboundOut = ByteBuffer

    private enum Side {
        case server(TLSServerContext)
        case client(TLSClientContext, host: String?, checksName: Bool, TLSResumption?)
    }

    private enum State {
        case idle
        case handshaking
        case open
        /// close_notify is written. Received data is dropped until the peer closes too, or the time-out.
        case closing
        case closed
    }

    private let side: Side
    private let closeTimeout: TimeAmount
    private var address: String?
    private var session: TLSSession?
    private var state = State.idle
    /// The peer sends no more: its close_notify or the end of the stream was received.
    private var isInputOver = false
    /// close_notify was produced; nothing may be encrypted any more.
    private var isOutputOver = false
    /// The channel has sent the close_notify.
    private var isGoodbyeSent = false
    /// Ciphertext that waits for a flush, or, if `isOutputTaken`, that the channel has taken.
    private var output = ByteBuffer()
    private var isOutputTaken = false
    /// Of the writes in `output`.
    private var promise: EventLoopPromise<Void>?
    /// The memory of the content that was passed on last. It is reused where nobody keeps it.
    private var content = ByteBuffer()
    private var hasDelivered = false
    private var isReading = false
    private var readMeanwhile: [ByteBuffer] = []
    /// Of answers to the peer's protocol messages since it sent content.
    private var answerByteCount = 0
    /// A larger buffer is not kept for reuse, in bytes.
    private var keptByteCountMax = 256 << 10
    /// Set in a channel to which the connection was moved: ``send(_:)`` writes to its socket.
    private var direct: ChannelHandlerContext?
    /// The number of the channel's unfinished writes, counted if there is a socket. While there are any, further ones
    /// queue behind them.
    private var channelWriteCount = 0
    /// True if the handshake used a ticket; false before it is complete.
    package private(set) var isResumed = false

    /// RFC 8446 §5.1.
    private static let recordByteCountMax = 1 << 14
    /// ``keptByteCountMax`` of a moved connection. There are thousands, and their frames need no buffer here.
    private static let movedKeptByteCountMax = 16 << 10
    /// A peer that requests more than this without sending content is cut off: it could make this side keep answers
    /// that it never reads.
    private static let answerByteCountMax = 4096

    private init(_ side: Side, _ closeTimeout: Duration) {
        self.side = side
        self.closeTimeout = .nanoseconds(closeTimeout.nanoseconds)
    }

    /// The server's side.
    ///
    /// - Parameter closeTimeout: how long to wait for the peer to close after this side did.
    package convenience init(_ context: TLSServerContext, closeTimeout: Duration = .seconds(1)) {
        self.init(.server(context), closeTimeout)
    }

    /// The side of a client that checks that the server's certificate names the host or its address.
    ///
    /// - Parameters:
    ///   - host: the server's name. Nil if it was given as an address, which its certificate must then name.
    ///   - resumption: stores tickets between connections. With nil every handshake is a full one.
    package convenience init(
        _ context: TLSClientContext, host: String?, resumption: TLSResumption? = nil,
        closeTimeout: Duration = .seconds(1)
    ) {
        self.init(.client(context, host: host, checksName: true, resumption), closeTimeout)
    }

    /// The side of a client that accepts every certificate of the trusted authorities, whatever it names, or that has
    /// a pre-shared key. The user of the handler checks ``peerCertificate``.
    ///
    /// - Parameter serverName: sent to the server (RFC 6066 §3).
    package convenience init(
        unnamed context: TLSClientContext, serverName: String? = nil, closeTimeout: Duration = .seconds(1)
    ) {
        self.init(.client(context, host: serverName, checksName: false, nil), closeTimeout)
    }

    /// The certificate that the peer presented, in DER; nil before the end of the handshake, or if it presented none.
    package var peerCertificate: [UInt8]? {
        guard state != .handshaking, let bytes = session?.peerCertificate(), !bytes.isEmpty else { return nil }
        return bytes
    }

    /// The identity of the pre-shared key; nil before the end of the handshake, or if there is none.
    package var peerIdentity: String? { state == .handshaking ? nil : session?.peerIdentity() ?? nil }

    /// Takes the connection's keys out of a channel whose socket continues in another channel.
    ///
    /// - Returns: the handler for the other channel; nil, with nothing changed, unless the handshake is complete, both
    ///   sides are open, and everything was handed to the channel. After that, this handler neither encrypts nor
    ///   decrypts, and its channel closes without a close_notify.
    package func moved() -> TLSHandler? {
        guard state == .open, !isReading, !isInputOver, !isOutputOver, promise == nil, session?.isWaiting != true,
            isOutputTaken || output.readableBytes == 0, session?.leave() == true
        else { return nil }
        let handler = TLSHandler(side, .nanoseconds(closeTimeout.nanoseconds))
        handler.session = session.take()
        (handler.state, handler.address, handler.isResumed) = (.open, address, isResumed)
        handler.keptByteCountMax = Self.movedKeptByteCountMax
        state = .closed
        return handler
    }

    // MARK: - The channel

    package func handlerAdded(context: ChannelHandlerContext) {
        if state == .open { arrive(context: context) }
        if context.channel.isActive { begin(context: context) }
    }

    /// Continues a moved connection.
    private func arrive(context: ChannelHandlerContext) {
        let socket = try? context.pipeline.syncOperations.withUnsafeTransportIfAvailable(
            of: NIOBSDSocket.Handle.self
        ) { $0 }
        session?.arrive(socket: socket)
        if socket != nil { (direct, addresses) = (context, session?.addresses) }
    }

    package func handlerRemoved(context: ChannelHandlerContext) { ended() }

    package func channelActive(context: ChannelHandlerContext) {
        begin(context: context)
        context.fireChannelActive()
    }

    package func channelInactive(context: ChannelHandlerContext) {
        let isTruncated = state == .handshaking || state == .open && !isInputOver
        ended()
        if isTruncated { context.fireErrorCaught(Self.truncated) }
        context.fireChannelInactive()
    }

    private static let truncated = TLSError(.truncated, "the peer broke off")

    private func ended() {
        state = .closed
        session = nil
        (direct, addresses) = (nil, nil)
        output = ByteBuffer()
        content = ByteBuffer()
        promise?.fail(ApusError(.linkLost))
        promise = nil
    }

    private func begin(context: ChannelHandlerContext) {
        guard state == .idle else { return }
        state = .handshaking
        switch side {
        case .server(let tls): session = TLSSession(tls)
        case .client(let tls, let host, _, let resumption):
            address = context.remoteAddress?.ipAddress
            session = TLSSession(tls, host: host, address: address, resumption: resumption)
        }
        guard session != nil else {
            return fail(context: context, TLSError(.protocolViolated, "it cannot be started; check the server's name"))
        }
        shakeHands(context: context)
    }

    package func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        guard case .inputClosed? = event as? ChannelEvent else {
            return context.fireUserInboundEventTriggered(event)
        }
        switch state {
        case .handshaking: fail(context: context, Self.truncated)
        case .open where isInputOver: break
        case .open:
            isInputOver = true
            context.fireErrorCaught(Self.truncated)
            context.fireUserInboundEventTriggered(event)
        case .closing: peerIsDone(context: context)
        case .idle, .closed: context.fireUserInboundEventTriggered(event)
        }
    }

    // MARK: - In

    package func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        // Another read within this one would take the session's input away.
        guard !isReading else { return readMeanwhile.append(unwrapInboundIn(data)) }
        isReading = true
        receive(unwrapInboundIn(data), context: context)
        while !readMeanwhile.isEmpty { receive(readMeanwhile.removeFirst(), context: context) }
        isReading = false
    }

    private func receive(_ bytes: ByteBuffer, context: ChannelHandlerContext) {
        guard state == .handshaking || state == .open || state == .closing else { return }
        // SAFETY: the session uses the bytes until it is fed with none.
        bytes.withUnsafeReadableBytes { ciphertext in
            session?.feed(ciphertext)
            if state == .handshaking { shakeHands(context: context) }
            var capacity = min(bytes.readableBytes, keptByteCountMax)
            while state == .open || state == .closing, read(context: context, capacity: capacity) {
                // A record that began in an earlier read may be many times as large as this one.
                capacity = max(capacity, Self.recordByteCountMax)
            }
            session?.feed(UnsafeRawBufferPointer(start: nil, count: 0))
        }
        guard session?.isWaiting == true, state == .open || state == .closing else { return }
        // The read has produced an answer, for example to a key update (RFC 8446 §4.6.3).
        let before = isOutputTaken ? 0 : output.readableBytes
        takeWaiting()
        answerByteCount += output.readableBytes - before
        if answerByteCount > Self.answerByteCountMax {
            return fail(context: context, TLSError(.protocolViolated, "the peer makes requests and sends no content"))
        }
        sendOutput(context: context)
        context.flush()
    }

    private func shakeHands(context: ChannelHandlerContext) {
        guard let isDone = session?.handshake() ?? nil else {
            return fail(context: context, session?.failure() ?? Self.truncated)
        }
        guard isDone else {
            sendOutput(context: context)
            return context.flush()
        }
        if case .client(_, let host, true, _) = side, session?.isFor(host: host, address: address) != true {
            return fail(
                context: context, TLSError(.certificate, "the server's certificate is for another name or address"))
        }
        isResumed = session?.isResumed ?? false
        state = .open
        // The first data is sent in one packet with the end of the handshake.
        context.fireUserInboundEventTriggered(TLSUserEvent.handshakeCompleted(negotiatedProtocol: nil))
        sendOutput(context: context)
        context.flush()
    }

    /// Passes on the content of received records, at most `capacity` bytes or a little more. Returns false when there
    /// is no more.
    private func read(context: ChannelHandlerContext, capacity: Int) -> Bool {
        content.clear(minimumCapacity: capacity)
        var last = TLSSession.Read.wantsMore
        repeat {
            // SAFETY: the buffer has the room that is given to the session, which says how much it has used.
            content.writeWithUnsafeMutableBytes(minimumWritableBytes: 1) { bytes in
                last = session?.read(into: bytes) ?? .failed
                if case .bytes(let count) = last { return count }
                return 0
            }
            guard case .bytes = last else { break }
        } while session?.hasMore == true && content.writableBytes > 0
        // Before the content is passed on: its receiver may call libssl, which has one list of errors per thread.
        let error = if case .failed = last { session?.failure() } else { nil as TLSError? }
        if content.readableBytes > 0 {
            answerByteCount = 0
            if state == .open {
                hasDelivered = true
                context.fireChannelRead(wrapInboundOut(content))
            }
            if content.capacity > keptByteCountMax { content = ByteBuffer() }
        }
        switch last {
        case .bytes: return session?.hasMore ?? false
        case .wantsMore: return false
        case .ended:
            inputEnded(context: context)
            return false
        case .failed:
            if state == .open { fail(context: context, error ?? Self.truncated) }
            if state == .closing { peerIsDone(context: context) }
            return false
        }
    }

    /// The peer has sent its close_notify.
    private func inputEnded(context: ChannelHandlerContext) {
        switch state {
        case .open where !isInputOver:
            isInputOver = true
            let allowsHalf = try? context.channel.syncOptions?.getOption(.allowRemoteHalfClosure)
            guard allowsHalf == true, !isOutputOver else { return beginClosing(context: context) }
            context.fireUserInboundEventTriggered(ChannelEvent.inputClosed)
        case .closing: peerIsDone(context: context)
        default: break
        }
    }

    package func channelReadComplete(context: ChannelHandlerContext) {
        if hasDelivered {
            hasDelivered = false
            context.fireChannelReadComplete()
        } else if (try? context.channel.syncOptions?.getOption(.autoRead)) == false {
            // The read that was requested has brought no content yet.
            context.read()
        }
        // The peer's farewell is read even if nobody reads content.
        if state == .closing { context.read() }
    }

    private func fail(context: ChannelHandlerContext, _ error: TLSError) {
        guard state != .closed else { return }
        state = .closed
        // Sends the alert with the reason.
        sendOutput(context: context)
        context.flush()
        context.fireErrorCaught(error)
        context.close(promise: nil)
    }

    // MARK: - Out

    package func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        guard state == .open, !isOutputOver else { return promise?.fail(ApusError(.notConnected)) ?? () }
        let bytes = unwrapOutboundIn(data)
        guard bytes.readableBytes > 0 else { return join(promise) }
        takeWaiting()
        // SAFETY: the session reads the bytes within the closure.
        let isSealed = bytes.withUnsafeReadableBytes { session?.seal($0, into: &output) }
        guard isSealed == true else {
            promise?.fail(ApusError(.linkLost))
            return fail(context: context, session?.failure() ?? Self.truncated)
        }
        join(promise)
    }

    package func flush(context: ChannelHandlerContext) {
        sendOutput(context: context)
        context.flush()
    }

    /// Sends the bytes of a moved connection, without the channel's pipeline. Ciphertext is written to the socket at
    /// once. What the socket does not accept is written to the channel, and so is everything after it until the channel
    /// has sent that. The channel therefore determines order, water marks and writability.
    ///
    /// Discards the bytes after the close. Does nothing in a channel without a socket, or if the connection was not
    /// moved.
    package func send(_ bytes: ByteBuffer) {
        guard state == .open, !isOutputOver, let context = direct else { return }
        guard channelWriteCount == 0, isOutputTaken || output.readableBytes == 0, promise == nil,
            session?.isWaiting != true
        else {
            write(context: context, data: NIOAny(bytes), promise: nil)
            return flush(context: context)
        }
        session?.setDirect(true)
        // SAFETY: the session reads the bytes within the closure.
        let waiting = bytes.withUnsafeReadableBytes { session?.write($0) } ?? nil
        session?.setDirect(false)
        guard let waiting else { return fail(context: context, session?.failure() ?? Self.truncated) }
        if waiting > 0 { flush(context: context) }
    }

    /// True if ``send(_:)`` works.
    package var isDirect: Bool { direct != nil }

    /// What ``send(_:)`` reads besides this object, for prefetching; nil if it does not work.
    package private(set) var addresses: TLSSession.Addresses?

    /// Completes a promise together with those of the output.
    private func join(_ new: EventLoopPromise<Void>?) {
        guard let new else { return }
        if let promise { promise.futureResult.cascade(to: new) } else { promise = new }
    }

    /// Moves what libssl wrote by itself to the output: it was encrypted after the output, and before what follows.
    private func takeWaiting() {
        if isOutputTaken {
            isOutputTaken = false
            output.clear(minimumCapacity: 0)
        }
        guard session?.isWaiting == true, var waiting = session?.takePending() else { return }
        output.writeBuffer(&waiting)
    }

    /// Hands the output to the channel. It must be flushed.
    private func sendOutput(context: ChannelHandlerContext) {
        takeWaiting()
        guard output.readableBytes > 0 || promise != nil else { return }
        let promise = direct == nil ? promise : counted(promise ?? context.eventLoop.makePromise())
        self.promise = nil
        isOutputTaken = true
        context.write(wrapOutboundOut(output), promise: promise)
        if output.capacity > keptByteCountMax { output = ByteBuffer() }
    }

    private func counted(_ promise: EventLoopPromise<Void>) -> EventLoopPromise<Void> {
        channelWriteCount += 1
        promise.futureResult.assumeIsolated().whenComplete { [self] _ in channelWriteCount -= 1 }
        return promise
    }

    // MARK: - The end

    package func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        switch (mode, state) {
        case (.output, .open) where !isInputOver && !isOutputOver:
            let closing = NIOLoopBound((context, promise), eventLoop: context.eventLoop)
            sayGoodbye(context: context).whenComplete { _ in
                let (context, promise) = closing.value
                context.close(mode: .output, promise: promise)
            }
        case (.output, .open), (.all, .open):
            context.channel.closeFuture.cascade(to: promise)
            beginClosing(context: context)
        case (.output, .closing), (.all, .closing): context.channel.closeFuture.cascade(to: promise)
        case (.all, .handshaking):
            state = .closed
            context.close(promise: promise)
        default: context.close(mode: mode, promise: promise)
        }
    }

    /// Sends close_notify, and waits briefly for the peer to close, so that a reset does not discard data that was
    /// sent before.
    private func beginClosing(context: ChannelHandlerContext) {
        state = .closing
        let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
        let timeout = context.eventLoop.scheduleTask(in: closeTimeout) {
            let (handler, context) = bound.value
            if handler.state == .closing { context.close(promise: nil) }
        }
        context.channel.closeFuture.whenComplete { _ in timeout.cancel() }
        if !isOutputOver { _ = sayGoodbye(context: context) }
        if isInputOver { peerIsDone(context: context) } else { context.read() }
    }

    private func sayGoodbye(context: ChannelHandlerContext) -> EventLoopFuture<Void> {
        isOutputOver = true
        session?.close()
        let sent = context.eventLoop.makePromise(of: Void.self)
        join(sent)
        sendOutput(context: context)
        context.flush()
        let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
        return sent.futureResult.always { _ in
            let (handler, context) = bound.value
            handler.isGoodbyeSent = true
            if handler.isInputOver { handler.peerIsDone(context: context) }
        }
    }

    /// Closes the connection if the close_notify of this side was sent too; otherwise that does.
    private func peerIsDone(context: ChannelHandlerContext) {
        isInputOver = true
        if state == .closing, isGoodbyeSent { context.close(promise: nil) }
    }
}

import CApusTestTLS
package import NIOCore
import NIOTLS

/// TLS of the other end of a connection in tests: libssl with memory of its own, without anything of Apus.
///
/// Fires `TLSUserEvent.handshakeCompleted`. What is written before is sent then. A close waits for the peer's
/// close_notify, and fails without it.
///
/// Concurrency model: confined to the channel's event loop.
package final class OtherTLSHandler: ChannelDuplexHandler {
    package typealias InboundIn = ByteBuffer
    package typealias InboundOut = ByteBuffer
    package typealias OutboundIn = ByteBuffer
    package typealias OutboundOut = ByteBuffer

    package struct Settings: Sendable {
        package var isServer = false
        /// False for TLS 1.2 only.
        package var hasTLS13 = true
        /// A certificate and its key, PEM.
        package var certificate: String?
        package var key: String?
        /// The authority of the peer's certificate, PEM. Nil: it is not checked.
        package var authority: String?
        /// What is sent as the server's name.
        package var serverName: String?
        /// What a server's certificate must name, if there is an authority.
        package var host: String?
        package var address: String?
        package var closeTimeout = TimeAmount.seconds(5)
        package init() {}
    }

    package enum Failure: Error {
        /// The connection ended without close_notify.
        case uncleanShutdown
        case failed(String)
    }

    private enum State {
        case idle
        case handshaking
        case open
        case closing
        case closed
    }

    private let settings: Settings
    private var state = State.idle
    // SAFETY: made in `begin`, freed in `deinit`; used on the event loop only.
    private var tls: OpaquePointer?
    private var early: [(ByteBuffer, EventLoopPromise<Void>?)] = []
    private var closePromise: EventLoopPromise<Void>?

    package init(_ settings: Settings) { self.settings = settings }

    deinit { apus_test_tls_free(tls) }

    package func handlerAdded(context: ChannelHandlerContext) {
        if context.channel.isActive { begin(context) }
    }

    package func channelActive(context: ChannelHandlerContext) {
        begin(context)
        context.fireChannelActive()
    }

    package func channelInactive(context: ChannelHandlerContext) {
        let was = state
        state = .closed
        for (_, promise) in early { promise?.fail(ChannelError.ioOnClosedChannel) }
        early = []
        if was != .closed && was != .idle {
            closePromise?.fail(Failure.uncleanShutdown)
            closePromise = nil
            context.fireErrorCaught(Failure.uncleanShutdown)
        }
        context.fireChannelInactive()
    }

    private func begin(_ context: ChannelHandlerContext) {
        guard state == .idle else { return }
        state = .handshaking
        tls = apus_test_tls_new(
            settings.isServer ? 1 : 0, settings.hasTLS13 ? 0 : 0x0303, settings.certificate, settings.key,
            settings.authority, settings.serverName, settings.host, settings.address)
        shakeHands(context)
    }

    private func shakeHands(_ context: ChannelHandlerContext) {
        let result = tls == nil ? -1 : apus_test_tls_handshake(tls)
        let error = result < 0 ? reason() : nil
        if tls != nil { send(context) }
        if let error { return fail(context, error) }
        guard result == 1 else { return }
        state = .open
        context.fireUserInboundEventTriggered(TLSUserEvent.handshakeCompleted(negotiatedProtocol: nil))
        let writes = early
        early = []
        for (bytes, promise) in writes { write(context: context, data: wrapOutboundOut(bytes), promise: promise) }
        if !writes.isEmpty { context.flush() }
    }

    package func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        guard state != .closed, tls != nil else { return }
        // SAFETY: the bytes are copied.
        bytes.withUnsafeReadableBytes { apus_test_tls_feed(tls, $0.baseAddress, $0.count) }
        if state == .handshaking { shakeHands(context) }
        while state == .open || state == .closing, read(context) {}
    }

    private func read(_ context: ChannelHandlerContext) -> Bool {
        var content = context.channel.allocator.buffer(capacity: 1 << 14)
        var count = 0
        // SAFETY: the buffer has the room that is given.
        content.writeWithUnsafeMutableBytes(minimumWritableBytes: 1 << 14) { room in
            count = apus_test_tls_read(tls, room.baseAddress, room.count)
            return max(0, count)
        }
        switch count {
        case 1...:
            if state == .open { context.fireChannelRead(wrapInboundOut(content)) }
            return true
        case 0: send(context)
        case -1:
            if state == .open { apus_test_tls_close(tls) }
            send(context)
            state = .closed
            context.close(promise: closePromise)
            closePromise = nil
        default:
            let error = reason()
            send(context)
            fail(context, error)
        }
        return false
    }

    package func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        let bytes = unwrapOutboundIn(data)
        guard state == .open else {
            if state == .closing || state == .closed { return promise?.fail(ChannelError.ioOnClosedChannel) ?? () }
            return early.append((bytes, promise))
        }
        // SAFETY: the bytes are copied.
        guard bytes.withUnsafeReadableBytes({ apus_test_tls_write(tls, $0.baseAddress, $0.count) }) == 1 else {
            promise?.fail(ChannelError.ioOnClosedChannel)
            return fail(context, reason())
        }
        context.write(wrapOutboundOut(produced(context)), promise: promise)
    }

    /// Requests new keys of the peer.
    package func updateKey(context: ChannelHandlerContext) {
        if apus_test_tls_update_key(tls) == 1 { send(context) }
    }

    package func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        guard mode == .all, state == .open else { return context.close(mode: mode, promise: promise) }
        state = .closing
        closePromise = promise
        apus_test_tls_close(tls)
        send(context)
        let bound = NIOLoopBound(context, eventLoop: context.eventLoop)
        let timeout = context.eventLoop.scheduleTask(in: settings.closeTimeout) { bound.value.close(promise: nil) }
        context.channel.closeFuture.whenComplete { _ in timeout.cancel() }
    }

    private func produced(_ context: ChannelHandlerContext) -> ByteBuffer {
        var output = context.channel.allocator.buffer(capacity: 1 << 15)
        var count = 0
        repeat {
            // SAFETY: the buffer has the room that is given.
            output.writeWithUnsafeMutableBytes(minimumWritableBytes: 1 << 14) { room in
                count = apus_test_tls_take(tls, room.baseAddress, room.count)
                return count
            }
        } while count > 0
        return output
    }

    private func send(_ context: ChannelHandlerContext) {
        let output = produced(context)
        if output.readableBytes > 0 { context.writeAndFlush(wrapOutboundOut(output), promise: nil) }
    }

    private func reason() -> Failure {
        var reason = [CChar](repeating: 0, count: 256)
        apus_test_tls_reason(tls, &reason, reason.count)
        return .failed(String(decoding: reason.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self))
    }

    private func fail(_ context: ChannelHandlerContext, _ error: Failure) {
        state = .closed
        closePromise?.fail(error)
        closePromise = nil
        context.fireErrorCaught(error)
        context.close(promise: nil)
    }
}

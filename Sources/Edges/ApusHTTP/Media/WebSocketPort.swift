import ApusChannels
import ApusCore
import ApusTLS
import CApusMemory
import NIOCore

/// The end of a WebSocket at its socket: sends a channel's frames, which bypass the handlers above.
///
/// The bytes are those of one message, which all viewers of the channel on this loop share.
///
/// Concurrency model: confined to the channel's event loop.
final class WebSocketPort: ChannelDuplexHandler, FramePort,
    @unchecked Sendable  // SAFETY: confined to the event loop.
{
    typealias InboundIn = ByteBuffer
    typealias InboundOut = ByteBuffer
    typealias OutboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    /// False while more than `http.websocket_outbound_bytes_max` wait for the client.
    private(set) var isWritable = true
    private let loop: WebSocketLoop
    /// What was read before the socket came to this loop.
    private var received: ByteBuffer
    /// Nil without TLS.
    private let tls: TLSHandler?
    /// Of TLS, for prefetching.
    private var addresses: TLSSession.Addresses?
    private var context: ChannelHandlerContext?
    private var slot: Int?

    /// - Parameter tls: the handler below this one; nil without TLS.
    init(_ loop: WebSocketLoop, tls: TLSHandler?, received: ByteBuffer) {
        (self.loop, self.tls, self.received) = (loop, tls, received)
    }

    // MARK: - The channel

    func handlerAdded(context: ChannelHandlerContext) {
        self.context = context
        addresses = tls?.addresses
        slot = loop.add(self)
    }

    func handlerRemoved(context: ChannelHandlerContext) { ended() }

    func channelInactive(context: ChannelHandlerContext) {
        ended()
        context.fireChannelInactive()
    }

    private func ended() {
        (context, isWritable, addresses) = (nil, false, nil)
        if let slot { loop.remove(slot) }
        slot = nil
    }

    func channelActive(context: ChannelHandlerContext) {
        context.fireChannelActive()
        guard received.readableBytes > 0 else { return }
        context.fireChannelRead(wrapInboundOut(received))
        received = ByteBuffer()
        context.fireChannelReadComplete()
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        isWritable = context.channel.isWritable && self.context != nil
        context.fireChannelWritabilityChanged()
    }

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        if let slot { loop.sent(slot, now: .now()) }
        context.write(data, promise: promise)
    }

    // MARK: - Frames

    func send(_ bytes: ByteBuffer, now: MonotonicTime) {
        guard let context, let slot else { return }
        loop.sent(slot, now: now)
        let message = loop.message(of: bytes)
        // One buffer per frame and viewer: the pipeline costs more than the encryption (docs/decisions/5).
        if let tls, tls.isDirect { return tls.send(message) }
        context.writeAndFlush(wrapOutboundOut(message), promise: nil)
    }

    func prefetch() {
        guard let tls, let addresses else { return }
        apus_prefetch(Unmanaged.passUnretained(tls).toOpaque(), Self.handlerByteCount)
        apus_prefetch(addresses.connection, 128)
        apus_prefetch(addresses.library, 256)
    }
    /// The part of the handler that a frame uses.
    private static let handlerByteCount = 256

    /// A client with streams was sent nothing for the time of a keepalive.
    func keepAlive() {
        guard isWritable, let context else { return }
        context.writeAndFlush(wrapOutboundOut(WebSocketLoop.alive), promise: nil)
        if let slot { loop.sent(slot, now: .now()) }
    }

    func setStreams(isStreaming: Bool, isPlaying: Bool) {
        if let slot { loop.setStreams(slot, isStreaming: isStreaming, isPlaying: isPlaying) }
    }

    /// - Parameters:
    ///   - first: the first byte: FIN and the opcode.
    ///   - room: for what is written behind the header.
    static func header(_ first: UInt8, _ byteCount: Int, room: Int = 0) -> ByteBuffer {
        var header = ByteBufferAllocator().buffer(capacity: 10 + room)
        header.writeInteger(first)
        switch byteCount {
        case ...125: header.writeInteger(UInt8(byteCount))
        case ...0xFFFF: header.writeMultipleIntegers(UInt8(126), UInt16(byteCount))
        default: header.writeMultipleIntegers(UInt8(127), UInt64(byteCount))
        }
        return header
    }

    /// A text message.
    static func message(_ text: String) -> ByteBuffer {
        var message = header(0x81, text.utf8.count)
        message.writeString(text)
        return message
    }
}

import ApusCore
import CoreMetrics
import NIOCore

/// Copies the bytes of one connection to another, at a node that forwards between two others.
///
/// A connection is read only while the other one can be written to, so at most one read and the socket's buffers wait
/// in each direction. The end of either connection ends both.
///
/// Isolation: the event loop of both connections.
final class ForwardHandler: ChannelDuplexHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private let bytes: Counter
    private var partner: ForwardHandler?
    private var context: ChannelHandlerContext?
    private var isReadPending = false

    private init(counting bytes: Counter) { self.bytes = bytes }

    /// Two handlers, one for each connection.
    static func pair(counting bytes: Counter) -> (ForwardHandler, ForwardHandler) {
        let (one, other) = (ForwardHandler(counting: bytes), ForwardHandler(counting: bytes))
        (one.partner, other.partner) = (other, one)
        return (one, other)
    }

    func handlerAdded(context: ChannelHandlerContext) { self.context = context }

    func handlerRemoved(context: ChannelHandlerContext) {
        self.context = nil
        partner?.context?.close(promise: nil)
        partner = nil
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let buffer = unwrapInboundIn(data)
        bytes.increment(by: Int64(buffer.readableBytes))
        partner?.context?.write(wrapOutboundOut(buffer), promise: nil)
    }

    func channelReadComplete(context: ChannelHandlerContext) { partner?.context?.flush() }

    func channelInactive(context: ChannelHandlerContext) { partner?.context?.close(promise: nil) }

    /// A connection that was reset was given up by its node, and so is what it has sent.
    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        if let other = partner?.context { discardUnsent(other.channel) }
        context.close(promise: nil)
    }

    func read(context: ChannelHandlerContext) {
        if partner?.context?.channel.isWritable == true {
            context.read()
        } else {
            isReadPending = true
        }
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        guard context.channel.isWritable, let partner, partner.isReadPending else { return }
        partner.isReadPending = false
        partner.context?.read()
    }
}

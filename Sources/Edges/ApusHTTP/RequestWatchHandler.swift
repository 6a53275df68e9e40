import NIOCore
import NIOHTTP1

/// Tells a connection's ``ConnectionDeadlineHandler`` when a request is complete, and when its answer begins and ends.
/// Confined to the connection's event loop.
final class RequestWatchHandler: ChannelInboundHandler, ChannelOutboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundIn = HTTPServerResponsePart

    private let deadline: ConnectionDeadlineHandler

    init(_ deadline: ConnectionDeadlineHandler) { self.deadline = deadline }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if case .end = unwrapInboundIn(data) { deadline.requestEnded(context.channel) }
        context.fireChannelRead(data)
    }

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        let part = unwrapOutboundIn(data)
        context.write(data, promise: promise)
        switch part {
        // 1xx is not the answer (RFC 9110 §15.2).
        case .head(let head): if head.status.code >= 200 { deadline.answerBegan(context.channel) }
        case .body: break
        case .end: deadline.answerEnded(context.channel)
        }
    }
}

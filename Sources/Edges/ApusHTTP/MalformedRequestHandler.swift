import ApusClientAPI
import ApusCore
import HTTPTypes
import NIOCore
import NIOHTTP1

/// Answers a first request that cannot be parsed with 400, and closes the connection (RFC 9112 §2.2). Behind NIO's
/// upgrade handler nothing sees that error: the client would wait for its answer until the connection's deadline.
///
/// Errors of later requests, whose answers come after those of earlier ones, are Hummingbird's.
///
/// Confined to the connection's event loop. It is between the parser and the upgrade handler, and is removed with the
/// end of HTTP.
final class MalformedRequestHandler: ChannelInboundHandler, RemovableChannelHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = HTTPServerResponsePart

    /// After its answer the connection is open for this time at most, so that the answer is not lost with a reset.
    private static let closeTimeout = TimeAmount.seconds(1)

    private let deadline: ConnectionDeadlineHandler
    private let headerByteCountMax: Int
    private var isFirst = true

    init(_ deadline: ConnectionDeadlineHandler, headerByteCountMax: Int) {
        (self.deadline, self.headerByteCountMax) = (deadline, headerByteCountMax)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        isFirst = false
        context.fireChannelRead(data)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        guard isFirst, let error = error as? HTTPParserError else { return context.fireErrorCaught(error) }
        isFirst = false
        deadline.endInput()
        let problem = Problem(
            error == .headerOverflow
                ? ApusError(.frameTooLarge, "a request has at most \(headerByteCountMax) bytes of header fields")
                : ApusError(.malformed, "the request is not HTTP/1.1"), .badRequest)
        let body = ByteBuffer(string: problem.json.text)
        let headers: HTTPHeaders = [
            "Content-Type": "application/problem+json", "Content-Length": "\(body.readableBytes)",
            "Connection": "close",
        ]
        let head = HTTPResponseHead(version: .http1_1, status: .badRequest, headers: headers)
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        context.write(wrapOutboundOut(.body(.byteBuffer(body))), promise: nil)
        let channel = context.channel
        let written = context.eventLoop.makePromise(of: Void.self)
        context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: written)
        written.futureResult.whenComplete { _ in channel.close(mode: .output, promise: nil) }
        context.eventLoop.assumeIsolated().scheduleTask(in: Self.closeTimeout) { channel.close(promise: nil) }
    }
}

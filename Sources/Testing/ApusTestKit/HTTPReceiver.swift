import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization

/// An HTTP server on 127.0.0.1 that keeps the requests that come.
///
/// Isolation: any thread.
package final class HTTPReceiver: Sendable {
    package struct Request: Sendable {
        package var method: String
        package var path: String
        /// By lower-case name; the last one of each.
        package var headers: [String: String]
        package var body: String
    }

    /// The status for a request, and its number from 1; nil for no answer.
    package typealias Answer = @Sendable (Request, Int) -> Int?

    private let answer: Answer
    private let reply: @Sendable (Request) -> String
    private let kept = Mutex<[Request]>([])
    private let channel = Mutex<(any Channel)?>(nil)

    private init(_ reply: @escaping @Sendable (Request) -> String, _ answer: @escaping Answer) {
        (self.reply, self.answer) = (reply, answer)
    }

    /// - Parameters:
    ///   - port: 0 asks the system for a free one.
    ///   - reply: the body of the answer to a request.
    package static func start(
        port: Int = 0, reply: @escaping @Sendable (Request) -> String = { _ in "{}" }, _ answer: @escaping Answer
    ) async throws -> HTTPReceiver {
        let receiver = HTTPReceiver(reply, answer)
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline()
                    try channel.pipeline.syncOperations.addHandler(ReceiverHandler(receiver))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        receiver.channel.withLock { $0 = channel }
        return receiver
    }

    package func stop() async throws { try await channel.withLock { $0.take() }?.close() }

    package var port: Int { channel.withLock { $0?.localAddress?.port } ?? 0 }
    package var requests: [Request] { kept.withLock { $0 } }

    fileprivate func received(_ head: HTTPRequestHead, _ body: ByteBuffer) -> (status: Int, body: String)? {
        let headers = head.headers.map { ($0.name.lowercased(), $0.value) }
        let request = Request(
            method: head.method.rawValue, path: head.uri, headers: Dictionary(headers) { $1 },
            body: String(buffer: body))
        let number = kept.withLock { kept in
            kept.append(request)
            return kept.count
        }
        return answer(request, number).map { ($0, reply(request)) }
    }
}

/// Confined to the event loop.
private final class ReceiverHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = HTTPServerResponsePart

    private let receiver: HTTPReceiver
    private var head: HTTPRequestHead?
    private var body = ByteBuffer()

    init(_ receiver: HTTPReceiver) { self.receiver = receiver }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head): (self.head, body) = (head, ByteBuffer())
        case .body(var part): body.writeBuffer(&part)
        case .end:
            guard let head, let (status, text) = receiver.received(head, body) else { return }
            let answer = HTTPResponseHead(
                version: .http1_1, status: .init(statusCode: status), headers: ["Content-Length": "\(text.utf8.count)"])
            context.write(wrapOutboundOut(.head(answer)), promise: nil)
            context.write(wrapOutboundOut(.body(.byteBuffer(ByteBuffer(string: text)))), promise: nil)
            context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
        }
    }
}

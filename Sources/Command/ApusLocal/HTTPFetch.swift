package import ApusCore
package import ApusTLS
package import NIOCore
package import NIOHTTP1
import NIOPosix
import NIOTLS

/// One HTTP/1.1 request to a node's HTTP listener, with a deadline and a limit of the answer's size.
package enum HTTPFetch {
    /// A complete answer.
    package struct Answer: Sendable {
        /// The status code.
        package var status: Int
        /// At most ``HTTPFetch/answerByteCountMax`` bytes.
        package var body: ByteBuffer
    }

    /// The maximum size of an answer, in bytes.
    package static let answerByteCountMax = 16 << 20

    /// Sends a request, and waits for the answer.
    /// - Parameters:
    ///   - body: JSON; nil for none.
    ///   - tls: for HTTPS; nil for plain HTTP.
    ///   - token: the bearer token of the header `Authorization`; nil for none.
    ///   - key: the header `Idempotency-Key`, so that a repeated request is carried out once; nil for none.
    ///   - timeout: the time-out of the connection, and then of the answer.
    /// - Throws: 21022 if the connection or TLS fails, 10008 if it ends early, 10005 after the deadline, 10001 if the
    ///   answer is not HTTP, 10002 if it is too large.
    package static func send(
        _ method: HTTPMethod, _ path: String, to address: HostPort, token: String? = nil, key: String? = nil,
        body: ByteBuffer? = nil, tls: TLSClientContext? = nil, timeout: Duration
    ) async throws(ApusError) -> Answer {
        var headers: HTTPHeaders = [
            "Host": address.description, "Connection": "close", "Content-Length": "\(body?.readableBytes ?? 0)",
        ]
        if body != nil { headers.add(name: "Content-Type", value: "application/json") }
        if let token { headers.add(name: "Authorization", value: "Bearer \(token)") }
        if let key { headers.add(name: "Idempotency-Key", value: key) }
        let head = HTTPRequestHead(version: .http1_1, method: method, uri: path, headers: headers)
        let nanoseconds = timeout.nanoseconds
        do {
            let answer = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
                .connectTimeout(.nanoseconds(nanoseconds))
                .connect(host: address.host, port: address.port) { channel in
                    channel.eventLoop.makeCompletedFuture {
                        let answer = channel.eventLoop.makePromise(of: Answer.self)
                        let pipeline = channel.pipeline.syncOperations
                        if let tls {
                            // A name goes into the handshake, an address does not (RFC 6066 §3).
                            let isAddress = (try? SocketAddress(ipAddress: address.host, port: 0)) != nil
                            try pipeline.addHandler(TLSHandler(tls, host: isAddress ? nil : address.host))
                        }
                        try pipeline.addHTTPClientHandlers()
                        try pipeline.addHandler(
                            FetchHandler(
                                head: head, body: body, answer: answer, timeout: .nanoseconds(nanoseconds),
                                isSecured: tls == nil))
                        return answer.futureResult
                    }
                }
            return try await answer.get()
        } catch let error as ApusError {
            throw error
        } catch {
            throw ApusError(.connectFailed, "\(address) cannot be reached: \(Self.reason(error))")
        }
    }
}

extension HTTPFetch {
    /// Why a connection failed, in words for people.
    private static func reason(_ error: any Error) -> String {
        guard let error = error as? NIOConnectionError else { return ConnectionFailure.reason(error) }
        // Of a name with several addresses: the last attempt. Without any, the name is not known.
        return ConnectionFailure.reason(
            error.connectionErrors.last?.error ?? error.dnsAError ?? error.dnsAAAAError ?? error)
    }
}

/// Sends the request once connected, and over TLS after the handshake. Collects the answer. Confined to the event loop.
private final class FetchHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPClientResponsePart
    typealias OutboundOut = HTTPClientRequestPart

    private let head: HTTPRequestHead
    private let body: ByteBuffer?
    private let answer: EventLoopPromise<HTTPFetch.Answer>
    private let timeout: TimeAmount
    /// True if the request needs not wait for TLS.
    private let isSecured: Bool
    private var gathered = HTTPFetch.Answer(status: 0, body: ByteBuffer())

    init(
        head: HTTPRequestHead, body: ByteBuffer?, answer: EventLoopPromise<HTTPFetch.Answer>, timeout: TimeAmount,
        isSecured: Bool
    ) {
        self.head = head
        self.body = body
        self.answer = answer
        self.timeout = timeout
        self.isSecured = isSecured
    }

    func channelActive(context: ChannelHandlerContext) {
        let channel = context.channel
        let answer = answer
        let deadline = context.eventLoop.scheduleTask(in: timeout) {
            answer.fail(ApusError(.deadlineExceeded))
            channel.close(promise: nil)
        }
        channel.closeFuture.whenComplete { _ in deadline.cancel() }
        if isSecured { send(context: context) }
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent { send(context: context) }
        context.fireUserInboundEventTriggered(event)
    }

    private func send(context: ChannelHandlerContext) {
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        if let body { context.write(wrapOutboundOut(.body(.byteBuffer(body))), promise: nil) }
        context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head):
            gathered.status = Int(head.status.code)
        case .body(var part):
            guard gathered.body.readableBytes + part.readableBytes <= HTTPFetch.answerByteCountMax else {
                return fail(context, ApusError(.frameTooLarge))
            }
            gathered.body.writeBuffer(&part)
        case .end:
            answer.succeed(gathered)
            context.close(promise: nil)
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        switch error {
        case is TLSError:
            fail(
                context,
                ApusError(
                    .connectFailed, "TLS failed: the certificate is not trusted or has another name, or it is no TLS"))
        case let error as HTTPParserError:
            fail(context, ApusError(.malformed, "the answer is not HTTP: \(error)"))
        default: fail(context, ApusError(.linkLost))
        }
    }

    /// Called last, even if the connection was never established.
    func handlerRemoved(context: ChannelHandlerContext) {
        answer.fail(ApusError(.linkLost))
    }

    private func fail(_ context: ChannelHandlerContext, _ error: ApusError) {
        answer.fail(error)
        context.close(promise: nil)
    }
}

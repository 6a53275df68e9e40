import ApusClient
import ApusCore
import ApusTLS
import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix

/// The address of an authorization service: HTTPS, or plain HTTP to this machine.
struct VoiceURL: Sendable, Hashable {
    let host: String
    let port: Int
    /// Without a slash at its end.
    let path: String
    let isSecure: Bool
    let text: String

    /// - Throws: 21031.
    init(_ text: String) throws(ApusError) {
        guard let parts = URLComponents(string: text), let host = parts.host, !host.isEmpty, parts.user == nil,
            parts.query == nil, parts.fragment == nil, let scheme = parts.scheme?.lowercased(),
            scheme == "https" || scheme == "http"
        else { throw ApusError(.badParameter, "the authorization address is https://HOST[:PORT]/PATH") }
        self.host = host.hasPrefix("[") ? String(host.dropFirst().dropLast()) : host
        isSecure = scheme == "https"
        port = parts.port ?? (isSecure ? 443 : 80)
        guard isSecure || HostPort(host: self.host, port: port).isLoopback else {
            throw ApusError(.badParameter, "tokens are sent over plain HTTP only to this machine: use https")
        }
        path = parts.path.hasSuffix("/") ? String(parts.path.dropLast()) : parts.path
        self.text = text
    }

    /// The header `Host`.
    var authority: String { (host.contains(":") ? "[\(host)]" : host) + ":\(port)" }
}

/// Requests of a device that has no session: one form over a connection of its own (HTTP/1.1).
///
/// Isolation: any task.
struct VoiceHTTP: Sendable {
    private static let timeout = Duration.seconds(15)
    fileprivate static let bodyByteCountMax = 64 << 10

    struct Answer: Sendable {
        var status: Int
        var body: [UInt8]
    }

    let url: VoiceURL
    let tls: TLSClientContext

    /// Sends a form.
    ///
    /// - Parameter path: after that of the address.
    /// - Throws: 21022 if there is no connection, 10005 after 15 s, 10006 if the task was cancelled, 10008 if the
    ///   connection breaks, 10002 if the answer is too long.
    func post(_ path: String, _ form: [(name: String, value: String)]) async throws(ApusError) -> Answer {
        let loop = MultiThreadedEventLoopGroup.singleton.next()
        let promise = loop.makePromise(of: Answer.self)
        let body = form.map { "\(Self.escaped($0.name))=\(Self.escaped($0.value))" }.joined(separator: "&")
        let head = HTTPRequestHead(
            version: .http1_1, method: .POST, uri: url.path + path,
            headers: [
                "Host": url.authority, "Content-Type": "application/x-www-form-urlencoded",
                "Content-Length": "\(body.utf8.count)", "Connection": "close", "Accept": "application/json",
            ])
        let timeout = loop.scheduleTask(in: .nanoseconds(Self.timeout.nanoseconds)) {
            promise.fail(ApusError(.deadlineExceeded, "the authorization service does not answer"))
        }
        promise.futureResult.whenComplete { _ in timeout.cancel() }
        ClientBootstrap(group: loop)
            .connectTimeout(.seconds(10))
            .channelInitializer { [url, tls] channel in
                channel.eventLoop.makeCompletedFuture {
                    let pipeline = channel.pipeline.syncOperations
                    if url.isSecure {
                        let isAddress = (try? SocketAddress(ipAddress: url.host, port: url.port)) != nil
                        try pipeline.addHandler(TLSHandler(tls, host: isAddress ? nil : url.host))
                    }
                    try pipeline.addHTTPClientHandlers()
                    try pipeline.addHandler(VoiceAnswerHandler(head, ByteBuffer(string: body), promise))
                }
            }
            .connect(host: url.host, port: url.port)
            .whenComplete { result in
                switch result {
                case .success(let channel):
                    promise.futureResult.whenComplete { _ in channel.close(promise: nil) }
                case .failure(let error):
                    promise.fail(ApusError(.connectFailed, "\(url.authority) cannot be reached: \(error)"))
                }
            }
        do {
            return try await withTaskCancellationHandler {
                try await promise.futureResult.get()
            } onCancel: {
                promise.fail(ApusError(.cancelled))
            }
        } catch let error as ApusError {
            throw error
        } catch {
            throw ApusError(.linkLost, "\(error)")
        }
    }

    private static func escaped(_ text: String) -> String {
        text.utf8.reduce(into: "") { escaped, byte in
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"):
                escaped.unicodeScalars.append(Unicode.Scalar(byte))
            default: escaped += "%" + Hexadecimal.text([byte])
            }
        }
    }
}

/// Sends one request when its connection is ready, and collects the answer.
private final class VoiceAnswerHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPClientResponsePart
    typealias OutboundOut = HTTPClientRequestPart

    private let head: HTTPRequestHead
    private let body: ByteBuffer
    private let promise: EventLoopPromise<VoiceHTTP.Answer>
    private var answer = VoiceHTTP.Answer(status: 0, body: [])

    init(_ head: HTTPRequestHead, _ body: ByteBuffer, _ promise: EventLoopPromise<VoiceHTTP.Answer>) {
        (self.head, self.body, self.promise) = (head, body, promise)
    }

    func channelActive(context: ChannelHandlerContext) {
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        context.write(wrapOutboundOut(.body(.byteBuffer(body))), promise: nil)
        context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
        context.fireChannelActive()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head): answer.status = Int(head.status.code)
        case .body(let bytes):
            answer.body += bytes.readableBytesView
            guard answer.body.count <= VoiceHTTP.bodyByteCountMax else {
                return promise.fail(ApusError(.frameTooLarge))
            }
        case .end: promise.succeed(answer)
        }
    }

    func channelInactive(context: ChannelHandlerContext) {
        promise.fail(ApusError(.linkLost, "the authorization service has closed the connection"))
        context.fireChannelInactive()
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        promise.fail(ApusError(.connectFailed, "\(error)"))
        context.close(promise: nil)
    }
}

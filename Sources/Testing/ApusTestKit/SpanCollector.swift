import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization

/// A collector of traces: an HTTP server on 127.0.0.1 that keeps the spans that are posted to it.
///
/// Isolation: any thread.
package final class SpanCollector: Sendable {
    /// What it does with a request.
    package enum Manner: Sendable {
        case answers(Int)
        /// It takes the request and sends no answer.
        case isSilent
    }

    /// A span as it came.
    package struct Span: Sendable {
        /// The attribute `service.instance.id` of its resource.
        package var node: String
        package var trace: String
        package var id: String
        package var parent: String?
        package var name: String
        package var kind: Int
        package var isFailure: Bool
        package var attributes: [String: String]
    }

    private struct State {
        var manner: Manner
        var requestCount = 0
        var spans: [Span] = []
    }

    private let state: Mutex<State>
    private let channel = Mutex<(any Channel)?>(nil)

    private init(_ manner: Manner) { state = Mutex(State(manner: manner)) }

    /// - Parameter port: 0 asks the system for a free one.
    package static func start(_ manner: Manner = .answers(200), port: Int = 0) async throws -> SpanCollector {
        let collector = SpanCollector(manner)
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline()
                    try channel.pipeline.syncOperations.addHandler(CollectorHandler(collector))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        collector.channel.withLock { $0 = channel }
        return collector
    }

    package func stop() async throws { try await channel.withLock { $0.take() }?.close() }

    package var port: Int { channel.withLock { $0?.localAddress?.port } ?? 0 }
    package var requestCount: Int { state.withLock { $0.requestCount } }
    /// Of the requests that were answered with 200.
    package var spans: [Span] { state.withLock { $0.spans } }

    package func set(_ manner: Manner) { state.withLock { $0.manner = manner } }

    /// The status of the answer; nil for none.
    fileprivate func received(_ head: HTTPRequestHead, _ body: ByteBuffer) -> Int? {
        state.withLock { state in
            state.requestCount += 1
            guard case .answers(let status) = state.manner else { return nil }
            guard status == 200 else { return status }
            guard head.method == .POST, head.uri == "/v1/traces", head.headers["content-type"] == ["application/json"],
                let export = try? JSONDecoder().decode(Export.self, from: Data(body.readableBytesView))
            else { return 400 }
            state.spans += export.spans
            return status
        }
    }
}

/// An `ExportTraceServiceRequest`.
private struct Export: Decodable {
    struct Attribute: Decodable {
        struct Value: Decodable {
            var stringValue: String?
            var intValue: String?
        }
        var key: String
        var value: Value
    }
    struct Resource: Decodable {
        var attributes: [Attribute]
    }
    struct Status: Decodable {
        var code: Int?
    }
    struct Span: Decodable {
        var traceId: String
        var spanId: String
        var parentSpanId: String?
        var name: String
        var kind: Int
        var startTimeUnixNano: String
        var endTimeUnixNano: String
        var attributes: [Attribute]
        var status: Status
    }
    struct Scope: Decodable {
        var spans: [Span]
    }
    struct Group: Decodable {
        var resource: Resource
        var scopeSpans: [Scope]
    }
    var resourceSpans: [Group]

    private static func texts(_ attributes: [Attribute]) -> [String: String] {
        attributes.reduce(into: [:]) { $0[$1.key] = $1.value.stringValue ?? $1.value.intValue }
    }

    var spans: [SpanCollector.Span] {
        resourceSpans.flatMap { group in
            let node = Self.texts(group.resource.attributes)["service.instance.id"] ?? ""
            return group.scopeSpans.flatMap(\.spans).map { span in
                SpanCollector.Span(
                    node: node, trace: span.traceId, id: span.spanId, parent: span.parentSpanId, name: span.name,
                    kind: span.kind, isFailure: span.status.code == 2, attributes: Self.texts(span.attributes))
            }
        }
    }
}

private final class CollectorHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = HTTPServerResponsePart

    private let collector: SpanCollector
    private var head: HTTPRequestHead?
    private var body = ByteBuffer()

    init(_ collector: SpanCollector) { self.collector = collector }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head): (self.head, body) = (head, ByteBuffer())
        case .body(var part): body.writeBuffer(&part)
        case .end:
            guard let head, let status = collector.received(head, body) else { return }
            let answer = HTTPResponseHead(
                version: .http1_1, status: HTTPResponseStatus(statusCode: status), headers: ["Content-Length": "2"])
            context.write(wrapOutboundOut(.head(answer)), promise: nil)
            context.write(wrapOutboundOut(.body(.byteBuffer(ByteBuffer(string: "{}")))), promise: nil)
            context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
        }
    }
}

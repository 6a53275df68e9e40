import Foundation
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
    private let receiver = Mutex<HTTPReceiver?>(nil)

    private init(_ manner: Manner) { state = Mutex(State(manner: manner)) }

    /// - Parameter port: 0 asks the system for a free one.
    package static func start(_ manner: Manner = .answers(200), port: Int = 0) async throws -> SpanCollector {
        let collector = SpanCollector(manner)
        let receiver = try await HTTPReceiver.start(port: port) { [weak collector] request, _ in
            collector?.received(request)
        }
        collector.receiver.withLock { $0 = receiver }
        return collector
    }

    package func stop() async throws { try await receiver.withLock { $0.take() }?.stop() }

    package var port: Int { receiver.withLock { $0 }?.port ?? 0 }
    package var requestCount: Int { state.withLock { $0.requestCount } }
    /// Of the requests that were answered with 200.
    package var spans: [Span] { state.withLock { $0.spans } }

    package func set(_ manner: Manner) { state.withLock { $0.manner = manner } }

    /// The status of the answer; nil for none.
    private func received(_ request: HTTPReceiver.Request) -> Int? {
        state.withLock { state in
            state.requestCount += 1
            guard case .answers(let status) = state.manner else { return nil }
            guard status == 200 else { return status }
            guard request.method == "POST", request.path == "/v1/traces",
                request.headers["content-type"] == "application/json",
                let export = try? JSONDecoder().decode(Export.self, from: Data(request.body.utf8))
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

package import ApusCore
package import Tracing

/// Which traces are recorded.
///
/// Pure: the caller brings the trace's random id.
package struct TraceSampler: Sendable {
    private let bound: UInt64
    private let isEveryTrace: Bool

    /// - Parameter ratio: of the traces that begin here, 0 to 1.
    package init(ratio: Double) {
        isEveryTrace = ratio >= 1
        bound = ratio > 0 && ratio < 1 ? UInt64(ratio * 0x1p64) : 0
    }

    /// The decision for a span: its parent's, or by the trace's id where it has no parent.
    package func isSampled(parent: TraceContext?, traceLow: UInt64) -> Bool {
        if let parent { return parent.isSampled }
        return isEveryTrace || traceLow < bound
    }
}

/// The tracer of one node. It is passed to the node's parts, since a process may have several nodes: it is not the
/// tracer of the `InstrumentationSystem`.
///
/// A trace begins with a request of a client (``request(_:of:_:)`` without a parent). A node that receives a request of
/// another node continues a trace and begins none, so what nodes do by themselves is not traced.
///
/// Isolation: any thread.
package final class SpanTracer: Sendable {
    private let sampler: TraceSampler
    private let ended: @Sendable (FinishedSpan) -> Void

    /// - Parameters:
    ///   - sampleRatio: of the traces that begin here, 0 to 1.
    ///   - ended: receives each recorded span at its end; must not block.
    package init(sampleRatio: Double, ended: @escaping @Sendable (FinishedSpan) -> Void) {
        sampler = TraceSampler(ratio: sampleRatio)
        self.ended = ended
    }

    /// Starts the span of a client's request; nil if its trace is not recorded. Such a request costs one random number,
    /// and nothing afterwards.
    ///
    /// - Parameters:
    ///   - parent: as the client gave it; nil begins a trace.
    ///   - facts: the attributes.
    package func request(
        _ name: String, of parent: TraceContext?, _ facts: @autoclosure () -> KeyValuePairs<String, String>
    ) -> TraceSpan? {
        span(name, .server, of: parent, facts())
    }

    /// Starts the calling end of a call between two nodes; nil if its trace is not recorded.
    package func call(of method: UInt16, to peer: NodeName, of parent: TraceContext) -> TraceSpan? {
        span("node.call", .client, of: parent, Self.facts(method, peer))
    }

    /// Starts the serving end of a call between two nodes; nil if its trace is not recorded.
    package func answer(to method: UInt16, from peer: NodeName, of parent: TraceContext) -> TraceSpan? {
        span("node.call", .server, of: parent, Self.facts(method, peer))
    }

    private func span(
        _ name: String, _ kind: SpanKind, of parent: TraceContext?,
        _ facts: @autoclosure () -> KeyValuePairs<String, String>
    ) -> TraceSpan? {
        let traceLow = parent?.traceLow ?? Self.id()
        guard sampler.isSampled(parent: parent, traceLow: traceLow) else { return nil }
        var attributes: SpanAttributes = ["rpc.system": "apus"]
        for (name, value) in facts() { attributes.set(name, value: .string(value)) }
        return TraceSpan(
            name, kind, trace: Self.trace(parent, traceLow, isSampled: true), parent: parent?.span, in: .topLevel,
            start: DefaultTracerClock.now.nanosecondsSinceEpoch, attributes: attributes, ended: ended)
    }

    private static func facts(_ method: UInt16, _ peer: NodeName) -> KeyValuePairs<String, String> {
        let digits = String(method, radix: 16)
        let method = "0x" + String(repeating: "0", count: 4 - digits.count) + digits
        return [LogKey.method: method, LogKey.peer: peer.rawValue]
    }

    /// The context of a new span.
    private static func trace(_ parent: TraceContext?, _ traceLow: UInt64, isSampled: Bool) -> TraceContext {
        let trace = TraceContext(
            traceHigh: parent?.traceHigh ?? id(), traceLow: traceLow, span: id(), isSampled: isSampled)
        guard let trace else { preconditionFailure("an id of a span is 0") }
        return trace
    }

    private static func id() -> UInt64 { .random(in: 1...UInt64.max) }
}

extension SpanTracer: Tracer {
    package typealias Span = TraceSpan

    private static let field = "traceparent"

    package func startSpan<Instant: TracerInstant>(
        _ operationName: String, context: @autoclosure () -> ServiceContext, ofKind kind: SpanKind,
        at instant: @autoclosure () -> Instant, function: String, file fileID: String, line: UInt
    ) -> TraceSpan {
        let context = context()
        let traceLow = context.trace?.traceLow ?? Self.id()
        let isSampled = sampler.isSampled(parent: context.trace, traceLow: traceLow)
        return TraceSpan(
            operationName, kind, trace: Self.trace(context.trace, traceLow, isSampled: isSampled),
            parent: context.trace?.span, in: context, start: instant().nanosecondsSinceEpoch, attributes: [:],
            ended: isSampled ? ended : nil)
    }

    /// Spans are exported within a second in any case.
    package func forceFlush() {}

    package func inject<Carrier, Inject: Injector>(
        _ context: ServiceContext, into carrier: inout Carrier, using injector: Inject
    ) where Inject.Carrier == Carrier {
        if let trace = context.trace { injector.inject(trace.traceparent, forKey: Self.field, into: &carrier) }
    }

    package func extract<Carrier, Extract: Extractor>(
        _ carrier: Carrier, into context: inout ServiceContext, using extractor: Extract
    ) where Extract.Carrier == Carrier {
        guard let text = extractor.extract(key: Self.field, from: carrier),
            let trace = TraceContext(traceparent: text)
        else { return }
        context.trace = trace
    }
}

import ApusCore
import ApusTracing
import Synchronization
import Testing
import Tracing

@Suite("Spans")
struct SpanTracerTests {
    /// Keeps the spans that ended.
    private final class Ended: Sendable {
        private let list = Mutex<[FinishedSpan]>([])
        var spans: [FinishedSpan] { list.withLock { $0 } }
        func tracer(_ ratio: Double) -> SpanTracer {
            SpanTracer(sampleRatio: ratio) { span in self.list.withLock { $0.append(span) } }
        }
    }

    private static func parent(isSampled: Bool) throws -> TraceContext {
        try #require(TraceContext(traceHigh: 1, traceLow: 2, span: 3, isSampled: isSampled))
    }

    @Test("A parent's decision is kept; without one the trace's id decides")
    func sampler() throws {
        let (yes, no) = (try Self.parent(isSampled: true), try Self.parent(isSampled: false))
        for ratio in [0, 0.5, 1] {
            let sampler = TraceSampler(ratio: ratio)
            #expect(sampler.isSampled(parent: yes, traceLow: .max))
            #expect(!sampler.isSampled(parent: no, traceLow: 0))
            #expect(sampler.isSampled(parent: nil, traceLow: .max) == (ratio == 1))
            #expect(sampler.isSampled(parent: nil, traceLow: 1) == (ratio > 0))
        }
        #expect(TraceSampler(ratio: 0.5).isSampled(parent: nil, traceLow: 1 << 63 - 1))
        #expect(!TraceSampler(ratio: 0.5).isSampled(parent: nil, traceLow: 1 << 63))
    }

    @Test("A request of no recorded trace has no span; one of a recorded trace ends once, with its error")
    func request() throws {
        let ended = Ended()
        let (yes, no) = (try Self.parent(isSampled: true), try Self.parent(isSampled: false))
        #expect(ended.tracer(0).request("a", of: nil, [:]) == nil)
        #expect(ended.tracer(1).request("a", of: no, [:]) == nil)
        let span = try #require(ended.tracer(0).request("b", of: yes, ["key": "value"]))
        span.fail(.overloaded)
        span.end()
        span.end()
        let found = try #require(ended.spans.first)
        #expect(ended.spans.count == 1 && found.name == "b" && found.kind == .server && found.parent == 3)
        #expect(found.trace.traceLow == 2 && found.trace.span != 3 && found.isFailure && found.end >= found.start)
        #expect(found.attributes == ["rpc.system": "apus", "key": "value", "apus.code": .int(10_007)])
    }

    @Test("Work inside a span has its context, and so have tasks that it creates, outside of tasks too")
    func context() async throws {
        let span = try #require(Ended().tracer(1).request("a", of: nil, [:]))
        #expect(TraceContext.current == nil)
        #expect(await span.run { TraceContext.current } == span.trace)
        let task = TraceContext.within(span.trace) { Task { TraceContext.current } }
        #expect(await task.value == span.trace)
        let other = await span.run { TraceContext.within(nil) { TraceContext.current } }
        #expect(other == nil)
    }

    @Test("The interface of swift-distributed-tracing makes children, and passes traceparent on")
    func interface() {
        let ended = Ended()
        let tracer = ended.tracer(1)
        tracer.withSpan("outer") { outer in
            tracer.withSpan("inner", ofKind: .client) { inner in
                #expect(inner.trace.traceID == outer.trace.traceID)
                #expect(TraceContext.current == inner.trace)
            }
        }
        #expect(ended.spans.map(\.name) == ["inner", "outer"])
        #expect(ended.spans[0].parent == ended.spans[1].trace.span && ended.spans[1].parent == nil)
        var fields: [String: String] = [:]
        tracer.inject(tracer.startSpan("c").context, into: &fields, using: Fields())
        var context = ServiceContext.topLevel
        tracer.extract(fields, into: &context, using: Fields())
        #expect(context.trace?.traceparent == fields["traceparent"] && context.trace != nil)
        #expect(!ended.tracer(0).startSpan("d", context: .topLevel).isRecording)
    }

    private struct Fields: Injector, Extractor {
        func inject(_ value: String, forKey key: String, into carrier: inout [String: String]) { carrier[key] = value }
        func extract(key: String, from carrier: [String: String]) -> String? { carrier[key] }
    }

    @Test("Spans are written as OTLP over HTTP has them, texts escaped")
    func export() throws {
        let trace = try #require(TraceContext(traceHigh: 0x1a, traceLow: 0x2b, span: 0x3c, isSampled: true))
        let span = FinishedSpan(
            trace: trace, parent: 0x4d, name: "a \"b\"\n\\é", kind: .client, start: 5, end: 1_700_000_000_123_456_789,
            attributes: ["n": 7, "b": true, "s": "x"], isFailure: true)
        let head = #"{"resourceSpans":[{"resource":{"attributes":[{"key":"r","value":{"stringValue":"v"}}]},"#
        #expect(
            TraceExport.json([span], resource: [("r", "v")]) == head
                + #""scopeSpans":[{"scope":{"name":"apus"},"spans":[{"traceId":"000000000000001a000000000000002b","#
                + #""spanId":"000000000000003c","parentSpanId":"000000000000004d","name":"a \"b\"\u000a\\é","kind":3,"#
                + #""startTimeUnixNano":"5","endTimeUnixNano":"1700000000123456789","attributes":["#
                + #"{"key":"b","value":{"boolValue":true}},{"key":"n","value":{"intValue":"7"}},"#
                + #"{"key":"s","value":{"stringValue":"x"}}],"status":{"code":2}}]}]}]}"#)
        var plain = span
        (plain.parent, plain.isFailure) = (nil, false)
        let text = TraceExport.json([plain, plain], resource: [])
        #expect(!text.contains("parentSpanId") && text.contains(#""status":{}},{"traceId""#))
    }
}

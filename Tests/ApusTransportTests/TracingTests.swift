import ApusCore
import ApusTestKit
import ApusTracing
import ApusTransport
import NIOCore
import Synchronization
import Testing

@Suite("Traces of calls between two nodes", .timeLimit(.minutes(2)))
struct TracingTests {
    private final class Ended: Sendable {
        private let list = Mutex<[FinishedSpan]>([])
        var spans: [FinishedSpan] { list.withLock { $0 } }
        func makeTracer() -> SpanTracer {
            SpanTracer(sampleRatio: 1) { span in self.list.withLock { $0.append(span) } }
        }
    }

    private static func asked(_ pair: TestPair, _ method: UInt16, _ text: String) async -> String? {
        (try? await pair.ask(method, ByteBuffer(string: text))).map { String(buffer: $0) }
    }

    @Test("A traced call is a span at either end, the second a child of the first; others are none")
    func hop() async throws {
        let (a, b) = (Ended(), Ended())
        try await TestPair.with(tracers: (a.makeTracer(), b.makeTracer())) { pair in
            #expect(await Self.asked(pair, 1, "hello") == "hello")
            #expect(a.spans.isEmpty && b.spans.isEmpty)
            let root = try #require(Ended().makeTracer().request("test", of: nil, [:]))
            #expect(await root.run { await Self.asked(pair, 1, "hello") } == "hello")
            let (client, server) = (try #require(a.spans.first), try #require(b.spans.first))
            #expect(a.spans.count == 1 && b.spans.count == 1 && client.name == "node.call")
            #expect(client.parent == root.trace.span && server.parent == client.trace.span)
            #expect(client.trace.traceID == root.trace.traceID && server.trace.traceID == root.trace.traceID)
            #expect(!client.isFailure && !server.isFailure)
        }
    }

    @Test("The handler's task has the trace, and a failure is noted at both ends")
    func handler() async throws {
        let (a, b) = (Ended(), Ended())
        try await TestPair.with(tracers: (a.makeTracer(), b.makeTracer())) { pair in
            let root = try #require(Ended().makeTracer().request("test", of: nil, [:]))
            let seen = await root.run { await Self.asked(pair, 8, "") }
            #expect(seen == b.spans.first?.trace.traceparent)
            #expect(await root.run { await Self.asked(pair, 4, "") } == nil)
            #expect(a.spans.last?.isFailure == true && b.spans.last?.isFailure == true)
        }
    }

    @Test("A cancelled call ends its span at both ends")
    func cancelled() async throws {
        let (a, b) = (Ended(), Ended())
        try await TestPair.with(tracers: (a.makeTracer(), b.makeTracer())) { pair in
            let root = try #require(Ended().makeTracer().request("test", of: nil, [:]))
            let call = Task { await root.run { await Self.asked(pair, 3, "") } }
            try await eventually("the handler runs") { pair.b.control.seen.withLock { $0.sleeping } == 1 }
            call.cancel()
            #expect(await call.value == nil)
            try await eventually("both spans ended") { a.spans.count == 1 && b.spans.count == 1 }
            #expect(a.spans.first?.isFailure == true && b.spans.first?.isFailure == true)
        }
    }

    @Test("A node that does not trace gets the payload alone, compressed or not, and the largest that fits")
    func mixed() async throws {
        let a = Ended()
        let bound = 4096
        try await TestPair.with(
            tracers: (a.makeTracer(), nil),
            configure: {
                $0.frameByteCountMax = bound
                $0.compressionThreshold = 512
            }
        ) { pair in
            let root = try #require(Ended().makeTracer().request("test", of: nil, [:]))
            for count in [0, 511, 512, bound - 26, bound - 25, bound - 24, bound] {
                // Noise is not compressed by much, so that the bound is that of the payload.
                let bytes = (0..<count).map { _ in UInt8.random(in: 0...255) }
                for payload in [ByteBuffer(bytes: bytes), ByteBuffer(repeating: 7, count: count)] {
                    let answer = await root.run { try? await pair.ask(1, payload) }
                    #expect(answer == payload, "\(count) bytes")
                }
            }
            #expect(a.spans.count == 14)
        }
    }
}

import ApusCore
import ApusHTTP
import ApusTestKit
import ApusTracing
import Logging
import NIOCore
import NIOPosix
import Testing

@Suite("Spans on their way to a collector", .timeLimit(.minutes(1)))
struct SpanExporterTests {
    private static func exporter(port: Int, wait: Duration = .milliseconds(20)) throws -> SpanExporter {
        var configuration = TracingConfiguration()
        configuration.endpoint = TracingConfiguration.Endpoint(address: HostPort(host: "127.0.0.1", port: port))
        (configuration.sampleRatio, configuration.queueMax) = (1, 16)
        var limits = SpanExporter.Queue.Limits()
        (limits.batchCountMax, limits.batchWait) = (8, wait)
        limits.retryWaits = [.milliseconds(50), .milliseconds(200), .seconds(1), .seconds(5)]
        let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        return try #require(
            SpanExporter(
                configuration, cluster: ClusterID(unchecked: "home"),
                node: NodeID(name: NodeName(unchecked: "n1"), incarnation: 3),
                on: MultiThreadedEventLoopGroup.singleton.next(), limits: limits, timeout: .milliseconds(200),
                limited: LogLimiter(log)))
    }

    private static func record(_ count: Int, _ exporter: SpanExporter) {
        let tracer = exporter.makeTracer()
        for number in 0..<count { tracer.request("request \(number)", of: nil, ["number": "\(number)"])?.end() }
    }

    @Test("Finished spans arrive in order, with their names, attributes and node")
    func arrival() async throws {
        let collector = try await SpanCollector.start()
        let exporter = try Self.exporter(port: collector.port)
        Self.record(12, exporter)
        try await eventually("all spans arrived") { collector.spans.count == 12 }
        #expect(collector.spans.map { $0.attributes["number"] } == (0..<12).map { "\($0)" })
        #expect(collector.spans.allSatisfy { $0.node == "n1#3" && $0.parent == nil && $0.kind == 2 })
        #expect(collector.spans.last?.name == "request 11" && collector.requestCount >= 2)
        await exporter.drain()
        try await collector.stop()
    }

    @Test("A collector that is overloaded, or answers too late, gets the same spans again")
    func again() async throws {
        for manner in [SpanCollector.Manner.answers(503), .isSilent] {
            let collector = try await SpanCollector.start(manner)
            let exporter = try Self.exporter(port: collector.port)
            Self.record(3, exporter)
            try await eventually("the first attempt came") { collector.requestCount >= 1 }
            collector.set(.answers(200))
            try await eventually("another attempt came") { collector.spans.count == 3 }
            await exporter.drain()
            #expect(collector.spans.count == 3 && collector.requestCount >= 2)
            try await collector.stop()
        }
    }

    @Test("A collector that refuses spans does not get them again, but the next ones")
    func refusal() async throws {
        let collector = try await SpanCollector.start(.answers(400))
        let exporter = try Self.exporter(port: collector.port, wait: .milliseconds(100))
        Self.record(2, exporter)
        try await eventually("they came") { collector.requestCount == 1 }
        collector.set(.answers(200))
        Self.record(1, exporter)
        await exporter.drain()
        #expect(collector.spans.count == 1 && collector.requestCount == 2)
        try await collector.stop()
    }

    @Test("A collector that is away is found when it is back, and the queue keeps no more than its bound")
    func away() async throws {
        let port = try FreePort.next()
        let exporter = try Self.exporter(port: port)
        Self.record(40, exporter)
        let collector = try await SpanCollector.start(port: port)
        // The first batch is sent again; the other half of the bound follows it.
        try await eventually("what was kept arrived") { collector.spans.count == 16 }
        await exporter.drain()
        #expect(collector.spans.count == 16)
        try await collector.stop()
    }

    @Test("A drain sends what waits at once, and ends within its time if nobody answers")
    func drain() async throws {
        let collector = try await SpanCollector.start()
        let exporter = try Self.exporter(port: collector.port, wait: .seconds(60))
        Self.record(10, exporter)
        // A full batch went out; two spans wait.
        await exporter.drain()
        #expect(collector.spans.count == 10)
        Self.record(1, exporter)
        try await collector.stop()

        let silent = try await SpanCollector.start(.isSilent)
        let late = try Self.exporter(port: silent.port, wait: .seconds(60))
        Self.record(16, late)
        let start = MonotonicTime.now()
        await late.drain()
        #expect(MonotonicTime.now() - start < .seconds(10))
        try await silent.stop()
    }

    @Test(
        "An endpoint is a plain address, or one with a path",
        arguments: [
            ("http://127.0.0.1:4318", "127.0.0.1:4318 /v1/traces"), ("http://[::1]:4318/", "[::1]:4318 /v1/traces"),
            ("http://collector:80/otlp", "collector:80 /otlp/v1/traces"), ("https://collector:80", nil),
            ("collector:80", nil), ("http://collector", nil), ("http://collector:0", nil), ("http://a:1/b c", nil),
        ] as [(String, String?)])
    func endpoints(text: String, expected: String?) {
        let endpoint = TracingConfiguration.Endpoint(text)
        #expect(endpoint.map { "\($0.address) \($0.path)" } == expected)
    }
}

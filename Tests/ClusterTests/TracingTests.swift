import ApusCore
import ApusTestKit
import Foundation
import Testing

@Suite("Traces over the nodes of a cluster", .serialized, .timeLimit(.minutes(3)))
struct TracingTests {
    private static let parent = "00f067aa0ba902b7"

    /// The header field of a trace of this number.
    private static func traceparent(_ number: UInt64, isSampled: Bool = true) -> String {
        "00-\(traceID(number))-\(parent)-\(isSampled ? "01" : "00")"
    }

    private static func traceID(_ number: UInt64) -> String { TraceContext.text(1) + TraceContext.text(number) }

    /// The serving end of a call between two nodes.
    private static func served(_ spans: [SpanCollector.Span]) -> SpanCollector.Span? {
        spans.first { $0.name == "node.call" && $0.kind == 2 }
    }

    @Test("A request whose device another node owns is a span at its node, and a call at both")
    func hop() async throws {
        let collector = try await SpanCollector.start()
        let cluster = try Cluster(
            nodes: 2, basePort: 31_500,
            environment: [
                "APUS_TRACING_ENDPOINT": "http://127.0.0.1:\(collector.port)", "APUS_TRACING_SAMPLE_RATIO": "0",
            ])
        defer { cluster.down() }
        let minted = try cluster.run("admin", "token", "--role", "app", "--ttl", "2h")
        try #require(minted.status == 0, "\(minted.all)")
        let token = minted.output.trimmingCharacters(in: .whitespacesAndNewlines)

        let rest = try #require(PlainHTTP(port: cluster.httpPort(1)))
        func ask(_ number: UInt64, _ traceparent: String?) throws {
            let path = "/v1/devices/cam-\(number)/presence"
            let answer = try #require(rest.exchange("GET", path, token: token, traceparent: traceparent))
            #expect(answer.status == 404, "no such device: \(answer.body)")
        }
        // Each device is in another shard, and every second shard is at the other node.
        for number in UInt64(1)...16 { try ask(number, Self.traceparent(number)) }
        // Neither the client nor the node wants these.
        for number in UInt64(17)...32 { try ask(number, Self.traceparent(number, isSampled: false)) }
        for number in UInt64(33)...48 { try ask(number, nil) }
        let socket = try #require(PlainWebSocket(port: cluster.httpPort(2)))
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#))
        try #require(socket.receive()?["welcome"] != nil)
        let request = #"{"id":1,"request":"devices.list","traceparent":"\#(Self.traceparent(99))","body":{}}"#
        try #require(socket.send(request))
        try #require(socket.receive()?["response"] != nil)

        let wanted = Set((1...16).map { Self.traceID($0) } + [Self.traceID(99)])
        try await eventually("the spans of all requests and of a call arrived") {
            let spans = collector.spans
            return wanted.isSubset(of: spans.filter { $0.parent == Self.parent }.map(\.trace))
                && Self.served(spans) != nil
        }
        let server = try #require(Self.served(collector.spans))
        try await eventually("both ends of the call and the request arrived") {
            collector.spans.filter { $0.trace == server.trace }.count >= 3
        }
        let spans = collector.spans
        let client = try #require(spans.first { $0.id == server.parent })
        let root = try #require(spans.first { $0.id == client.parent })
        #expect(client.name == "node.call" && client.kind == 3 && root.name == "presence.get" && root.kind == 2)
        #expect(root.parent == Self.parent && root.trace == server.trace && client.trace == server.trace)
        #expect(root.node.hasPrefix("n1#") && client.node == root.node && server.node.hasPrefix("n2#"))
        #expect(root.attributes["apus.protocol"] == "rest" && root.attributes["apus.role"] == "app")
        #expect(client.attributes["apus.peer"] == "n2" && server.attributes["apus.peer"] == "n1")
        // The device is not known (8002), which its owner said.
        #expect([root, client, server].allSatisfy { $0.isFailure && $0.attributes["apus.code"] == "8002" })
        let list = try #require(spans.first { $0.trace == Self.traceID(99) && $0.parent == Self.parent })
        #expect(list.name == "devices.list" && list.attributes["apus.protocol"] == "websocket" && !list.isFailure)
        #expect(Set(spans.map(\.trace)) == wanted, "what is not to be recorded is not")
        try await eventually("node 1 counted its spans") {
            (NodeView(1, of: cluster).metric("apus_trace_spans_exported_total") ?? 0) >= 17
        }
        try await collector.stop()
    }
}

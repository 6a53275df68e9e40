import ApusCore
import ApusNodeConfiguration
import Foundation
import Testing

/// What `/metrics` of running nodes says (D13).
@Suite(.serialized, .timeLimit(.minutes(2)))
struct MetricsTests {
    @Test(
        "Sessions, streams and terms are counted while they change, and every metric is in the catalogue with its help")
    func threeNodes() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 29_000)
        defer { cluster.down() }
        let nodes = (1...3).map { NodeView($0, of: cluster) }
        let camera = try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25", "--node", "2")
        try await expect("the camera's session", of: nodes[1], "apus_gateway_open_sessions{role=\"device\"}", 1)
        try await expect("the published stream", of: nodes[1], "apus_gateway_streams{direction=\"published\"}", 1)
        let viewer = try cluster.start("watch", "cam", "--node", "3")
        try await expect("the viewer's session", of: nodes[2], "apus_gateway_open_sessions{role=\"app\"}", 1)
        try await expect("the played stream", of: nodes[2], "apus_gateway_streams{direction=\"played\"}", 1)
        for node in nodes { try expectKnown(try #require(node.get("/metrics")).body) }

        for client in [viewer, camera] {
            client.terminate()
            client.waitUntilExit()
        }
        try await expect("the session's end", of: nodes[1], "apus_gateway_open_sessions{role=\"device\"}", 0)
        try await expect("the stream's end", of: nodes[1], "apus_gateway_streams{direction=\"published\"}", 0)
        try await expect("the session's end", of: nodes[2], "apus_gateway_open_sessions{role=\"app\"}", 0)
        try await expect("the stream's end", of: nodes[2], "apus_gateway_streams{direction=\"played\"}", 0)

        // The dead node's shards have new owners: that many terms rise, for each of those that are left.
        let before = try nodes[1...].map { try #require($0.metric("apus_cluster_term_changes_total")) }
        let owned = try #require(nodes[0].metric("apus_cluster_shards_owned"))
        try #require(cluster.run("cluster", "kill", "1").status == 0)
        for (node, count) in zip(nodes[1...], before) {
            try await expect("the terms of the dead node's shards", of: node, "apus_cluster_term_changes_total") {
                $0 >= count + owned
            }
        }
    }

    @Test("Requests are counted by the route's pattern and status; paths that nobody serves share a series")
    func requests() throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_030)
        defer { cluster.down() }
        let node = NodeView(1, of: cluster)
        for path in ["/no/such", "/nor/this", "/v1/relay/credentials", "/healthz"] {
            _ = try #require(node.get(path))
        }
        let text = try #require(node.get("/metrics")).body
        #expect(text.contains("\napus_http_requests_total{route=\"none\",status=\"404\"} 2\n"))
        #expect(text.contains("\napus_http_requests_total{route=\"/v1/relay/credentials\",status=\"401\"} 1\n"))
        #expect(text.contains("\napus_http_request_seconds_count{route=\"none\"} 2\n"))
        #expect(!text.contains("such"))
    }

    /// Waits at most 10 s until a series has a value.
    private func expect(_ what: String, of node: NodeView, _ series: String, _ value: Double) async throws {
        try await expect(what, of: node, series) { $0 == value }
    }

    private func expect(
        _ what: String, of node: NodeView, _ series: String, _ isExpected: (Double) -> Bool
    ) async throws {
        var last: Double?
        for _ in 0..<100 {
            last = node.get("/metrics")?.body.split(separator: "\n").first { $0.hasPrefix("\(series) ") }
                .flatMap { $0.split(separator: " ").last }.flatMap { Double($0) }
            if let last, isExpected(last) { return }
            try await Task.sleep(for: .milliseconds(100))
        }
        Issue.record("\(what): \(series) is \(last.map { "\($0)" } ?? "missing") at the node with port \(node.port)")
    }

    /// Every family is in the catalogue, with its help, kind and labels.
    private func expectKnown(_ text: String) throws {
        let types = text.matches(of: /# TYPE (\w+) (\w+)\n/)
        #expect(types.count > 80)
        for type in types {
            let metric = ProgramServices.metricsByName[String(type.1)]
            #expect(metric?.kind.rawValue == String(type.2), "\(type.1)")
            #expect(text.contains("# HELP \(type.1) \(metric?.help ?? "?")\n"), "\(type.1)")
        }
        for series in text.matches(of: #/\n(\w+)\{(.*)\} /#) {
            var name = String(series.1)
            for suffix in ["_bucket", "_sum", "_count"] where ProgramServices.metricsByName[name] == nil {
                if name.hasSuffix(suffix) { name = String(name.dropLast(suffix.count)) }
            }
            let known = Set(ProgramServices.metricsByName[name]?.labels.map(\.name) ?? []).union(["le"])
            let labels = Set(series.2.matches(of: /(\w+)="/).map { String($0.1) })
            #expect(labels.isSubset(of: known), "\(name) has the labels \(labels)")
        }
    }
}

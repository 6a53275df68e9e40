import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Faults of the network and of clocks. One after the other: the machine is small.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct NetworkFaultTests {
    /// A network of this test's own, in which datagrams can be refused.
    private static let hasNamespaces =
        geteuid() == 0 && (try? command("ip", "netns", "add", "apus-try"))?.status == 0
        && (try? command("ip", "netns", "exec", "apus-try", "nft", "add", "table", "inet", "apus"))?.status == 0
        && (try? command("ip", "netns", "del", "apus-try"))?.status == 0

    private static func command(_ arguments: String...) throws -> Cluster.Outcome {
        try Cluster.run(arguments, binary: "/usr/bin/env")
    }

    @Test(
        "A node whose datagrams the system refuses for 100 ms (EPERM) stays alive (D4)",
        .enabled(if: hasNamespaces, "network namespaces with nftables cannot be made here"))
    func refusedDatagrams() async throws {
        let name = "apus-\(getpid())"
        let directory = NSTemporaryDirectory() + "/apus-refused-\(UUID().uuidString)"
        func inside(_ arguments: String...) throws -> Cluster.Outcome {
            try Cluster.run(["ip", "netns", "exec", name] + arguments, binary: "/usr/bin/env")
        }
        #expect(try Self.command("ip", "netns", "add", name).status == 0)
        defer {
            _ = try? inside(Cluster.apus, "cluster", "down", "--dir", directory)
            _ = try? Self.command("ip", "netns", "del", name)
            try? FileManager.default.removeItem(atPath: directory)
        }
        #expect(try inside("ip", "link", "set", "lo", "up").status == 0)
        let up = try inside(
            Cluster.apus, "cluster", "up", "--nodes", "3", "--dir", directory, "--base-port", "27210")
        try #require(up.status == 0, "\(up.all)")
        let rules = "\(directory)/rules"
        try """
        table inet apus {
            chain out {
                type filter hook output priority 0
                udp sport 27210 drop
            }
        }
        """.write(toFile: rules, atomically: true, encoding: .utf8)
        for _ in 0..<3 {
            let refused = try inside(
                "sh", "-c", "nft -f \(rules) && sleep 0.1; nft delete table inet apus; sleep 1")
            #expect(refused.status == 0, "\(refused.all)")
        }
        let metrics = try inside("curl", "-s", "http://127.0.0.1:27212/metrics")
        let refusedCount = metrics.output.split(separator: "\n")
            .first { $0.hasPrefix("apus_heartbeat_refused_total") }?.split(separator: " ").last.flatMap { Double($0) }
        #expect(refusedCount ?? 0 > 0, "no datagram was refused: \(metrics.errors)")
        let status = try inside(Cluster.apus, "cluster", "status", "--json", "--dir", directory)
        let root = try JSONSerialization.jsonObject(with: Data(status.output.utf8)) as? [String: Any]
        let nodes = root?["nodes"] as? [[String: Any]] ?? []
        #expect(nodes.count == 3)
        for node in nodes {
            #expect(node["incarnation"] as? Int == 1 && (node["members"] as? [String])?.count == 3, "\(node)")
        }
    }

    @Test(
        "A node whose clock is two hours ahead says so and takes tokens by its cluster's time (IV-A6)",
        .enabled(if: WrongClock.isBuilt, "Tests/Tools/wrong_clock.c is not built"))
    func wrongClock() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 27_240)
        defer { cluster.down() }
        let clock = try WrongClock(cluster, node: 3, ahead: .seconds(7200))
        defer { clock.end() }
        let (right, wrong) = (NodeView(1, of: cluster), NodeView(3, of: cluster))
        func condition(_ view: NodeView) -> NodeView.Status.Condition? {
            view.status?.conditions?.first { $0.type == "clock_differs" }
        }
        #expect(await waited(.seconds(20)) { condition(wrong)?.unhealthy == true } != nil)
        #expect(await waited(.seconds(10)) { condition(right)?.unhealthy == false } != nil)
        #expect(wrong.get("/healthz")?.status == 503)
        #expect(right.get("/healthz")?.status == 200)
        let offset = try #require(wrong.metric("apus_clock_offset_seconds"))
        #expect((-14_410 ... -14_390).contains(offset), "\(offset) s of both peers together")
        let made = try cluster.run("admin", "token", "--role", "app", "--account", "local", "--ttl", "1h")
        let token = made.output.trimmingCharacters(in: .whitespacesAndNewlines)
        // No such camera: a token that is taken gets as far as 8002.
        let watch = try cluster.run("watch", "nobody", "--token", token, "--node", "3", "--seconds", "10")
        #expect(watch.errors.contains("8002"), "\(watch.all)")
    }
}

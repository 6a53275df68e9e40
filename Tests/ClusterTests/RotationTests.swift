import ApusTestKit
import Foundation
import Testing

/// Real nodes that read changed keys and certificates at a SIGHUP, while a camera is watched.
@Suite("Keys and certificates are changed without a restart", .serialized, .timeLimit(.minutes(3)))
struct RotationTests {
    /// A cluster whose nodes have a list of revoked certificates.
    private struct Rotating {
        let cluster: Cluster
        let revoked: String

        init(basePort: Int) throws {
            revoked = NSTemporaryDirectory() + "/apus-revoked-\(UUID().uuidString).txt"
            try Data().write(to: URL(fileURLWithPath: revoked))
            cluster = try Cluster(nodes: 3, basePort: basePort, environment: ["APUS_TLS_REVOKED": revoked])
        }

        func down() {
            cluster.down()
            try? FileManager.default.removeItem(atPath: revoked)
        }

        func pki(_ arguments: String...) throws {
            let outcome = try Cluster.run(["admin", "pki"] + arguments + ["--dir", cluster.file("pki")])
            #expect(outcome.status == 0, "\(arguments): \(outcome.all)")
        }

        func nodes() throws -> [[String: Any]] {
            let status = try cluster.run("cluster", "status", "--json")
            let root = try JSONSerialization.jsonObject(with: Data(status.output.utf8)) as? [String: Any]
            return root?["nodes"] as? [[String: Any]] ?? []
        }

        func conditions(of node: Int) throws -> [String] {
            (try nodes()[node - 1]["conditions"] as? [[String: Any]] ?? []).compactMap { $0["type"] as? String }
        }

        func ownedByFirstTwo() throws -> Int {
            let shards = try nodes().prefix(2).compactMap { $0["shards"] as? [String: Any] }
            return shards.compactMap { $0["owned"] as? Int }.reduce(0, +)
        }

        func pid(of node: Int) throws -> pid_t { pid_t(try #require(try nodes()[node - 1]["pid"] as? Int)) }

        /// The sum of a metric's series at a node.
        func metric(_ name: String, of node: Int) -> Double {
            let lines = NodeView(node, of: cluster).get("/metrics")?.body.split(separator: "\n") ?? []
            return lines.filter { $0.hasPrefix(name) }
                .compactMap { $0.split(separator: " ").last.flatMap { Double($0) } }.reduce(0, +)
        }

        /// Reloads nodes, and waits until each has applied or refused it.
        func reload(_ nodes: ClosedRange<Int> = 1...3, outcome: String = "applied") async throws {
            for node in nodes {
                let name = "apus_node_reloads_total{outcome=\"\(outcome)\"}"
                let before = metric(name, of: node)
                kill(try pid(of: node), SIGHUP)
                let applied = try await RotationTests.wait { metric(name, of: node) == before + 1 }
                let shown = try conditions(of: node)
                #expect(applied, "node \(node) has not \(outcome) the reload: \(shown)")
            }
        }
    }

    private static func wait(
        _ timeout: Duration = .seconds(10), _ condition: () async throws -> Bool
    ) async throws -> Bool {
        let deadline = ContinuousClock.now + timeout
        while ContinuousClock.now < deadline {
            if try await condition() { return true }
            try await Task.sleep(for: .milliseconds(20))
        }
        return false
    }

    @Test("Authority, certificates, token key and cluster's key are changed; no frame and no link is lost")
    func rotation() async throws {
        let rotating = try Rotating(basePort: 25_600)
        let cluster = rotating.cluster
        defer { rotating.down() }
        let old = try cluster.run("admin", "token", "--role", "app", "--access", "early", "--ttl", "1h")
        let oldToken = old.output.trimmingCharacters(in: .whitespacesAndNewlines)
        let camera = try cluster.start(
            "device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("d"))
        _ = try await cluster.primary(of: "cam/0")
        let viewers = try (1...3).map {
            try cluster.start("watch", "cam", "--node", "n\($0)", "--log", cluster.file("w\($0)"))
        }
        for node in 1...3 {
            #expect(try await Self.wait { !Cluster.text(cluster.file("w\(node)")).isEmpty })
        }

        for step in ["add", "use", "remove"] {
            for secret in ["authority", "tokens", "cluster"] {
                try rotating.pki("change", secret, step, "--cluster", "local")
            }
            if step == "use" { try rotating.pki("renew") }
            try await rotating.reload()
            for node in 1...3 { #expect(try rotating.conditions(of: node) == []) }
            // A new client with what the cluster has now.
            let watch = try cluster.run("watch", "cam", "--seconds", "1", "--log", cluster.file("new-\(step)"))
            #expect(watch.status == 0 && !Frames(cluster.file("new-\(step)")).lines.isEmpty, "\(step): \(watch.all)")
            // A token of the old key is valid until that key is removed.
            let early = try cluster.run("watch", "cam", "--seconds", "1", "--token", oldToken)
            #expect((early.status == 0) == (step != "remove"), "\(step): \(early.all)")
        }

        // A broken file changes nothing.
        let certificate = cluster.file("pki/n2.pem")
        let whole = Cluster.text(certificate)
        try String(whole.dropLast(100)).write(toFile: certificate, atomically: true, encoding: .utf8)
        try await rotating.reload(2...2, outcome: "refused")
        #expect(try rotating.conditions(of: 2) == ["reload_failed"])
        try whole.write(toFile: certificate, atomically: true, encoding: .utf8)
        try await rotating.reload(2...2)
        #expect(try rotating.conditions(of: 2) == [])

        #expect(viewers.allSatisfy(\.isRunning) && camera.isRunning)
        for node in 1...3 { #expect(rotating.metric("apus_transport_links_lost_total", of: node) == 0) }
        for process in viewers + [camera] {
            process.interrupt()
            process.waitUntilExit()
        }
        let sent = Frames(cluster.file("d"))
        for node in 1...3 {
            let seen = Frames(cluster.file("w\(node)"))
            #expect(seen.lines.count > 200, "the viewer at node \(node) saw \(seen.lines.count) frames")
            #expect(seen.lostCount == 0 && seen.doubledCount == 0, "node \(node): \(seen.gaps)")
            #expect(seen.differing(from: sent) == 0)
        }
    }

    @Test("A node whose certificate is revoked loses its links, is declared dead, and does not join again")
    func revocation() async throws {
        let rotating = try Rotating(basePort: 25_650)
        let cluster = rotating.cluster
        defer { rotating.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("d"))
        _ = try await cluster.primary(of: "cam/0")
        let viewer = try cluster.start("watch", "cam", "--node", "n1", "--log", cluster.file("w"))
        #expect(try await Self.wait { !Cluster.text(cluster.file("w")).isEmpty })
        try rotating.pki("revoke", "n3")
        try FileManager.default.removeItem(atPath: rotating.revoked)
        try FileManager.default.copyItem(atPath: cluster.file("pki/revoked.txt"), toPath: rotating.revoked)
        try await rotating.reload(1...2)
        let start = ContinuousClock.now
        let taken = try await Self.wait {
            try rotating.ownedByFirstTwo() == 4096
        }
        #expect(taken, "the others have not taken over the node's shards")
        print("the shards of a revoked node were taken over within \(ContinuousClock.now - start)")
        #expect(rotating.metric("apus_transport_rejected_total{reason=\"revoked\"}", of: 1) > 0)
        #expect(
            try await Self.wait { Cluster.text(cluster.file("n3/log")).contains("This node waits to join") },
            "the node does not wait")
        // It starts again, and waits: nobody accepts a link.
        try await Task.sleep(for: .seconds(3))
        #expect(try rotating.ownedByFirstTwo() == 4096, "the node has joined again")
        #expect(viewer.isRunning)
        viewer.interrupt()
        viewer.waitUntilExit()
        #expect(Frames(cluster.file("w")).doubledCount == 0)
    }
}

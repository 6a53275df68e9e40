import ApusTestKit
import Foundation
import Testing

/// The relay of a local cluster's nodes, through the real binary.
@Suite(.serialized, .timeLimit(.minutes(2)))
struct RelayTests {
    @Test("Every node relays: data goes from one node's relay to another's, with credentials that any node takes (D8)")
    func check() throws {
        let cluster = try Cluster(nodes: 2, basePort: 28_750)
        defer { cluster.down() }
        for (transport, first, second) in [
            ("udp", 28_753, 28_763), ("tcp", 28_753, 28_763), ("tls", 28_754, 28_764), ("dtls", 28_754, 28_764),
        ] {
            let check = try cluster.run("relay", "check", "--transport", transport)
            #expect(check.status == 0, "\(check.all)")
            #expect(
                check.output.contains("at 127.0.0.1:\(first)") && check.output.contains("at 127.0.0.1:\(second)"),
                "\(check.all)")
            #expect(check.output.contains("50 of 50 messages"), "\(check.all)")
        }
        let status = try cluster.run("cluster", "status", "--json")
        #expect(status.output.contains("\"relay\":\"127.0.0.1:28763\""), "\(status.all)")
        let issued = try cluster.run("relay", "credentials", "--user", "u")
        #expect(issued.output.contains("turn:127.0.0.1:28753?transport=udp"))
        #expect(issued.output.contains("turn:127.0.0.1:28763?transport=tcp"))
        #expect(issued.output.contains("turns:127.0.0.1:28764?transport=tcp"))
        let log = Cluster.text(cluster.file("n1/log"))
        #expect(log.contains("The relay permits peers in special ranges"))
        let wrong = try Cluster.run(["relay", "check", "--server", "127.0.0.1:28753", "--secret", "another secret"])
        #expect(wrong.status != 0 && wrong.all.contains("12001"), "\(wrong.all)")
        let nobody = try Cluster.run(["relay", "check", "--server", "127.0.0.1:28759", "--secret", "another secret"])
        #expect(nobody.status != 0 && nobody.all.contains("21022"), "\(nobody.all)")
    }

    @Test(
        "Relay of a killed node: a second allocation goes on within 250 ms, every ticket at another node (RFC 8016)"
    )
    func failover() throws {
        let bench = try Cluster.run(
            ["relay-failover", "--allocations", "60", "--repeats", "1", "--base-port", "28800", "--json"],
            binary: Cluster.bench)
        #expect(bench.status == 0, "\(bench.all)")
        let line = bench.output.split(separator: "\n").last.map(String.init) ?? ""
        let values = (try? JSONSerialization.jsonObject(with: Data(line.utf8))) as? [String: Double] ?? [:]
        #expect(values["revived"] == 60 && values["unreachable"] == 0, "\(bench.all)")
        #expect((values["warm_silence_max_ms"] ?? .infinity) <= 250, "\(bench.all)")
    }

    @Test(
        "A drained node sends clients with tickets to its standby, where they go on; new ones get 300 (RFC 8489 §10)"
    )
    func drain() throws {
        let bench = try Cluster.run(
            ["relay-failover", "--drain", "--allocations", "20", "--repeats", "1", "--base-port", "28850", "--json"],
            binary: Cluster.bench)
        #expect(bench.status == 0, "\(bench.all)")
        #expect(bench.output.contains("\"revived\":20"), "\(bench.all)")
        let cluster = try Cluster(nodes: 3, basePort: 28_900)
        defer { cluster.down() }
        let drained = try cluster.run("cluster", "drain", "n1", "--stay")
        #expect(drained.status == 0, "\(drained.all)")
        let issued = try cluster.run("relay", "credentials", "--user", "u")
        let server = try JSONDecoder().decode(IssuedServers.self, from: Data(issued.output.utf8)).iceServers[0]
        let asking = [
            "relay", "check", "--server", "127.0.0.1:28903", "--username", server.username, "--password",
            server.credential,
        ]
        let check = try Cluster.run(asking)
        #expect(check.status != 0 && check.all.contains("refuses with 300"), "\(check.all)")
        let status = try cluster.run("relay", "status", "--json")
        #expect(status.output.contains("\"draining\":true"), "\(status.all)")

        let undrained = try cluster.run("cluster", "undrain", "n1")
        #expect(undrained.status == 0, "\(undrained.all)")
        let accepted = try Cluster.run(asking)
        #expect(accepted.status == 0, "\(accepted.all)")
        let after = try cluster.run("relay", "status", "--json")
        #expect(!after.output.contains("\"draining\":true"), "\(after.all)")
    }

    @Test("A user's allocations are counted over the nodes; apus relay status says who has them")
    func quota() async throws {
        let cluster = try Cluster(
            nodes: 2, basePort: 28_950, environment: ["APUS_RELAY_QUOTA_ALLOCATIONS_MAX": "2"])
        defer { cluster.down() }
        // One allocation at each node.
        let holder = try cluster.start("relay", "check", "--user", "greedy", "--count", "5", "--hold", "60")
        // The second check must not come first: it would have the allocations, and the first would be refused.
        for _ in 0..<50 where holder.isRunning {
            let held = try cluster.run("relay", "status", "--json").output
            if held.components(separatedBy: #""user":"greedy""#).count == 3 { break }
            try await Task.sleep(for: .milliseconds(100))
        }
        var refused = try cluster.run("relay", "check", "--user", "greedy", "--count", "1")
        for _ in 0..<30 where !refused.all.contains("refuses with 486") {
            try await Task.sleep(for: .milliseconds(100))
            refused = try cluster.run("relay", "check", "--user", "greedy", "--count", "1")
        }
        #expect(holder.isRunning && refused.all.contains("refuses with 486"), "\(refused.all)")
        let other = try cluster.run("relay", "check", "--user", "other", "--count", "3")
        #expect(other.status == 0, "\(other.all)")
        let users = try cluster.run("relay", "status", "--json")
        #expect(users.output.contains("\"user\":\"greedy\""), "\(users.all)")
        holder.terminate()
        let table = try cluster.run("relay", "status")
        #expect(table.status == 0 && table.output.contains("ALLOCATIONS"), "\(table.all)")
        let status = try Cluster.run(["relay", "status", "--server", "127.0.0.1:28952", "--json"])
        #expect(status.output.contains("\"user_count\":"), "\(status.all)")
    }
}

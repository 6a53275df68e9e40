import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// What an operator does to nodes one by one, with real processes.
@Suite("Rolling upgrades, cordons and explanations (D3, D5)", .serialized, .timeLimit(.minutes(3)))
struct UpgradeTests {
    private typealias Object = [String: Any]

    private func json(_ cluster: Cluster, _ arguments: String...) throws -> Object {
        let outcome = try Cluster.run(arguments + ["--json", "--dir", cluster.directory])
        try #require(outcome.status == 0, "\(outcome.all)")
        return try #require(try JSONSerialization.jsonObject(with: Data(outcome.output.utf8)) as? Object)
    }

    private func nodes(_ cluster: Cluster) throws -> [String: Object] {
        let found = try #require(try json(cluster, "cluster", "status")["nodes"] as? [Object])
        return Dictionary(
            uniqueKeysWithValues: found.compactMap { node in
                (node["name"] as? String).map { ($0, node) }
            })
    }

    private func owned(_ cluster: Cluster, _ node: String) throws -> Int {
        try #require((try nodes(cluster)[node]?["shards"] as? Object)?["owned"] as? Int)
    }

    /// Waits until a condition holds, for at most 30 s.
    private func wait(_ what: String, _ fits: () throws -> Bool) async throws {
        for _ in 0..<300 {
            if try fits() { return }
            try await Task.sleep(for: .milliseconds(100))
        }
        throw TestFailure("\(what) did not happen in 30 s")
    }

    /// A shard that a node owns.
    private func shard(of node: String, in cluster: Cluster) throws -> String {
        let minted = try cluster.run("admin", "token", "--role", "admin")
        let http = try #require(PlainHTTP(port: cluster.httpPort(1)))
        let answer = try #require(
            http.exchange(
                "GET", "/v1/shards?owner=\(node)&page_size=1",
                token: minted.output.trimmingCharacters(in: .whitespacesAndNewlines)))
        let body = try JSONSerialization.jsonObject(with: Data(answer.body.utf8)) as? Object
        let shards = try #require(body?["shards"] as? [Object], "\(answer)")
        // Shard 0 has no number in JSON.
        return "\(shards.first?["shard"] as? Int ?? 0)"
    }

    @Test(
        "`why` names the death that moved a shard, who declared it and why, and the planned move that brought it back")
    func why() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 29_960)
        defer { cluster.down() }
        let shard = try shard(of: "n2", in: cluster)
        let before = try json(cluster, "cluster", "why", shard)
        #expect((before["shard"] as? Object)?["owner"] as? String == "n2")
        let first = try #require(before["ownerChange"] as? Object)
        #expect(["rebalanced", "joined"].contains(first["kind"] as? String))

        try #require(try cluster.run("cluster", "kill", "2").status == 0)
        try await wait("the death in the map") {
            try json(cluster, "cluster", "why", shard)["ownerChange"].map {
                ($0 as? Object)?["kind"] as? String == "dead"
            }
                ?? false
        }
        let after = try json(cluster, "cluster", "why", shard)
        let death = try #require(after["ownerChange"] as? Object)
        let owner = try #require((after["shard"] as? Object)?["owner"] as? String)
        #expect(owner != "n2")
        #expect(death["nodes"] as? [String] == ["n2#1"] && death["reason"] as? String == "process_ended")
        #expect(["n1#1", "n3#1"].contains(death["maker"] as? String))
        let sentence = try #require(after["ownerReason"] as? String)
        #expect(sentence.contains("n2#1") && sentence.contains("process had ended"))
        let time = try #require(Int64(death["firstMs"] as? String ?? ""))
        #expect(abs(Double(time) / 1000 - Date().timeIntervalSince1970) < 60)

        // A restart of the others' processes would lose what only they know; the record is in the map.
        try #require(try cluster.run("cluster", "restart", "2").status == 0)
        try await wait("the shard's way back") {
            (try json(cluster, "cluster", "why", shard)["shard"] as? Object)?["owner"] as? String == "n2"
        }
        let back = try json(cluster, "cluster", "why", shard)
        let move = try #require(back["ownerChange"] as? Object)
        #expect(move["kind"] as? String == "rebalanced" && move["maker"] as? String == "\(owner)#1")

        let text = try cluster.run("cluster", "why", "front-door")
        #expect(text.status == 0 && text.output.contains("owner") && text.output.contains("standby"), "\(text.all)")
        let changes = try #require(try json(cluster, "cluster", "changes")["changes"] as? [Object])
        #expect(changes.contains { $0["kind"] as? String == "dead" && $0["nodes"] as? [String] == ["n2#1"] })
        #expect(try cluster.run("cluster", "why", "4096").errors.contains("21031"))
    }

    @Test("A cordoned node keeps its shards, gets none after restarts, and gets its share after the cordon")
    func cordon() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_700)
        defer { cluster.down() }
        try await wait("the end of the moves after the start") {
            try nodes(cluster).values.allSatisfy { ($0["shards"] as? Object)?["misplaced"] as? Int == 0 }
        }
        let before = try owned(cluster, "n3")
        let cordoned = try cluster.run("cluster", "cordon", "3")
        try #require(cordoned.status == 0, "\(cordoned.all)")
        #expect(try nodes(cluster)["n3"]?["cordoned"] as? Bool == true)
        #expect(try owned(cluster, "n3") == before)
        #expect(try cluster.run("cluster", "status").output.contains("up, cordoned"))

        // Its own restart takes its shards away, and it gets none back. Another one's does not end the cordon.
        for node in ["3", "1"] {
            let outcome = try cluster.run("cluster", "restart", node)
            try #require(outcome.status == 0, "\(outcome.all)")
        }
        try await wait("the share of n1") { try owned(cluster, "n1") > 1000 }
        #expect(try owned(cluster, "n3") == 0)
        #expect(try nodes(cluster)["n3"]?["cordoned"] as? Bool == true)

        try #require(try cluster.run("cluster", "uncordon", "3").status == 0)
        try await wait("the share of n3") { try owned(cluster, "n3") > 1000 }

        let weighed = try cluster.run("cluster", "weight", "3", "400")
        try #require(weighed.status == 0, "\(weighed.all)")
        try await wait("the larger share of n3") { try owned(cluster, "n3") > 2500 }
        #expect(try cluster.run("cluster", "cordon", "9").errors.contains("21031"))
    }

    /// Another build of the program: the same with a byte after its end.
    private func otherBinary(in cluster: Cluster) throws -> String {
        let path = cluster.file("apus-next")
        try FileManager.default.copyItem(atPath: Cluster.apus, toPath: path)
        let file = try FileHandle(forWritingTo: URL(fileURLWithPath: path))
        try file.seekToEnd()
        try file.write(contentsOf: Data([0]))
        try file.close()
        return path
    }

    private func builds(_ cluster: Cluster) throws -> [String] {
        try nodes(cluster).sorted { $0.key < $1.key }.map {
            ($0.value["program"] as? Object)?["build"] as? String ?? ""
        }
    }

    private func incarnations(_ cluster: Cluster) throws -> [Int] {
        try nodes(cluster).sorted { $0.key < $1.key }.map { $0.value["incarnation"] as? Int ?? 0 }
    }

    @Test("An upgrade restarts every node with the new binary, and a viewer loses no frame")
    func upgrade() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_740)
        defer { cluster.down() }
        let binary = try otherBinary(in: cluster)
        let old = try builds(cluster)
        #expect(Set(old).count == 1 && old.first != "")
        let log = cluster.file("seen")
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("sent"))
        _ = try await cluster.primary(of: "cam/0")
        try cluster.start("watch", "cam", "--log", log)
        try await wait("the first frames") { Frames(log).lines.count > 20 }

        let planned = try json(cluster, "cluster", "upgrade", "--binary", binary, "--dry-run")
        #expect((planned["nodes"] as? [Object])?.allSatisfy { $0["result"] as? String == "planned" } == true)
        #expect(try incarnations(cluster) == [1, 1, 1])

        let done = try json(cluster, "cluster", "upgrade", "--binary", binary)
        #expect((done["nodes"] as? [Object])?.allSatisfy { $0["result"] as? String == "upgraded" } == true)
        #expect(try incarnations(cluster) == [2, 2, 2])
        let new = try builds(cluster)
        #expect(Set(new).count == 1 && new.first != old.first)
        let count = Frames(log).lines.count
        try await wait("frames after the upgrade") { Frames(log).lines.count > count + 20 }
        let seen = Frames(log)
        #expect(seen.lostCount == 0 && seen.doubledCount == 0, "\(seen.gaps)")

        // Nodes that are started again have the program of the upgrade, and not that of the verb.
        try #require(try cluster.run("cluster", "restart", "1").status == 0)
        try #require(try cluster.run("cluster", "kill", "2").status == 0)
        let up = try cluster.run("cluster", "up")
        try #require(up.status == 0, "\(up.all)")
        #expect(try builds(cluster) == new)
        try FileManager.default.removeItem(atPath: binary)
        let gone = try cluster.run("cluster", "restart", "1")
        let named = URL(fileURLWithPath: binary).standardizedFileURL.path
        #expect(gone.status != 0 && gone.errors.contains("10022") && gone.errors.contains(named), "\(gone.all)")
    }

    @Test("An upgrade stops at the node that does not come back, says which check failed, and leaves the others alone")
    func stops() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_780)
        defer { cluster.down() }
        let broken = cluster.file("broken")
        try "#!/bin/sh\nsleep 0.2\necho cannot start\nexit 3\n".write(toFile: broken, atomically: true, encoding: .utf8)
        chmod(broken, 0o755)
        let outcome = try cluster.run("cluster", "upgrade", "--binary", broken, "--timeout", "20", "--json")
        #expect(outcome.status != 0 && outcome.errors.contains("n1"), "\(outcome.all)")
        #expect(outcome.errors.contains("not touched"))
        let report = try #require(
            try JSONSerialization.jsonObject(with: Data(outcome.output.utf8)) as? Object, "\(outcome.all)")
        #expect(
            (report["nodes"] as? [Object])?.map { $0["result"] as? String } == ["failed", "untouched", "untouched"])
        #expect(try nodes(cluster)["n2"]?["incarnation"] as? Int == 1)

        // The next upgrade does not begin while the cluster is not well.
        let again = try cluster.run("cluster", "upgrade", "--dry-run")
        #expect(again.status != 0 && again.errors.contains("n1 is stopped"), "\(again.all)")
        try #require(try cluster.run("cluster", "restart", "1").status == 0)
        #expect(try cluster.run("cluster", "upgrade", "--binary", "/nonexistent").errors.contains("10022"))
    }
}

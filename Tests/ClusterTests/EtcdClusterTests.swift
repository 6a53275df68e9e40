import ApusTestKit
import Foundation
import Testing

/// Real nodes whose ownership is in etcd (D4, D9): the store is cut off, its leader is killed, its majority is lost.
@Suite("A cluster with etcd (D4, D9)", .serialized, .timeLimit(.minutes(4)), .enabled(if: IsolatedClusterTests.hasEtcd))
struct EtcdClusterTests {
    private typealias Isolated = IsolatedClusterTests.Isolated

    private func incarnations(_ cluster: Isolated) throws -> [UInt64] {
        try cluster.status().nodes.map(\.incarnation)
    }

    private func conditions(_ cluster: Isolated) throws -> [[String]] {
        try cluster.status().nodes.map { ($0.conditions ?? []).map(\.type) }
    }

    private func start(_ cluster: Isolated, _ arguments: String..., log: String) throws -> Process {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: Cluster.apus)
        process.arguments = arguments + ["--log", log, "--dir", cluster.directory]
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        try process.run()
        return process
    }

    @Test("A node that is cut off from etcd alone, and nodes without etcd's majority, go on; nothing moves")
    func withoutStore() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--etcd", "--nodes", "3")
        #expect(try cluster.status().stores?.map(\.process) == ["running", "running", "running"])
        let log = { (name: String) in "\(cluster.directory)/\(name).frames" }
        let camera = try start(cluster, "device", "--id", "cam", "--test-pattern", "320x180@25", log: log("camera"))
        defer { kill(camera.processIdentifier, SIGKILL) }
        #expect(await waited(.seconds(20)) { !Cluster.text(log("camera")).isEmpty } != nil)
        let viewers = try (1...3).map { node in
            try start(cluster, "watch", "cam", "--node", "\(node)", log: log("\(node)"))
        }
        defer { for viewer in viewers { kill(viewer.processIdentifier, SIGKILL) } }
        for node in 1...3 {
            #expect(await waited(.seconds(20)) { !Cluster.text(log("\(node)")).isEmpty } != nil)
        }

        // One node without the store.
        try cluster.verb("cut-store", "1")
        #expect(
            await waited(.seconds(10)) {
                (try? conditions(cluster))?[0].contains("ownership_store_unreadable") == true
            } != nil)
        #expect(try Array(conditions(cluster)[1...]) == [[], []])
        try await Task.sleep(for: .seconds(3))
        try cluster.verb("heal")
        #expect(await waited(.seconds(10)) { (try? conditions(cluster)) == [[], [], []] } != nil)

        // No node has the store: two of three members are stopped.
        for member in ["e1", "e2"] { try cluster.verb("pause", member) }
        #expect(
            await waited(.seconds(10)) {
                (try? conditions(cluster))?.allSatisfy { $0.contains("ownership_store_unreadable") } == true
            } != nil)
        try await Task.sleep(for: .seconds(5))
        for member in ["e1", "e2"] { try cluster.verb("resume", member) }
        #expect(await waited(.seconds(15)) { (try? conditions(cluster)) == [[], [], []] } != nil)

        // A member is killed, which may be the leader, and comes back.
        for member in ["e1", "e2", "e3"] {
            try cluster.verb("kill", member)
            try await Task.sleep(for: .seconds(2))
            try cluster.verb("restart", member)
        }
        #expect(await waited(.seconds(15)) { (try? conditions(cluster)) == [[], [], []] } != nil)
        #expect(try incarnations(cluster) == [1, 1, 1])

        for viewer in viewers { kill(viewer.processIdentifier, SIGINT) }
        for viewer in viewers { viewer.waitUntilExit() }
        kill(camera.processIdentifier, SIGINT)
        camera.waitUntilExit()
        let sent = Frames(log("camera"))
        for node in 1...3 {
            let seen = Frames(log("\(node)"))
            #expect(seen.lines.count > 400, "the viewer at node \(node) saw \(seen.lines.count) frames")
            #expect(seen.lostCount == 0 && seen.doubledCount == 0, "node \(node): \(seen.gaps)")
            #expect(seen.differing(from: sent) == 0)
        }
    }

    @Test("Killed nodes are taken over, also when etcd's leader is killed with them, and join again")
    func kills() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--etcd", "--nodes", "3")
        for (node, member) in [("n1", "e1"), ("n2", "e2"), ("n3", "e3")] {
            try cluster.verb("kill", member)
            try cluster.verb("kill", node)
            // Every shard has an owner among the two others, and a standby.
            let settled = await waited(.seconds(15)) {
                let nodes = (try? cluster.status().nodes) ?? []
                return nodes.filter { $0.name != node }.compactMap(\.shards).map(\.owned).reduce(0, +) == 4096
            }
            #expect(settled != nil, "\(node)")
            try cluster.verb("restart", member)
            try cluster.verb("restart", node)
        }
        #expect(try incarnations(cluster) == [2, 2, 2])
    }

    @Test("Two nodes that do not hear each other stay while both reach etcd; one that has lost etcd too is taken over")
    func two() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--etcd", "--nodes", "2")
        try cluster.verb("cut", "1-2")
        try await Task.sleep(for: .seconds(5))
        #expect(try incarnations(cluster) == [1, 1])
        try cluster.verb("cut-store", "2")
        let taken = await waited(.seconds(8)) { (try? cluster.status().nodes[0].shards?.owned) == 4096 }
        #expect(taken != nil)
        try cluster.verb("heal")
        #expect(await waited(.seconds(15)) { (try? incarnations(cluster)) == [1, 2] } != nil)
    }
}

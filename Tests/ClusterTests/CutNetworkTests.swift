import ApusTestKit
import Foundation
import Testing

/// What nodes, a camera and its viewers make of a network that is cut between nodes (D4).
@Suite("Cut networks (D4)", .serialized, .timeLimit(.minutes(4)))
struct CutNetworkTests {
    private typealias Isolated = IsolatedClusterTests.Isolated

    private func incarnations(_ cluster: Isolated) throws -> [UInt64] {
        try cluster.status().nodes.map(\.incarnation)
    }

    /// Starts a verb of the cluster that writes its frames to a file.
    private func start(_ cluster: Isolated, _ arguments: String..., log: String) throws -> Process {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: Cluster.apus)
        process.arguments = arguments + ["--log", log, "--dir", cluster.directory]
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        try process.run()
        return process
    }

    @Test(
        "Between any two nodes, both ways or one: no frame is lost or doubled, none is late by 600 ms, nobody is dead",
        .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
    func media() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "3")
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
        for fault in [["1-2"], ["1-3"], ["2-3"], ["1-2", "--one-way"], ["2-1", "--one-way"]] {
            try cluster.verb(["cut"] + fault)
            try await Task.sleep(for: .milliseconds(2500))
            try cluster.verb("heal")
            // The paths are used again after they have worked for a second and a half.
            try await Task.sleep(for: .milliseconds(3500))
        }
        #expect(try incarnations(cluster) == [1, 1, 1])
        for viewer in viewers { kill(viewer.processIdentifier, SIGINT) }
        for viewer in viewers { viewer.waitUntilExit() }
        kill(camera.processIdentifier, SIGINT)
        camera.waitUntilExit()
        let sent = Frames(log("camera"))
        for node in 1...3 {
            let seen = Frames(log("\(node)"))
            #expect(seen.lines.count > 500, "the viewer at node \(node) saw \(seen.lines.count) frames")
            #expect(seen.lostCount == 0 && seen.doubledCount == 0, "node \(node): \(seen.gaps)")
            #expect(seen.differing(from: sent) == 0)
            #expect(seen.gapLongest < 600, "node \(node)")
        }
    }

    @Test(
        "A node that is cut off from all others, but not from the store, is declared dead once and takes nothing",
        .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
    func minority() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "3")
        try cluster.verb("partition", "1", "2,3")
        try await Task.sleep(for: .seconds(6))
        let report = try cluster.verb("status", "--json").output
        let nodes = try cluster.status().nodes
        #expect(nodes.filter { $0.name != "n1" }.map(\.incarnation) == [1, 1], "\(report)")
        #expect(Cluster.text("\(cluster.directory)/n1/log").contains("This node waits to join"))
        try cluster.verb("heal")
        #expect(await waited(.seconds(10)) { (try? incarnations(cluster)) == [2, 1, 1] } != nil)
        try await Task.sleep(for: .seconds(2))
        #expect(try incarnations(cluster) == [2, 1, 1])
    }

    @Test(
        "Two nodes that do not hear each other, but reach the store, both stay; one that has ended is taken over",
        .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
    func two() async throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "2")
        try cluster.verb("cut", "1-2")
        try await Task.sleep(for: .seconds(5))
        #expect(try incarnations(cluster) == [1, 1])
        try cluster.verb("heal")
        try await Task.sleep(for: .seconds(2))
        #expect(try incarnations(cluster) == [1, 1])
        for node in 1...2 {
            #expect(!Cluster.text("\(cluster.directory)/n\(node)/log").contains("declared"))
        }
    }
}

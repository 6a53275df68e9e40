import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// A client that was superseded and did not notice, at real nodes (IV-A5).
@Suite(.serialized, .timeLimit(.minutes(3)))
struct SupersededTests {
    @Test("A camera that was superseded while it slept publishes nothing after the newer one left, and is told 12003")
    func ticket() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 21_050)
        defer { cluster.down() }
        // The older camera loses its node without a word, and sleeps.
        let older = try cluster.start(
            ["device", "--id", "cam", "--node", "n1", "--test-pattern", "160x120@25", "--log", cluster.file("a")],
            errors: cluster.file("a.err"))
        _ = try await cluster.primary(of: "cam/0")
        #expect(try await Self.wait { Frames(cluster.file("a")).lines.count > 25 })
        kill(older.processIdentifier, SIGSTOP)
        #expect(try cluster.run("cluster", "kill", "n1").status == 0)
        // The newer one takes its place and leaves.
        let newer = try cluster.start(
            "device", "--id", "cam", "--node", "n2", "--test-pattern", "160x120@25", "--log", cluster.file("b"))
        #expect(try await Self.wait { Frames(cluster.file("b")).lines.count > 25 })
        newer.terminate()
        newer.waitUntilExit()
        let newest = try #require(Frames(cluster.file("b")).lines.last?.epoch)
        // Longer than the grace: nobody is connected, and the identity's actor is gone.
        try await Task.sleep(for: .seconds(6))
        try cluster.start("watch", "cam", "--node", "n2", "--log", cluster.file("w"))
        let node = NodeView(2, of: cluster)
        #expect(try await Self.wait { node.get("/v1/status")?.body.contains("\"viewers\":1") ?? false })
        kill(older.processIdentifier, SIGCONT)
        #expect(try await Self.wait { !older.isRunning }, "the superseded camera goes on")
        #expect(Cluster.text(cluster.file("a.err")).contains("12003"), "\(Cluster.text(cluster.file("a.err")))")
        let seen = Frames(cluster.file("w")).lines
        #expect(seen.allSatisfy { $0.epoch == newest }, "frames of the superseded camera were shown")
    }

    private static func wait(_ condition: () -> Bool) async throws -> Bool {
        for _ in 0..<200 where !condition() { try await Task.sleep(for: .milliseconds(100)) }
        return condition()
    }
}

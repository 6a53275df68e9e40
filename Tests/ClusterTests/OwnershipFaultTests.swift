import ApusTestKit
import Foundation
import Testing

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

#if canImport(Glibc)
import Glibc
#endif

/// The ownership store of a real cluster is deleted, goes back, or is damaged.
@Suite(.serialized, .timeLimit(.minutes(5)))
struct OwnershipFaultTests {
    enum Damage: String, CaseIterable {
        case deleted, older, corrupt

        /// Each node that has the store open says this.
        var condition: String { self == .older ? "ownership_store_rolled_back" : "ownership_store_unreadable" }
        var port: Int { 32_000 + (Self.allCases.firstIndex(of: self) ?? 0) * 40 }
    }

    private struct Node {
        var state: String
        var conditions: [String]
        var revision: Int
    }

    private static func nodes(_ cluster: Cluster) throws -> [Node] {
        let status = try cluster.run("cluster", "status", "--json")
        let root = try JSONSerialization.jsonObject(with: Data(status.output.utf8)) as? [String: Any]
        return (root?["nodes"] as? [[String: Any]] ?? []).map { node in
            Node(
                state: node["state"] as? String ?? "",
                conditions: (node["conditions"] as? [[String: Any]] ?? []).compactMap { $0["type"] as? String },
                revision: node["revision"] as? Int ?? 0)
        }
    }

    private static func wait(
        _ what: String, within seconds: Double, until holds: () async throws -> Bool
    ) async throws {
        let deadline = Date().addingTimeInterval(seconds)
        while try await !holds() {
            guard Date() < deadline else { throw TestFailure("missing: \(what)") }
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    private static func health(_ cluster: Cluster, _ node: Int) async throws -> Int {
        let url = try #require(URL(string: "http://127.0.0.1:\(cluster.basePort + (node - 1) * 10 + 2)/healthz"))
        let (_, response) = try await URLSession.shared.data(for: URLRequest(url: url))
        return (response as? HTTPURLResponse)?.statusCode ?? 0
    }

    private static func make(_ damage: Damage, in cluster: Cluster) throws {
        let (store, copy) = (cluster.file("shared/ownership"), cluster.file("copy"))
        switch damage {
        // Moved away: a removal file by file would meet the nodes' own.
        case .deleted: try FileManager.default.moveItem(atPath: store, toPath: cluster.file("away"))
        case .older:
            try FileManager.default.moveItem(atPath: store, toPath: cluster.file("away"))
            try FileManager.default.copyItem(atPath: copy, toPath: store)
        case .corrupt:
            let newest = try #require(try Self.newestRevision(of: cluster))
            let file = try #require(FileHandle(forUpdatingAtPath: "\(store)/\(newest)"))
            try file.seek(toOffset: 100)
            try file.write(contentsOf: Data(repeating: 0x5a, count: 64))
            try file.close()
        }
    }

    /// The name of the store's newest revision.
    private static func newestRevision(of cluster: Cluster) throws -> String? {
        try FileManager.default.contentsOfDirectory(atPath: cluster.file("shared/ownership"))
            .filter { !$0.hasPrefix("tmp-") }.max()
    }

    /// Until no node has swapped for a second: damage to a revision that another one follows is none.
    private static func waitForRest(_ cluster: Cluster) async throws {
        var (newest, since) = (try newestRevision(of: cluster), Date())
        try await wait("a map at rest", within: 30) {
            let now = try newestRevision(of: cluster)
            if now != newest { (newest, since) = (now, Date()) }
            return -since.timeIntervalSinceNow > 1
        }
    }

    /// As an operator's backup does it; files come and go while the nodes decide.
    private static func copyStore(of cluster: Cluster, to name: String) async throws {
        try await wait("a copy of the store", within: 10) {
            do {
                try FileManager.default.copyItem(atPath: cluster.file("shared/ownership"), toPath: cluster.file(name))
                return true
            } catch CocoaError.fileNoSuchFile, CocoaError.fileReadNoSuchFile {
                try? FileManager.default.removeItem(atPath: cluster.file(name))
                return false
            }
        }
    }

    @Test(
        "Every node says within 2 s what happened to the store, streams go on, none starts on it, restore heals",
        arguments: Damage.allCases)
    func damaged(damage: Damage) async throws {
        let cluster = try Cluster(nodes: 3, basePort: damage.port)
        defer { cluster.down() }
        try await Self.copyStore(of: cluster, to: "copy")
        let restarted = try cluster.run("cluster", "restart", "3")
        #expect(restarted.status == 0, "\(restarted.all)")
        try cluster.start(
            "device", "--id", "cam", "--test-pattern", "320x240@25", "--node", "1", "--log", cluster.file("d"))
        try await Self.wait("frames of the camera", within: 20) { Frames(cluster.file("d")).lines.count > 25 }
        let viewer = try cluster.start("watch", "cam", "--node", "2", "--seconds", "25", "--log", cluster.file("w"))
        let primary = try await cluster.primary(of: "cam/0")
        // What a node adopted is in its directory at the latest after the interval.
        try await Self.wait("three healthy nodes", within: 20) {
            for node in 1...3 where try await Self.health(cluster, node) != 200 { return false }
            return true
        }

        try await Self.waitForRest(cluster)
        let framesBefore = Frames(cluster.file("w")).lines.count
        let began = Date()
        try Self.make(damage, in: cluster)
        try await Self.wait("\(damage.condition) at all nodes", within: 2) {
            for node in 1...3 where try await Self.health(cluster, node) != 503 { return false }
            return true
        }
        print("\(damage.rawValue): said by all nodes after \(Int(Date().timeIntervalSince(began) * 1000)) ms")
        #expect(try Self.nodes(cluster).allSatisfy { $0.conditions.contains(damage.condition) && $0.state == "up" })

        // The node without the camera, the viewer and the primary, where there is such a one.
        let victim = 3
        if primary != victim {
            let refused = try cluster.run("cluster", "restart", "\(victim)", "--timeout", "5")
            #expect(refused.status != 0)
            #expect(
                refused.all.contains("10020") && refused.all.contains("apus admin ownership restore"),
                "\(refused.all)")
            #expect(try await Self.health(cluster, 1) == 503)
            #expect(try await Self.health(cluster, 2) == 503)
        }
        let shown = try cluster.run("admin", "ownership", "restore", "--dry-run")
        #expect(shown.status == 0 && shown.output.contains("would be restored"), "\(shown.all)")
        #expect(try await Self.health(cluster, 1) == 503)
        let restore = try cluster.run("admin", "ownership", "restore")
        #expect(restore.status == 0, "\(restore.all)")
        #expect(try await Self.health(cluster, 1) == 200)
        #expect(try await Self.health(cluster, 2) == 200)
        let again = try cluster.run("admin", "ownership", "restore")
        #expect(again.status == 0 && again.output.contains("nothing to restore"), "\(again.all)")
        let back = try cluster.run("cluster", "restart", "\(victim)")
        #expect(back.status == 0, "\(back.all)")
        try await Self.failOver(cluster)

        viewer.waitUntilExit()
        let (sent, seen) = (Frames(cluster.file("d")), Frames(cluster.file("w")))
        #expect(seen.lines.count > framesBefore + 200)
        #expect(seen.lostCount == 0 && seen.doubledCount == 0 && seen.differing(from: sent) == 0)
    }

    /// Kills the channel's node; its standby carries it on.
    private static func failOver(_ cluster: Cluster) async throws {
        let primary = try await cluster.primary(of: "cam/0")
        let revision = try nodes(cluster).map(\.revision).max() ?? 0
        let kill = try cluster.run("cluster", "kill", "\(primary)")
        #expect(kill.status == 0, "\(kill.all)")
        try await wait("the death in the map", within: 5) { try nodes(cluster).contains { $0.revision > revision } }
        #expect(try await cluster.primary(of: "cam/0") != primary)
    }

    @Test("An operator's $HOME and $XDG_STATE_HOME are where a local cluster's state is looked for")
    func home() throws {
        let home = NSTemporaryDirectory() + "apus-home-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: home) }
        let first = try Cluster.run(["cluster", "status"], environment: ["HOME": home, "XDG_STATE_HOME": ""])
        #expect(first.status != 0 && first.all.contains("\(home)/.apus/local"), "\(first.all)")
        let state = ["HOME": home, "XDG_STATE_HOME": "\(home)/state"]
        let second = try Cluster.run(["cluster", "status"], environment: state)
        #expect(second.all.contains("\(home)/state/apus/local"), "\(second.all)")
        let tilde = try Cluster.run(["cluster", "status", "--dir", "~/here"], environment: state)
        #expect(tilde.all.contains("\(home)/here"), "\(tilde.all)")
        // A cluster that is there already is found before any other place.
        try FileManager.default.createDirectory(atPath: "\(home)/.apus/local", withIntermediateDirectories: true)
        let third = try Cluster.run(["cluster", "status"], environment: state)
        #expect(third.all.contains("\(home)/.apus/local"), "\(third.all)")
    }
}

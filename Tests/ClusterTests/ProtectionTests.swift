import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// How soon a channel has a standby again, on a machine that is busy.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct ProtectionTests {
    @Test("Each channel is protected again within 3 s after kill -9 of any node, and after its restart (D7)")
    func rolling() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 29_400)
        defer { cluster.down() }
        let cameras = (1...4).map { "cam\($0)" }
        for camera in cameras { try cluster.start("device", "--id", camera, "--test-pattern", "160x120@25") }
        let hogs = try (1...2).map { _ in
            let hog = Process()
            hog.executableURL = URL(fileURLWithPath: "/bin/sh")
            hog.arguments = ["-c", "while :; do :; done"]
            try hog.run()
            return hog
        }
        // Foundation starts children with signals blocked; only SIGKILL ends a shell that does not expect it.
        defer { for hog in hogs { kill(hog.processIdentifier, SIGKILL) } }
        let channels = Set(cameras.map { "\($0)/0" })
        _ = try await protected(channels, in: cluster, within: 15)
        for node in 1...3 {
            let pid = Cluster.text(cluster.file("n\(node)/pid")).trimmingCharacters(in: .whitespacesAndNewlines)
            kill(try #require(pid_t(pid)), SIGKILL)
            try await expectProtected(channels, in: cluster, "n\(node) was killed")
            let restarted = try cluster.run("cluster", "restart", "\(node)")
            #expect(restarted.status == 0, "\(restarted.all)")
            try await expectProtected(channels, in: cluster, "n\(node) was restarted")
        }
    }

    private func expectProtected(_ channels: Set<String>, in cluster: Cluster, _ event: String) async throws {
        let time = try await protected(channels, in: cluster, within: 10)
        #expect(time < 3, "\(time) s after \(event)")
    }

    /// Seconds until every channel is protected; the limit where that does not come.
    private func protected(_ channels: Set<String>, in cluster: Cluster, within limit: Double) async throws -> Double {
        let start = Date()
        while -start.timeIntervalSinceNow < limit {
            let status = try cluster.run("cluster", "status", "--json")
            if channels.isSubset(of: Cluster.protectedPrimaries(in: status.output).keys) { break }
            try await Task.sleep(for: .milliseconds(50))
        }
        return min(limit, -start.timeIntervalSinceNow)
    }
}

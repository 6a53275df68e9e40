import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Two processes of one node: its configuration, certificate and data directory were copied to another machine (D4).
@Suite("Two processes with the configuration of one node (D4)", .serialized, .timeLimit(.minutes(3)))
struct TwinTests {
    /// A process of the node n2.
    private final class Twin {
        let process = Process()
        let view: NodeView

        init(_ cluster: Cluster, config: String, httpPort: Int) throws {
            view = NodeView(port: httpPort)
            process.executableURL = URL(fileURLWithPath: Cluster.apus)
            process.arguments = ["node", "--config", cluster.file(config)]
            process.standardOutput = FileHandle.nullDevice
            let log = cluster.file("\(config).\(UUID().uuidString).log")
            _ = FileManager.default.createFile(atPath: log, contents: nil)
            process.standardError = FileHandle(forWritingAtPath: log)
            try process.run()
        }

        /// As the kernel says. `Process.isRunning` waits for all that have inherited a descriptor of the process.
        var isRunning: Bool {
            let stat = Cluster.text("/proc/\(process.processIdentifier)/stat")
            guard let state = stat.split(separator: ")").last?.split(separator: " ").first else { return false }
            return state != "Z"
        }

        var isUp: Bool { view.status?.state == "up" }

        /// The message of the condition that another process has its name.
        var duplicate: String? { view.status?.conditions?.first { $0.type == "duplicate_node" }?.message }

        func end() {
            kill(process.processIdentifier, SIGKILL)
            process.waitUntilExit()
        }
    }

    /// Another machine's configuration of n2: a copy, with other ports.
    private func copyConfiguration(of cluster: Cluster) throws {
        let fileManager = FileManager.default
        try fileManager.copyItem(atPath: cluster.file("n2"), toPath: cluster.file("n2-copy"))
        var text = Cluster.text(cluster.file("n2.yaml"))
        for port in cluster.basePort + 10..<cluster.basePort + 15 {
            text = text.replacingOccurrences(of: "\(port)", with: "\(port + 50)")
        }
        text = text.replacingOccurrences(of: "data_directory: n2", with: "data_directory: n2-copy")
        try text.write(toFile: cluster.file("n2-copy.yaml"), atomically: true, encoding: .utf8)
    }

    @Test("Where both advertise one address, a second process waits while the first runs, and does not end it")
    func oneAddress() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 28_900)
        defer { cluster.down() }
        #expect(try cluster.run("cluster", "kill", "n2").status == 0)
        try copyConfiguration(of: cluster)
        #expect(try cluster.run("cluster", "restart", "2").status == 0)
        let text =
            Cluster.text(cluster.file("n2-copy.yaml"))
            + "advertise:\n  transport: 127.0.0.1:\(cluster.basePort + 10)\n"
        try text.write(toFile: cluster.file("n2-copy.yaml"), atomically: true, encoding: .utf8)
        let first = NodeView(2, of: cluster)
        let incarnation = try #require(first.status?.incarnation)
        let twin = try Twin(cluster, config: "n2-copy.yaml", httpPort: cluster.httpPort(2) + 50)
        defer { twin.end() }
        #expect(try await waited { twin.duplicate != nil })
        // Longer than two leases.
        try await Task.sleep(for: .seconds(8))
        #expect(!twin.isUp && first.status?.state == "up" && first.status?.incarnation == incarnation)
    }

    private func waited(_ seconds: Int = 15, for condition: () -> Bool) async throws -> Bool {
        for _ in 0..<seconds * 20 where !condition() { try await Task.sleep(for: .milliseconds(50)) }
        return condition()
    }

    @Test("Of two that start together one serves and one waits, and each takes over when the other stops")
    func together() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 28_900)
        defer { cluster.down() }
        #expect(try cluster.run("cluster", "kill", "n2").status == 0)
        try copyConfiguration(of: cluster)
        let (port, copied) = (cluster.httpPort(2), cluster.httpPort(2) + 50)
        var twins = [
            try Twin(cluster, config: "n2.yaml", httpPort: port),
            try Twin(cluster, config: "n2-copy.yaml", httpPort: copied),
        ]
        defer { for twin in twins { twin.end() } }

        #expect(try await waited { twins.contains(where: \.isUp) && twins.allSatisfy { $0.duplicate != nil } })
        let up = twins.firstIndex(where: \.isUp)
        let first = try #require(up)
        let (serving, waiting) = (twins[first], twins[1 - first])
        #expect(serving.view.status?.incarnation != waiting.view.status?.incarnation)
        let address = "127.0.0.1:\(cluster.basePort + 10 + first * 50)"
        for twin in twins { #expect(twin.duplicate?.contains(address) == true) }
        #expect(waiting.duplicate?.contains("127.0.0.1:\(cluster.basePort + 60 - first * 50)") == true)
        #expect(serving.view.get("/healthz")?.status == 200 && waiting.view.get("/healthz")?.status == 503)

        // It leaves, and the other one serves.
        serving.process.terminate()
        #expect(try await waited { waiting.isUp }, "the second does not serve when the first has left")
        #expect(try await waited { !serving.isRunning })
        twins[first] = try Twin(
            cluster, config: first == 0 ? "n2.yaml" : "n2-copy.yaml", httpPort: first == 0 ? port : copied)
        let back = twins[first]
        #expect(try await waited { back.duplicate != nil && !back.isUp && waiting.isUp })

        // Stopped, it is declared dead, and the other one serves. The signal arrives while it restarts in place.
        kill(waiting.process.processIdentifier, SIGSTOP)
        #expect(try await waited { back.isUp })
        kill(waiting.process.processIdentifier, SIGTERM)
        kill(waiting.process.processIdentifier, SIGCONT)
        #expect(try await waited(8) { !waiting.isRunning }, "SIGTERM was lost in the restart in place")
        waiting.end()

        // Without the signal it waits again, and a signal ends it then.
        let again = try Twin(
            cluster, config: first == 0 ? "n2-copy.yaml" : "n2.yaml", httpPort: first == 0 ? copied : port)
        twins[1 - first] = again
        #expect(try await waited { again.duplicate != nil && back.isUp })
        kill(back.process.processIdentifier, SIGSTOP)
        #expect(try await waited { again.isUp })
        kill(back.process.processIdentifier, SIGCONT)
        #expect(try await waited { back.duplicate != nil && !back.isUp })
        let incarnation = again.view.status?.incarnation
        try await Task.sleep(for: .seconds(5))
        #expect(again.isUp && again.view.status?.incarnation == incarnation, "they end each other")
        back.process.terminate()
        #expect(try await waited(8) { !back.isRunning }, "a node that waits does not stop")
    }
}

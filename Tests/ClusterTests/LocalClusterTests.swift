import ApusCore
import ApusSessions
import Dispatch
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The verbs of a local cluster, and what its endpoints answer, where that needs a cluster of its own.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct LocalClusterTests {
    @Test("An expired token is refused at the endpoint with 12002 (IV-A6)")
    func expiredToken() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_700)
        defer { cluster.down() }
        let signer = try TokenSigner(privateKeyPEM: Cluster.text(cluster.file("pki/token.key")))
        for (age, isExpired) in [(7200, true), (60, false)] as [(Int64, Bool)] {
            let token = try signer.sign(
                TokenClaims(
                    access: AccessID(unchecked: "app-1"), account: AccountID(unchecked: "local"), role: .app,
                    issuedAt: Int64(Date().timeIntervalSince1970) - age, lifetime: .seconds(3600),
                    cluster: ClusterID(unchecked: "local")))
            // No such camera: a good token gets as far as 8002.
            let outcome = try cluster.run("watch", "nobody", "--token", token, "--seconds", "10")
            #expect(
                outcome.status != 0 && outcome.errors.contains(isExpired ? "12002" : "8002"), "\(age): \(outcome.all)")
        }
    }

    @Test("An empty cluster is balanced seconds after its start, and every node ends by itself when it is stopped (D5)")
    func upAndDown() throws {
        let start = ContinuousClock.now
        let cluster = try Cluster(nodes: 3, basePort: 28_730)
        defer { cluster.down() }
        // The pauses of moves, which are for clients' requests, would take ten seconds on a busy machine.
        #expect(ContinuousClock.now - start < .seconds(8), "it took \(ContinuousClock.now - start)")
        let stop = ContinuousClock.now
        let down = try cluster.run("cluster", "down", "--json")
        let report = try JSONSerialization.jsonObject(with: Data(down.output.utf8)) as? [String: Any]
        #expect((report?["killed"] as? [String])?.isEmpty == true, "\(down.all)")
        #expect(ContinuousClock.now - stop < .seconds(8), "it took \(ContinuousClock.now - stop)")
        for node in 1...3 {
            let log = Cluster.text(cluster.file("n\(node)/log"))
            #expect(log.contains("The node has left"), "n\(node): \(log.suffix(400))")
        }
    }

    @Test("Of two commands that start one cluster at once, the second is refused with 10007")
    func twoAtOnce() throws {
        let directory = NSTemporaryDirectory() + "/apus-twice-\(UUID().uuidString)"
        let outcomes = Mutex<[Cluster.Outcome]>([])
        DispatchQueue.concurrentPerform(iterations: 2) { _ in
            let up = ["cluster", "up", "--nodes", "1", "--dir", directory, "--base-port", "28710"]
            guard let outcome = try? Cluster.run(up) else { return }
            outcomes.withLock { $0.append(outcome) }
        }
        let seen = outcomes.withLock { $0 }
        let down = try Cluster.run(["cluster", "down", "--purge", "--dir", directory])
        #expect(down.status == 0, "\(down.all)")
        #expect(!FileManager.default.fileExists(atPath: directory))
        #expect(seen.count { $0.status == 0 } == 1, "\(seen)")
        #expect(seen.count { $0.status != 0 && $0.all.contains("10007") } == 1, "\(seen)")
    }

    @Test("Variables that would give all nodes one place do not reach them; others do")
    func variables() throws {
        let place = NSTemporaryDirectory() + "/apus-place-\(UUID().uuidString)"
        let cluster = try Cluster(
            nodes: 2, basePort: 28_780,
            environment: [
                "APUS_DATA_DIR": place, "APUS_DATA_DIRECTORY": place, "APUS_LISTEN_HTTP": "127.0.0.1:1",
                "APUS_RELAY_PORT": "1", "APUS_GATEWAY_KEEPALIVE": "4s",
            ])
        defer { cluster.down() }
        let status = try cluster.run("cluster", "status", "--json")
        #expect(status.output.components(separatedBy: "\"running\"").count == 3, "\(status.all)")
        #expect(!FileManager.default.fileExists(atPath: place))
        let pid = Cluster.text(cluster.file("n2/pid")).trimmingCharacters(in: .whitespacesAndNewlines)
        let variables = try Data(contentsOf: URL(fileURLWithPath: "/proc/\(pid)/environ")).split(separator: 0)
            .map { String(decoding: $0, as: UTF8.self) }.filter { $0.hasPrefix("APUS_") }
        #expect(variables.contains("APUS_GATEWAY_KEEPALIVE=4s"))
        #expect(!variables.contains { $0.hasPrefix("APUS_DATA") || $0.contains("PORT") || $0.contains("LISTEN") })
    }

    @Test("While one command is at work, those that start or stop nodes are refused and the others are not")
    func locked() throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_720)
        defer { cluster.down() }
        let name = URL(fileURLWithPath: cluster.directory).lastPathComponent
        let lock = open(cluster.file("cluster.lock"), O_RDWR | O_CLOEXEC)
        #expect(flock(lock, LOCK_EX | LOCK_NB) == 0)
        for verb in [["up"], ["restart", "1"], ["drain", "1"], ["down"], ["down", "--purge"]] {
            let outcome = try Cluster.run(["cluster"] + verb + ["--dir", cluster.directory])
            #expect(
                outcome.status != 0 && outcome.all.contains("10007") && outcome.all.contains(name),
                "\(verb): \(outcome.all)")
        }
        for verb in [["pause", "1"], ["resume", "1"], ["status"]] {
            let outcome = try Cluster.run(["cluster"] + verb + ["--dir", cluster.directory])
            #expect(outcome.status == 0, "\(verb): \(outcome.all)")
        }
        close(lock)
        let restart = try cluster.run("cluster", "restart", "1")
        #expect(restart.status == 0, "\(restart.all)")
    }

    @Test("Nodes of a binary with another name are known and stopped, also by a binary of the usual name")
    func otherName() throws {
        let binary = NSTemporaryDirectory() + "/apus-next-\(UUID().uuidString)"
        try FileManager.default.copyItem(atPath: Cluster.apus, toPath: binary)
        defer { try? FileManager.default.removeItem(atPath: binary) }
        let cluster = try Cluster(nodes: 1, basePort: 28_730, binary: binary)
        defer { cluster.down() }
        let pid = Cluster.text(cluster.file("n1/pid")).trimmingCharacters(in: .whitespacesAndNewlines)
        // The command line of a process that has ended is empty until its number is free (proc(5)).
        #expect(!Cluster.text("/proc/\(pid)/cmdline").isEmpty)
        let down = try cluster.run("cluster", "down")
        #expect(down.status == 0, "\(down.all)")
        #expect(Cluster.text("/proc/\(pid)/cmdline").isEmpty)
    }
}

import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What operators of a cluster do with its relays (D8, D13).
@Suite(.serialized, .timeLimit(.minutes(2)))
struct RelayOperatorTests {
    private struct Report: Decodable {
        struct Node: Decodable {
            var name: String
            var relay: Relay
        }
        struct Relay: Decodable {
            var sessions: [Session]
        }
        struct Session: Decodable {
            var id: UInt32
            var user: String
        }
        var nodes: [Node]
    }

    private func sessions(_ cluster: Cluster, _ user: String) throws -> [String: [Report.Session]] {
        let outcome = try cluster.run("relay", "sessions", "--user", user, "--json")
        #expect(outcome.status == 0, "\(outcome.all)")
        let report = try JSONDecoder().decode(Report.self, from: Data(outcome.output.utf8))
        return Dictionary(uniqueKeysWithValues: report.nodes.map { ($0.name, $0.relay.sessions) })
    }

    @Test("Allocations of all nodes are listed and ended by their user; others live on")
    func sessions() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 29_920)
        defer { cluster.down() }
        for user in ["ann", "bob"] {
            try cluster.start(
                ["relay", "check", "--server", "127.0.0.1:29923", "--server", "127.0.0.1:29933", "--user", user]
                    + ["--count", "1", "--hold", "60"])
        }
        let isThere = await waited(.seconds(20), every: .milliseconds(200)) {
            ["ann", "bob"].allSatisfy { user in
                (try? sessions(cluster, user)).map { $0["n1"]?.count == 1 && $0["n2"]?.count == 1 } == true
            }
        }
        try #require(isThere != nil)
        let ended = try cluster.run("relay", "end", "--user", "ann")
        #expect(ended.output == "2 ended\n", "\(ended.all)")
        #expect(try sessions(cluster, "ann").values.allSatisfy(\.isEmpty))
        #expect(try sessions(cluster, "bob").values.allSatisfy { $0.count == 1 && $0[0].user == "bob" })
        let again = try cluster.run("relay", "end", "--user", "ann")
        #expect(again.status != 0, "\(again.all)")
    }

    @Test("A node reads its lists of peers anew on SIGHUP; one that it cannot read changes nothing")
    func reload() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_940)
        defer { cluster.down() }
        let file = cluster.file("n1.yaml")
        let text = try String(contentsOfFile: file, encoding: .utf8)
        func isPeer(_ address: String) throws -> Bool {
            try cluster.run("relay", "check", "--server", "127.0.0.1:29943", "--peer", address).status == 0
        }
        func reload(_ list: String, _ line: String) async throws {
            try text.replacing("\nrelay:\n", with: "\nrelay:\n  deny: \(list)\n")
                .write(toFile: file, atomically: true, encoding: .utf8)
            let before = Cluster.text(cluster.file("n1/log")).components(separatedBy: line).count
            kill(try cluster.pid(1), SIGHUP)
            let said = await waited(.seconds(5)) {
                Cluster.text(cluster.file("n1/log")).components(separatedBy: line).count > before
            }
            #expect(said != nil, "\(line)")
        }
        #expect(try isPeer("192.0.1.9:80"))
        try await reload("192.0.1.0/24", "The node read its keys and certificates again")
        #expect(try !isPeer("192.0.1.9:80") && isPeer("192.0.3.9:80"))
        try await reload("192.0.1.0/33", "The reload was refused; nothing has changed")
        #expect(try !isPeer("192.0.1.9:80"))
    }
}

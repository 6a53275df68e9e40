import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus cluster up --isolated`: nodes in network namespaces of their own, and faults between them.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct IsolatedClusterTests {
    static let isRoot = geteuid() == 0
    /// `scripts/test` installs etcd.
    static let hasEtcd = isRoot && FileManager.default.isExecutableFile(atPath: "/usr/bin/etcd")

    /// What `apus cluster status --json` says of an isolated cluster.
    struct Status: Decodable {
        struct Node: Decodable {
            struct Addresses: Decodable { var http: String }
            struct Condition: Decodable { var type: String }
            struct Shards: Decodable { var owned: Int }
            var name: String
            var state: String
            var incarnation: UInt64
            var addresses: Addresses
            var conditions: [Condition]?
            var shards: Shards?
        }
        struct Store: Decodable {
            var name: String
            var process: String
        }
        struct Network: Decodable { var prefix: String }
        struct Faults: Decodable {
            struct Cut: Decodable, Equatable {
                var from: String
                var to: String
            }
            var cuts: [Cut]
            var loss_percent: [String: Int]
            var delay_ms: [String: Int]
        }
        var nodes: [Node]
        var network: Network?
        var stores: [Store]?
        var faults: Faults?
    }

    /// An isolated cluster, made for one test.
    struct Isolated {
        let directory = NSTemporaryDirectory() + "/apus-isolated-\(UUID().uuidString)"
        /// `apus`, or one with services of its own.
        var binary = Cluster.apus

        @discardableResult
        func run(_ arguments: String...) throws -> Cluster.Outcome {
            try Cluster.run(["cluster"] + arguments + ["--dir", directory], binary: binary)
        }

        /// Runs a verb that must succeed.
        @discardableResult
        func verb(_ arguments: String...) throws -> Cluster.Outcome { try verb(arguments) }

        /// The same.
        @discardableResult
        func verb(_ arguments: [String]) throws -> Cluster.Outcome {
            let outcome = try Cluster.run(["cluster"] + arguments + ["--dir", directory], binary: binary)
            try #require(outcome.status == 0, "\(arguments): \(outcome.all)")
            return outcome
        }

        func status() throws -> Status {
            let outcome = try run("status", "--json")
            return try JSONDecoder().decode(Status.self, from: Data(outcome.output.utf8))
        }

        /// True if the HTTP listener of a node answers a request from a namespace; nil for that of the test. A dropped
        /// packet is not answered, so a cut is seen as the end of the time.
        func connects(from namespace: String?, to node: Status.Node) throws -> Bool {
            let url = "http://\(node.addresses.http)/healthz"
            let prefix = namespace.map { ["ip", "netns", "exec", $0] } ?? []
            let request = ["curl", "--silent", "--output", "/dev/null", "--max-time", "2", url]
            return try Cluster.run(prefix + request, binary: "/usr/bin/env").status == 0
        }

        /// Ends everything. `APUS_TEST_KEEP` set keeps the directory with its logs, to find out why a test failed.
        func down() {
            let isKept = ProcessInfo.processInfo.environment["APUS_TEST_KEEP"] != nil
            _ = try? isKept ? run("down") : run("down", "--purge")
        }
    }

    private static func namespaces(_ prefix: String) throws -> [String] {
        let list = try Cluster.run(["ip", "netns", "list"], binary: "/usr/bin/env").output
        return list.split(separator: "\n").compactMap { $0.split(separator: " ").first.map { String($0) } }
            .filter { $0.hasPrefix(prefix) }
    }

    @Test(
        "A cut between two nodes is seen by these two alone, a repair ends it, and down removes every namespace",
        .enabled(if: isRoot, "only root can make network namespaces"))
    func cut() throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "3")
        let status = try cluster.status()
        let prefix = try #require(status.network?.prefix)
        #expect(status.nodes.map(\.state) == ["up", "up", "up"])
        let namespaces = Set(try Self.namespaces(prefix))
        #expect(namespaces == Set([prefix] + (1...3).map { "\(prefix)-n\($0)" }))
        func pairs() throws -> Set<String> {
            var connected: Set<String> = []
            for from in status.nodes {
                for to in status.nodes where from.name != to.name {
                    if try cluster.connects(from: "\(prefix)-\(from.name)", to: to) {
                        connected.insert("\(from.name)>\(to.name)")
                    }
                }
            }
            return connected
        }
        let all: Set = ["n1>n2", "n1>n3", "n2>n1", "n2>n3", "n3>n1", "n3>n2"]
        #expect(try pairs() == all)

        try cluster.verb("cut", "1-2")
        #expect(try pairs() == all.subtracting(["n1>n2", "n2>n1"]))
        // The operator reaches every node.
        for node in status.nodes { #expect(try cluster.connects(from: nil, to: node), "\(node.name)") }
        let faults = try cluster.status().faults
        #expect(faults?.cuts == [.init(from: "n1", to: "n2"), .init(from: "n2", to: "n1")])
        let table = try cluster.verb("status").output
        #expect(table.contains("n1 - n2"), "\(table)")

        try cluster.verb("heal", "1-2")
        #expect(try pairs() == all)
        #expect(try cluster.status().faults?.cuts.isEmpty == true)

        try cluster.verb("down")
        #expect(try Self.namespaces(prefix).isEmpty)
        let links = try Cluster.run(["ip", "-o", "link"], binary: "/usr/bin/env").output
        #expect(!links.contains(prefix.filter { $0 != "-" }), "\(links)")
    }

    @Test(
        "A node's packets are late by its delay, other nodes' are not, and the process that delays them ends",
        .enabled(if: isRoot, "only root can make network namespaces"))
    func delay() throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "2")
        let client = try cluster.verb("client-namespace", "phone", "--json").output
        let place = try #require(try JSONSerialization.jsonObject(with: Data(client.utf8)) as? [String: Any])
        let namespace = try #require(place["namespace"] as? String)
        let nodes = try cluster.status().nodes
        func time(to node: Status.Node) throws -> Duration {
            let start = ContinuousClock.now
            try #require(try cluster.connects(from: namespace, to: node))
            return ContinuousClock.now - start
        }
        // The answer of TCP and that of HTTP are delayed.
        try cluster.verb("delay", "1", "400")
        #expect(try time(to: nodes[0]) >= .milliseconds(400))
        #expect(try time(to: nodes[1]) < .milliseconds(350))
        try cluster.verb("delay", "1", "700")
        #expect(try time(to: nodes[0]) >= .milliseconds(700))
        #expect(try cluster.status().faults?.delay_ms == ["n1": 700])
        let pid = Cluster.text("\(cluster.directory)/delay-n1.pid").trimmingCharacters(in: .whitespacesAndNewlines)
        #expect(!Cluster.text("/proc/\(pid)/cmdline").isEmpty)

        try cluster.verb("heal")
        #expect(try time(to: nodes[0]) < .milliseconds(350))
        #expect(Cluster.text("/proc/\(pid)/cmdline").isEmpty)
    }

    @Test(
        "Networks that were removed by others are made again by up, and a node starts again in its namespace",
        .enabled(if: isRoot, "only root can make network namespaces"))
    func repair() throws {
        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "2")
        let status = try cluster.status()
        let prefix = try #require(status.network?.prefix)
        try cluster.verb("client-namespace", "phone")
        try cluster.verb("cut", "phone-2")
        #expect(try !cluster.connects(from: "\(prefix)-phone", to: status.nodes[1]))

        // The bridge takes all interfaces with it. The wanted faults are made again with the networks.
        for node in ["1", "2"] { try cluster.verb("kill", node) }
        let removed = try Cluster.run(["ip", "netns", "del", prefix], binary: "/usr/bin/env")
        #expect(removed.status == 0, "\(removed.all)")
        try cluster.verb("up")
        #expect(try !cluster.connects(from: "\(prefix)-phone", to: status.nodes[1]))
        #expect(try cluster.connects(from: "\(prefix)-n1", to: status.nodes[1]))

        try cluster.verb("kill", "2")
        #expect(try !cluster.connects(from: nil, to: status.nodes[1]))
        try cluster.verb("restart", "2")
        #expect(try cluster.connects(from: "\(prefix)-n1", to: status.nodes[1]))
    }

    @Test(
        "Verbs for faults refuse what they cannot do: a cluster without networks, and a store in a directory",
        .enabled(if: isRoot, "only root can make network namespaces"))
    func refusals() throws {
        let usual = try Cluster(nodes: 1, basePort: 27_270)
        defer { usual.down() }
        for verb in [["cut", "1-2"], ["heal"], ["loss", "1", "5"], ["delay", "1", "5"], ["partition", "1"]] {
            let outcome = try Cluster.run(["cluster"] + verb + ["--dir", usual.directory])
            #expect(outcome.status == 1 && outcome.errors.contains("(10022)"), "\(verb): \(outcome.all)")
        }
        let isolated = try usual.run("cluster", "up", "--isolated")
        #expect(isolated.status == 1 && isolated.errors.contains("(10020)"), "\(isolated.all)")
        let plain = try usual.run("cluster", "status", "--json").output
        #expect(plain.contains("\"nodes\"") && !plain.contains("\"faults\"") && !plain.contains("\"network\""))

        let cluster = Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "1")
        let store = try cluster.run("cut-store", "1")
        #expect(store.status == 1 && store.errors.contains("(10022)") && store.errors.contains("etcd"), "\(store.all)")
        for verb in [["cut", "1-2"], ["loss", "1", "101"], ["partition", "1", "1"]] {
            let outcome = try Cluster.run(["cluster"] + verb + ["--dir", cluster.directory])
            #expect(outcome.status == 1 && outcome.errors.contains("(21031)"), "\(verb): \(outcome.all)")
        }
    }
}

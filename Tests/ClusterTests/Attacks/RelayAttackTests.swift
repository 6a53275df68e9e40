import Foundation
import Testing

/// Attacks on a node's relay, each beside a good camera, viewer and relay flow that must lose nothing (``Witness``).
@Suite("Attacks on the relay", .serialized, .timeLimit(.minutes(5)))
struct RelayAttackTests {
    private struct Issued: Decodable {
        struct Server: Decodable {
            var username: String
            var credential: String
        }
        var iceServers: [Server]
    }

    private static let attacker: UInt32 = 0x7f00_0909

    @Test("Connections without a credential, a byte a second each, keep no client from the TCP and TLS listeners")
    func unauthenticated() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_860)
        defer { cluster.down() }
        let witness = try await Witness(cluster, relaySeconds: 20)
        let (tcp, tls) = (Storm(), Storm())
        defer {
            tcp.end()
            tls.end()
        }
        tcp.connect(cluster.relayPort(1), count: 3_000)
        tls.connect(cluster.relayPort(1) + 1, count: 1_000)
        // The head of a request of 512 bytes, and that of a TLS record, whose bytes then come one by one.
        tcp.send([0, 3, 2, 0, 0x21, 0x12, 0xa4, 0x42])
        tls.send([0x16, 0x03, 0x01, 0x02, 0x00])
        for second in 0..<16 {
            tcp.send([0])
            tls.send([1])
            if second == 2 || second == 8 {
                for transport in ["tcp", "tls"] {
                    let check = try cluster.run("relay", "check", "--transport", transport, "--count", "3")
                    #expect(check.status == 0, "\(transport) \(check.all)")
                }
            }
            try await witness.watch(for: .seconds(1))
        }
        // Each had 15 s, whatever it sent.
        #expect(await waited(.seconds(5)) { tcp.openCount == 0 && tls.openCount == 0 } != nil)
        let ended = try #require(NodeView(1, of: cluster).metric("apus_relay_unauthenticated_ended_total"))
        #expect(ended >= 3_000)
        try await witness.testify()
    }

    @Test("20,000 wrong integrity codes a second delay no flow, and a new client comes in meanwhile")
    func wrongCodes() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_880)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let bad = (0..<32 as Range<UInt32>).map { number in
            TurnAttacker(
                port: cluster.relayPort(1), from: Self.attacker + number % 4, username: "4000000000:bad",
                password: "wrong")
        }
        for client in bad { #expect(client.challenge()) }
        let requests = bad.map { $0.allocateRequest() }
        var late: Process?
        for round in 0..<80 {
            for index in 0..<2_000 { bad[index % bad.count].send(requests[index % bad.count]) }
            if round == 20 { late = try cluster.start("relay", "check", "--count", "50", "--interval", "20") }
            try await witness.watch(for: .milliseconds(100))
        }
        let check = try #require(late)
        check.waitUntilExit()
        #expect(check.terminationStatus == 0, "a client that came during the attack")
        let limited = try #require(NodeView(1, of: cluster).metric("apus_relay_limited_total{answer=\"proof\"}"))
        #expect(limited > 10_000, "requests that were not looked at")
        try await witness.testify()
    }

    @Test("Allocations that begin and end as fast as the relay lets them cost a bounded log and nobody's packets")
    func churn() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_900)
        defer { cluster.down() }
        let issued = try cluster.run("relay", "credentials", "--user", "churn")
        let server = try #require(
            try JSONDecoder().decode(Issued.self, from: Data(issued.output.utf8)).iceServers.first)
        let witness = try await Witness(cluster)
        let client = TurnAttacker(
            port: cluster.relayPort(1), from: Self.attacker, username: server.username, password: server.credential)
        #expect(client.challenge())
        var count = 0
        let began = ContinuousClock().now
        while ContinuousClock().now - began < .seconds(8) {
            for _ in 0..<100 where client.churn() { count += 1 }
            try await witness.watch(for: .milliseconds(1))
        }
        let seconds = Int((ContinuousClock().now - began).components.seconds)
        #expect(count > 1_000, "allocations in \(seconds) s")
        var bounds = Witness.Bounds()
        // relay.log_lines_per_second, and the second in which the attack ended.
        bounds.logLines += 100 * (seconds + 2)
        try await witness.testify(bounds)
    }
}

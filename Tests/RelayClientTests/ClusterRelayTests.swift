import ApusTestKit
import Foundation
import Testing

/// A local cluster of two nodes, which ends with this value.
final class TwoNodes: Sendable {
    let directory: String
    let basePort: Int
    private let folder = Folder()

    init() async throws {
        // Ten ports of each node, below those that the system gives out by itself.
        basePort = Int.random(in: 1_100...1_500) * 20
        directory = folder.file("cluster")
        let outcome = try await Outcome.of([
            RelayProcess.apus, "cluster", "up", "--nodes", "2", "--dir", directory, "--base-port", "\(basePort)",
        ])
        guard outcome.status == 0 else { throw TestFailure(outcome.all) }
    }

    /// ADDRESS:PORT of a node's endpoint, 1 or 2.
    func endpoint(_ node: Int, isSecure: Bool) -> String {
        "127.0.0.1:\(basePort + 10 * (node - 1) + (isSecure ? 4 : 3))"
    }

    var authority: String { "\(directory)/pki/ca.pem" }

    func run(_ arguments: [String]) async throws -> Outcome {
        try await Outcome.of([RelayProcess.apus] + arguments + ["--dir", directory])
    }

    /// Ends the nodes.
    func down() async throws { _ = try await run(["cluster", "down"]) }
}

@Suite("The relays of a cluster's nodes, with clients of others (D8)")
struct ClusterRelayTests {
    @Test(
        "Two aioice agents go from node to node, with the credentials and endpoints that the cluster hands out",
        .enabled(if: OtherClients.python != nil, "aioice is not installed"))
    func nodes() async throws {
        let cluster = try await TwoNodes()
        let seen: Result<Void, any Error>
        do { seen = .success(try await relay(cluster)) } catch { seen = .failure(error) }
        try await cluster.down()
        try seen.get()
    }

    private func relay(_ cluster: TwoNodes) async throws {
        let text = try await cluster.run(["relay", "credentials", "--user", "camera"])
        let servers = try JSONDecoder().decode(IssuedServers.self, from: Data(text.output.utf8)).iceServers
        let issued = try #require(servers.first)
        #expect(
            issued.urls == [
                "turn:\(cluster.endpoint(1, isSecure: false))?transport=udp",
                "turn:\(cluster.endpoint(1, isSecure: false))?transport=tcp",
                "turn:\(cluster.endpoint(2, isSecure: false))?transport=udp",
                "turn:\(cluster.endpoint(2, isSecure: false))?transport=tcp",
                "turns:\(cluster.endpoint(1, isSecure: true))?transport=tcp",
                "turns:\(cluster.endpoint(2, isSecure: true))?transport=tcp",
            ])
        for transport in ["udp", "tls"] {
            let endpoints = [1, 2].map { cluster.endpoint($0, isSecure: transport == "tls") }
            let seen = try await PairSeen.meet(
                relays: (endpoints[0], endpoints[1]), transport: transport, isRelayOnly: true,
                authority: cluster.authority,
                credentials: (issued.username, issued.credential))
            #expect(seen.a.local == "relay" && seen.b.local == "relay", "\(seen)")
            seen.expectAllMessages()
        }
    }

    @Test(
        "A check over TLS trusts whom it is told to, and says what is wrong with a certificate",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"), arguments: ["tls", "dtls"])
    func check(transport: String) async throws {
        let relay = try await RelayProcess(certificate: try TestCertificate())
        func check(_ options: [String]) async throws -> Outcome {
            try await Outcome.of(
                [
                    RelayProcess.apus, "relay", "check", "--server", "\(relay.address):\(relay.securePort ?? 0)",
                    "--secret", RelayProcess.secret, "--realm", "test", "--transport", transport,
                ] + options)
        }
        let trusting = try await check(["--authority", relay.certificate?.certificate ?? ""])
        #expect(trusting.status == 0, "\(trusting.all)")
        #expect(try await check(["--any-certificate"]).status == 0)
        let doubting = try await check([])
        #expect(doubting.status != 0)
        #expect(doubting.errors.contains("certificate"), "\(doubting.all)")
        #expect(relay.stop() == 0)
    }
}

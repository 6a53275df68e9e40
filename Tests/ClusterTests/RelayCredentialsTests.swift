import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Logging
import NIOPosix
import Testing

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// The way from a client's own token to a relay of the cluster, through the real binary (D8).
@Suite(.serialized, .timeLimit(.minutes(3)))
struct RelayCredentialsTests {
    private static func expectedURLs(basePort: Int, nodes: [Int]) -> [String] {
        nodes.flatMap { node -> [String] in
            let port = basePort + 10 * (node - 1) + 3
            return [
                "turn:127.0.0.1:\(port)?transport=udp", "turn:127.0.0.1:\(port)?transport=tcp",
                "turns:127.0.0.1:\(port + 1)?transport=tcp",
            ]
        }
    }

    private static func token(_ cluster: Cluster, _ access: String) throws -> String {
        let minted = try cluster.run("admin", "token", "--role", "app", "--access", access, "--ttl", "2h")
        try #require(minted.status == 0, "\(minted.all)")
        return minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    /// Asks until the endpoints of so many nodes are told; a node hears of another's within a second.
    private static func credentials(
        _ session: ClientSession, urlCount: Int
    ) async throws -> ClientSession.RelayCredentials {
        for _ in 0..<40 {
            // Until the link is up, and while the nodes have not told each other yet.
            if let given = try? await session.relayCredentials(), given.urls.count == urlCount { return given }
            try await Task.sleep(for: .milliseconds(500))
        }
        return try await session.relayCredentials()
    }

    @Test("The session hands an app the endpoints of its own node and of the next, with credentials that both take")
    func session() async throws {
        // Asked for often while the cluster comes up.
        let cluster = try Cluster(
            nodes: 2, basePort: 29_050, environment: ["APUS_SESSIONS_RELAY_CREDENTIALS_PER_MINUTE": "60"])
        defer { cluster.down() }
        let configuration = ClientConfiguration(
            endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(2))],
            authorityFile: cluster.file("pki/ca.pem"), token: try Self.token(cluster, "ann"), role: .app)
        let session = try ClientSession(
            configuration: configuration, eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        await #expect(throws: ApusError(.notConnected)) { try await session.relayCredentials() }
        session.start()
        defer { session.close() }
        let given = try await Self.credentials(session, urlCount: 6)
        #expect(given.urls == Self.expectedURLs(basePort: 29_050, nodes: [2, 1]))
        // An hour, and no longer than the token, which is some seconds old.
        #expect(given.lifetime <= .seconds(3600) && given.lifetime > .seconds(3580))
        let expiry = try #require(given.username.split(separator: ":").first.flatMap { Int64($0) })
        #expect(
            given.username.hasPrefix("\(expiry):local/ann;"), "the user is the identity, so that its quotas hold")
        #expect(abs(Double(expiry) - Date().timeIntervalSince1970 - 3600) < 10)
        let check = try Cluster.run([
            "relay", "check", "--server", "127.0.0.1:29053", "--server", "127.0.0.1:29063", "--username",
            given.username, "--password", given.credential,
        ])
        #expect(check.status == 0, "\(check.all)")
    }

    @Test("Where no relay takes clients, the answer is 20004, over a session and over HTTP (IV-C16, IV-F1)")
    func noRelay() async throws {
        let cluster = try Cluster(configuredNodes: 1, basePort: 29_130)
        defer { cluster.down() }
        let token = try Self.token(cluster, "ann")
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(1))],
                authorityFile: cluster.file("pki/ca.pem"), token: token, role: .app),
            eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        session.start()
        defer { session.close() }
        var code = ErrorCode.notConnected
        for _ in 0..<40 where code == .notConnected {
            do throws(ApusError) { _ = try await session.relayCredentials() } catch { code = error.code }
            try await Task.sleep(for: .milliseconds(100))
        }
        #expect(code == .noRelayAddress)
        let answer = try await Self.fetch(29_132, token: token)
        #expect(answer.status == 503 && answer.body.contains("20004"), "\(answer)")
    }

    @Test("An identity that asks too often is told 10007, over its session and over HTTP, and another is not held up")
    func rate() async throws {
        // One a minute, so that a machine that is busy does not earn the next meanwhile.
        let cluster = try Cluster(
            nodes: 1, basePort: 29_100, environment: ["APUS_SESSIONS_RELAY_CREDENTIALS_PER_MINUTE": "1"])
        defer { cluster.down() }
        let token = try Self.token(cluster, "ann")
        let answer = try await Self.fetch(29_102, token: token)
        #expect(answer.status == 200, "\(answer.body)")
        let refused = try await Self.fetch(29_102, token: token)
        #expect(refused.status == 429 && refused.body.contains("10007"), "\(refused.body)")
        let server = try JSONDecoder().decode(IssuedServers.self, from: Data(answer.body.utf8)).iceServers[0]
        #expect(server.urls == Self.expectedURLs(basePort: 29_100, nodes: [1]))
        #expect(server.username.contains(":local/ann;"))
        let check = try Cluster.run([
            "relay", "check", "--server", "127.0.0.1:29103", "--username", server.username, "--password",
            server.credential,
        ])
        #expect(check.status == 0, "\(check.all)")
        #expect(try await Self.fetch(29_102, token: try Self.token(cluster, "bob")).status == 200)
        for wrong in [nil, "no token", String(token.dropLast(4)) + "AAAA"] {
            let answer = try await Self.fetch(29_102, token: wrong)
            #expect(answer.status == 401 && answer.body.contains("12001"), "\(answer.body)")
        }
        let log = Cluster.text(cluster.file("n1/log"))
        #expect(!log.contains(token), "a token is never logged")
    }

    @Test("An address of another node at which it does not relay is no peer, as long as that node is a member (D8)")
    func peersOfOtherNodes() async throws {
        // Both nodes say that their HTTP endpoint has an address that only membership tells the other of. It is in no
        // special range, so that nothing but that rule can refuse it. No packet is sent there.
        let cluster = try Cluster(
            nodes: 2, basePort: 29_150, environment: ["APUS_ADVERTISE_HTTP": "192.0.1.77:80"])
        defer { cluster.down() }
        func ask(_ peer: String) throws -> Cluster.Outcome {
            try cluster.run("relay", "check", "--server", "127.0.0.1:29153", "--peer", peer)
        }
        #expect(try ask("192.0.1.77:80").all.contains("refuses with 403"))
        #expect(try ask("192.0.1.77:7400").all.contains("refuses with 403"))
        #expect(try ask("192.0.1.77:50000").all.contains("refuses with 403"), "nor at a port of relays")
        #expect(try ask("192.0.1.78:80").status == 0, "nobody's address")
        #expect(try ask("127.0.0.1:29162").status == 0, "loopback stays open in a local cluster")
        #expect(try cluster.run("cluster", "kill", "n2").status == 0)
        var isOpen = false
        for _ in 0..<50 where !isOpen {
            isOpen = try ask("192.0.1.77:80").status == 0
            if !isOpen { try await Task.sleep(for: .milliseconds(100)) }
        }
        #expect(isOpen, "a node that has gone is an address as any other")
    }

    @Test("A drained node of two is let go at once: nobody else could stand by in its place (D5)")
    func drainOfTwo() throws {
        let cluster = try Cluster(nodes: 2, basePort: 29_200)
        defer { cluster.down() }
        let start = ContinuousClock.now
        let drained = try cluster.run("cluster", "drain", "n1", "--timeout", "40")
        #expect(drained.status == 0, "\(drained.all)")
        #expect(ContinuousClock.now - start < .seconds(20))
        let status = try cluster.run("cluster", "status", "--json")
        #expect(status.output.contains("\"owned\":4096"), "the other node has every shard: \(status.all)")
    }

    private static func fetch(_ port: Int, token: String?) async throws -> (status: Int, body: String) {
        var request = URLRequest(url: try #require(URL(string: "http://127.0.0.1:\(port)/v1/relay/credentials")))
        if let token { request.setValue("Bearer \(token)", forHTTPHeaderField: "Authorization") }
        let (data, response) = try await URLSession(configuration: .ephemeral).data(for: request)
        let http = try #require(response as? HTTPURLResponse)
        return (http.statusCode, String(decoding: data, as: UTF8.self))
    }
}

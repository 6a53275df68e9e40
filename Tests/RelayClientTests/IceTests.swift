import ApusTestKit
import Foundation
import Testing

/// What two ICE agents saw of each other, as Clients/ice_pair.py prints it.
struct PairSeen: Decodable {
    struct Side: Decodable {
        var local: String?
        var remote: String?
        var local_address: String?
        var remote_address: String?
        var messages: Int?
        var error: String?

        var isRelayed: Bool { local == "relay" || remote == "relay" }
    }

    var a: Side
    var b: Side

    /// The pair as the controlling agent has it.
    var words: String {
        a.error ?? "\(a.local ?? "?") \(a.local_address ?? "") to \(a.remote ?? "?") \(a.remote_address ?? "")"
    }

    static let messageCount = 100

    /// Runs two agents to their ends, of aioice or of libnice.
    ///
    /// - Parameters:
    ///   - relays: where A's relay is and where B's.
    ///   - authority: a PEM file of those whom the agents trust, for TLS.
    ///   - prefixes: what runs A's command and B's, such as in network namespaces.
    static func meet(
        relays: (a: String, b: String), transport: String = "udp", isRelayOnly: Bool = false,
        authority: String? = nil, credentials: (user: String, password: String)? = nil,
        prefixes: (a: [String], b: [String]) = ([], []), isOnLibnice: Bool = false
    ) async throws -> PairSeen {
        let python = try #require(OtherClients.python)
        let program =
            isOnLibnice ? [try #require(OtherClients.niceAgent)] : [python, OtherClients.script("ice_agent.py")]
        let issued = if let credentials { credentials } else { try await RelayProcess.credentials() }
        func agent(_ relay: String, _ prefix: [String]) -> [String] {
            prefix + (authority.map { ["env", "SSL_CERT_FILE=\($0)"] } ?? []) + program + [
                "--relay", relay, "--user", issued.user, "--password", issued.password, "--messages", "\(messageCount)",
            ] + (isOnLibnice ? [] : ["--transport", transport]) + (isRelayOnly ? ["--relay-only"] : [])
        }
        let outcome = try await Outcome.of(
            [python, OtherClients.script("ice_pair.py")] + agent(relays.a, prefixes.a) + ["--controlling", "--"]
                + agent(relays.b, prefixes.b))
        try #require(outcome.status == 0, "\(outcome.all)")
        return try JSONDecoder().decode(PairSeen.self, from: Data(outcome.output.utf8))
    }

    /// All messages went and came back.
    func expectAllMessages(_ log: String = "") {
        #expect(a.messages == Self.messageCount, "\(self) \(log)")
        #expect(b.messages == Self.messageCount, "\(self) \(log)")
    }
}

/// What two peer connections in one page of a headless Chromium saw, as Clients/browser_pair.py prints it.
struct BrowserSeen: Decodable {
    var types: [String]
    var protocols: [String]
    var messages: Int
    var frames: Int

    /// Runs the browser to its end.
    ///
    /// - Parameters:
    ///   - urls: the relays of the two, or one for both.
    ///   - prefix: what runs the browser, such as in a network namespace.
    static func meet(urls: [String], prefix: [String] = [], log: () -> String) async throws -> BrowserSeen {
        let python = try #require(OtherClients.python)
        let browser = try #require(OtherClients.chromium)
        let (first, last) = (try #require(urls.first), try #require(urls.last))
        let issued = try await RelayProcess.credentials()
        let outcome = try await Outcome.of(
            prefix + [
                python, OtherClients.script("browser_pair.py"), browser, first, last, issued.user, issued.password,
            ])
        try #require(outcome.status == 0, "\(outcome.all) \(log())")
        return try JSONDecoder().decode(BrowserSeen.self, from: Data(outcome.output.utf8))
    }
}

@Suite("WebRTC stacks that others made, on this relay (RFC 8445, RFC 8656, D8)")
struct IceTests {
    private static let hasAgents = OtherClients.python != nil && TestCertificate.canBeMade

    /// Two relays, with one certificate for both where clients come over TLS.
    private func relays(_ transport: String) async throws -> (a: RelayProcess, b: RelayProcess) {
        let addresses = ["127.0.0.1", "127.0.0.2"]
        let certificate = transport == "tls" ? try TestCertificate(addresses: addresses) : nil
        return (
            try await RelayProcess(address: addresses[0], certificate: certificate),
            try await RelayProcess(address: addresses[1], certificate: certificate)
        )
    }

    @Test(
        "Two aioice agents exchange messages from relay to relay, through two relays and through one",
        .enabled(if: hasAgents, "aioice or openssl is not installed"), arguments: ["udp", "tcp", "tls"], [true, false])
    func relayToRelay(transport: String, isTwoRelays: Bool) async throws {
        let (first, other) = try await relays(transport)
        let second = isTwoRelays ? other : first
        let seen = try await PairSeen.meet(
            relays: (first.endpoint(transport), second.endpoint(transport)), transport: transport, isRelayOnly: true,
            authority: first.certificate?.certificate)
        #expect(seen.a.local == "relay")
        #expect(seen.b.local == "relay")
        #expect(seen.a.local_address?.hasPrefix(first.address) == true, "\(seen)")
        #expect(seen.b.local_address?.hasPrefix(second.address) == true, "\(seen)")
        seen.expectAllMessages(first.log + second.log)
        #expect(first.stop() == 0)
        #expect(other.stop() == 0)
    }

    private struct Media: Decodable {
        var types: [String]
        var messages: Int
        var frames: Int
    }

    @Test(
        "Two aiortc peers with relay candidates only exchange a data channel's messages and video",
        .enabled(if: hasAgents, "aiortc or openssl is not installed"), arguments: ["udp", "tcp", "tls"])
    func peerConnection(transport: String) async throws {
        let python = try #require(OtherClients.python)
        let (first, second) = try await relays(transport)
        let issued = try await RelayProcess.credentials()
        let trust = first.certificate.map { ["env", "SSL_CERT_FILE=\($0.certificate)"] } ?? []
        let outcome = try await Outcome.of(
            trust + [python, OtherClients.script("peer_connection.py")] + [first, second].map { $0.url(transport) }
                + [issued.user, issued.password])
        try #require(outcome.status == 0, "\(outcome.all) \(first.log) \(second.log)")
        let seen = try JSONDecoder().decode(Media.self, from: Data(outcome.output.utf8))
        #expect(seen.types == ["relay"])
        #expect(seen.messages == 50)
        #expect(seen.frames == 10)
        #expect(first.stop() == 0)
        #expect(second.stop() == 0)
    }

    @Test(
        "Two peer connections of headless Chromium with relay candidates only exchange messages and camera video",
        .enabled(if: hasAgents && OtherClients.chromium != nil, "Chromium or openssl is not installed"),
        arguments: ["udp", "tcp", "tls"])
    func chromium(transport: String) async throws {
        let (first, second) = try await relays(transport)
        let seen = try await BrowserSeen.meet(
            urls: [first, second].map { $0.url(transport) }, log: { first.log + second.log })
        #expect(seen.types == ["relay"], "\(seen)")
        #expect(seen.protocols == [transport], "\(seen)")
        #expect(seen.messages == 50, "\(seen)")
        #expect(seen.frames >= 10, "\(seen)")
        #expect(first.stop() == 0)
        #expect(second.stop() == 0)
    }
}

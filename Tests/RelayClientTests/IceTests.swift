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

    /// Runs two aioice agents to their ends.
    ///
    /// - Parameters:
    ///   - relays: where A's relay is and where B's.
    ///   - prefixes: what runs A's command and B's, such as in network namespaces.
    static func meet(
        relays: (a: String, b: String), transport: String = "udp", isRelayOnly: Bool = false,
        prefixes: (a: [String], b: [String]) = ([], [])
    ) async throws -> PairSeen {
        let python = try #require(OtherClients.python)
        let issued = try await RelayProcess.credentials()
        func agent(_ relay: String, _ prefix: [String]) -> [String] {
            prefix + [
                python, OtherClients.script("ice_agent.py"), "--relay", relay, "--transport", transport, "--user",
                issued.user, "--password", issued.password, "--messages", "\(messageCount)",
            ] + (isRelayOnly ? ["--relay-only"] : [])
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

@Suite("WebRTC stacks that others made, on this relay (RFC 8445, RFC 8656, D8)")
struct IceTests {
    @Test(
        "Two aioice agents exchange messages from relay to relay, through two relays and through one",
        .enabled(if: OtherClients.python != nil, "aioice is not installed"),
        arguments: ["udp", "tcp"], [true, false])
    func relayToRelay(transport: String, isTwoRelays: Bool) async throws {
        let first = try await RelayProcess()
        let second = isTwoRelays ? try await RelayProcess(address: "127.0.0.2") : first
        let seen = try await PairSeen.meet(
            relays: ("\(first.address):\(first.port)", "\(second.address):\(second.port)"), transport: transport,
            isRelayOnly: true)
        #expect(seen.a.local == "relay")
        #expect(seen.b.local == "relay")
        #expect(seen.a.local_address?.hasPrefix(first.address) == true, "\(seen)")
        #expect(seen.b.local_address?.hasPrefix(second.address) == true, "\(seen)")
        seen.expectAllMessages(first.log + second.log)
        #expect(first.stop() == 0)
        if isTwoRelays { #expect(second.stop() == 0) }
    }

    private struct Media: Decodable {
        var types: [String]
        var messages: Int
        var frames: Int
    }

    @Test(
        "Two aiortc peers with relay candidates only exchange a data channel's messages and video",
        .enabled(if: OtherClients.python != nil, "aiortc is not installed"), arguments: ["udp", "tcp"])
    func peerConnection(transport: String) async throws {
        let python = try #require(OtherClients.python)
        let first = try await RelayProcess()
        let second = try await RelayProcess(address: "127.0.0.2")
        let issued = try await RelayProcess.credentials()
        let urls = [first, second].map { "turn:\($0.address):\($0.port)?transport=\(transport)" }
        let outcome = try await Outcome.of(
            [python, OtherClients.script("peer_connection.py")] + urls + [issued.user, issued.password])
        try #require(outcome.status == 0, "\(outcome.all) \(first.log) \(second.log)")
        let seen = try JSONDecoder().decode(Media.self, from: Data(outcome.output.utf8))
        #expect(seen.types == ["relay"])
        #expect(seen.messages == 50)
        #expect(seen.frames == 10)
    }
}

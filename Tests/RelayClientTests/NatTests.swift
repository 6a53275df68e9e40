import ApusTestKit
import Foundation
import Testing

/// Two hosts behind two NATs, in network namespaces that end with this value (Clients/nat.sh).
final class NatNetwork: Sendable {
    /// How a NAT chooses ports: the host's own where that is free, or another for each peer (symmetric).
    enum Kind: String, Sendable {
        case preserving, random
    }

    static let relayAddress = "203.0.113.1"
    static let relayPort = 3478
    private let name = "apus\(UInt32.random(in: .min ... .max))"

    /// - Parameter endpoint: what the NATs let through to the relay: "udp", "tcp", "tls", or "any", where
    ///   everything else can, too.
    init(a: Kind, b: Kind, endpoint: String) throws {
        let outcome = try Outcome.now(
            [OtherClients.script("nat.sh"), "up", name, a.rawValue, b.rawValue, endpoint])
        guard outcome.status == 0 else { throw TestFailure(outcome.all) }
    }

    /// What runs a command at a place: "a", "b", or "w" where the relay is.
    func inside(_ place: String) -> [String] { ["ip", "netns", "exec", "\(name)-\(place)"] }

    /// Removes the namespaces; their processes have ended.
    func down() { _ = try? Outcome.now([OtherClients.script("nat.sh"), "down", name]) }
}

@Suite("Clients behind NATs, in network namespaces (RFC 8445, RFC 5128, D8)", .serialized)
struct NatTests {
    struct Case: Sendable, CustomTestStringConvertible {
        var a: NatNetwork.Kind
        var b: NatNetwork.Kind
        /// The endpoint that alone can be reached, or "any".
        var endpoint: String
        var isRelayed = true

        var testDescription: String { "\(a) and \(b), open: \(endpoint)" }

        static let all: [Case] =
            [
                Case(a: .preserving, b: .preserving, endpoint: "any", isRelayed: false),
                Case(a: .random, b: .random, endpoint: "any"), Case(a: .preserving, b: .random, endpoint: "any"),
            ]
            + ["udp", "tcp", "tls"].flatMap { endpoint in
                [NatNetwork.Kind.preserving, .random].map { Case(a: $0, b: $0, endpoint: endpoint) }
            }
    }

    @Test(
        "Two aioice agents behind NATs meet: directly where the NATs allow it, through the relay otherwise",
        .enabled(
            if: OtherClients.python != nil && TestCertificate.canBeMade && OtherClients.hasNamespaces,
            "aioice or openssl is not installed, or network namespaces with nftables cannot be made here"),
        arguments: Case.all)
    func meet(_ nats: Case) async throws {
        let network = try NatNetwork(a: nats.a, b: nats.b, endpoint: nats.endpoint)
        defer { network.down() }
        let certificate = try TestCertificate(addresses: [NatNetwork.relayAddress])
        let relay = try await RelayProcess(
            address: NatNetwork.relayAddress, port: NatNetwork.relayPort, certificate: certificate,
            opened: "documentation", prefix: network.inside("w"))
        let transport = nats.endpoint == "any" ? "udp" : nats.endpoint
        let endpoint = relay.endpoint(transport)
        let seen = try await PairSeen.meet(
            relays: (endpoint, endpoint), transport: transport, authority: certificate.certificate,
            prefixes: (network.inside("a"), network.inside("b")))
        print("NATs \(nats.testDescription): \(seen.words)")
        #expect(seen.a.isRelayed == nats.isRelayed, "\(seen) \(relay.log)")
        #expect(seen.b.isRelayed == nats.isRelayed, "\(seen) \(relay.log)")
        seen.expectAllMessages(relay.log)
        #expect(relay.stop() == 0)
    }
}

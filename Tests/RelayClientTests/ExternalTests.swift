import ApusTestKit
import Foundation
import Testing

/// Two relays behind 1:1 NATs, in network namespaces that end with this value (Clients/external.sh).
private final class ExternalNetwork: Sendable {
    private let name = "apus\(UInt32.random(in: .min ... .max))"

    init() throws {
        let outcome = try Outcome.now([OtherClients.script("external.sh"), "up", name])
        guard outcome.status == 0 else { throw NatNetwork.Failed(reason: outcome.all) }
    }

    /// What runs a command at a place: "a" and "b" behind the NATs, or "w", where everybody else is.
    func inside(_ place: String) -> [String] { ["ip", "netns", "exec", "\(name)-\(place)"] }

    /// Removes the namespaces; their processes have ended.
    func down() { _ = try? Outcome.now([OtherClients.script("external.sh"), "down", name]) }

    /// A relay behind the NAT of "a" (1) or "b" (2).
    func relay(_ place: String, _ number: Int, _ options: [String]) async throws -> RelayProcess {
        try await RelayProcess(
            address: "10.\(number).0.2", port: NatNetwork.relayPort, opened: "documentation",
            options: ["--legacy-channels"] + options, prefix: inside(place))
    }
}

@Suite("Relays behind 1:1 NATs, in network namespaces (D8)", .serialized)
struct ExternalTests {
    private static let messageCount = 50

    /// turnutils_uclient from the outside, and what it must have back.
    private func expectAllBack(_ network: ExternalNetwork, _ relay: RelayProcess, _ options: [String]) async throws {
        let outcome = try await Outcome.of(
            network.inside("w") + [
                "turnutils_uclient", "-W", RelayProcess.secret, "-u", "camera", "-m", "2", "-n",
                "\(Self.messageCount)", "-l", "171",
            ] + options + ["203.0.113.11"])
        #expect(outcome.status == 0, "\(outcome.all) \(relay.log)")
        #expect(outcome.all.contains("Total lost packets 0"), "\(outcome.all) \(relay.log)")
    }

    @Test(
        "turnutils_uclient has every message back by the public address: to a peer, and from allocation to allocation",
        .enabled(if: OtherClients.uclient != nil && OtherClients.hasNamespaces, "coturn or namespaces are missing"))
    func uclient() async throws {
        let network = try ExternalNetwork()
        defer { network.down() }
        let relay = try await network.relay("a", 1, ["--external", "203.0.113.11", "--threads", "2"])
        let peer = try Child(network.inside("w") + ["turnutils_peer", "-L", "203.0.113.1", "-p", "3480"])
        defer { peer.terminate() }
        try await expectAllBack(network, relay, ["-c", "-e", "203.0.113.1", "-r", "3480"])
        try await expectAllBack(network, relay, ["-y"])
        try await expectAllBack(network, relay, ["-y", "-s"])
        #expect(relay.stop() == 0)
    }

    @Test(
        "Two relays, of which one asked a STUN server for its address and one was told, reach each other",
        .enabled(if: OtherClients.hasNamespaces, "network namespaces with nftables cannot be made here"))
    func relayToRelay() async throws {
        let network = try ExternalNetwork()
        defer { network.down() }
        let told = try await network.relay("a", 1, ["--external", "203.0.113.11/10.1.0.2"])
        // The first relay is the STUN server of the second.
        let found = try await network.relay("b", 2, ["--external-from", "203.0.113.11:3478"])
        #expect(found.log.contains("203.0.113.12/10.2.0.2"), "\(found.log)")
        let outcome = try await Outcome.of(
            network.inside("w") + [
                RelayProcess.apus, "relay", "check", "--secret", RelayProcess.secret, "--realm", "test", "--server",
                "203.0.113.11:3478", "--server", "203.0.113.12:3478",
            ])
        #expect(outcome.status == 0, "\(outcome.all) \(told.log) \(found.log)")
        #expect(outcome.all.contains("allocated 203.0.113.11:") && outcome.all.contains("allocated 203.0.113.12:"))
        #expect(told.stop() == 0 && found.stop() == 0)
    }
}

import ApusTestKit
import Foundation
import Testing

/// Two relays behind 1:1 NATs, in network namespaces that end with this value (Clients/external.sh).
private final class ExternalNetwork: Sendable {
    private let name = "apus\(UInt32.random(in: .min ... .max))"

    init() throws {
        let outcome = try Outcome.now([OtherClients.script("external.sh"), "up", name])
        guard outcome.status == 0 else { throw TestFailure(outcome.all) }
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

    @Test(
        "Two agents of libnice meet on relays of the public address",
        .enabled(
            if: OtherClients.niceAgent != nil && OtherClients.python != nil && OtherClients.hasNamespaces,
            "libnice or namespaces are missing"))
    func libnice() async throws {
        let network = try ExternalNetwork()
        defer { network.down() }
        let relay = try await network.relay("a", 1, ["--external", "203.0.113.11", "--threads", "2"])
        let endpoint = "203.0.113.11:\(NatNetwork.relayPort)"
        let seen = try await PairSeen.meet(
            relays: (endpoint, endpoint), isRelayOnly: true, prefixes: (network.inside("w"), network.inside("w")),
            isOnLibnice: true)
        seen.expectAllMessages(relay.log)
        for side in [seen.a, seen.b] {
            #expect(side.local == "relay" && side.local_address?.hasPrefix("203.0.113.11:") == true, "\(seen)")
        }
        #expect(relay.stop() == 0)
    }

    @Test(
        "Two peer connections of Chromium meet on relays of the public address, with messages and video",
        .enabled(
            if: OtherClients.chromium != nil && OtherClients.python != nil && OtherClients.hasNamespaces,
            "Chromium or namespaces are missing"))
    func chromium() async throws {
        let network = try ExternalNetwork()
        defer { network.down() }
        let relay = try await network.relay("a", 1, ["--external", "203.0.113.11", "--threads", "2"])
        let seen = try await BrowserSeen.meet(
            urls: ["turn:203.0.113.11:\(NatNetwork.relayPort)?transport=udp"], prefix: network.inside("w"),
            log: { relay.log })
        #expect(seen.types == ["relay"] && seen.messages == 50 && seen.frames >= 10, "\(seen) \(relay.log)")
        #expect(relay.stop() == 0)
    }

    @Test(
        "A NAT that changes ports is told of in the log and the status: peers do not reach relayed addresses behind it",
        .enabled(if: OtherClients.hasNamespaces, "network namespaces with nftables cannot be made here"),
        arguments: [NatNetwork.Kind.random, .preserving])
    func changedPorts(_ kind: NatNetwork.Kind) async throws {
        let network = try NatNetwork(a: kind, b: .preserving, endpoint: "any")
        defer { network.down() }
        let server = try await RelayProcess(
            address: NatNetwork.relayAddress, port: NatNetwork.relayPort, opened: "documentation",
            prefix: network.inside("w"))
        let relay = try await RelayProcess(
            address: "10.1.0.2", port: NatNetwork.relayPort, opened: "documentation",
            options: ["--external-from", server.endpoint("udp"), "--http", "10.1.0.2:26001"],
            prefix: network.inside("a"))
        let isTold = relay.log.contains(
            "The NAT changes ports, so peers cannot reach relayed addresses")
        #expect(isTold == (kind == .random), "\(relay.log)")
        var status = ""
        try await eventually("the relay says how it is") {
            status = try await Outcome.of(network.inside("a") + ["curl", "-s", "http://10.1.0.2:26001/v1/status"])
                .output
            return status.contains("conditions")
        }
        #expect(status.contains("relay_ports") == (kind == .random), "\(status)")
        #expect(relay.stop() == 0 && server.stop() == 0)
    }

    @Test(
        "An address that the machine gets later is its own, and no peer at its services' ports",
        .enabled(if: OtherClients.hasNamespaces, "network namespaces with nftables cannot be made here"))
    func newAddress() async throws {
        let network = try NatNetwork(a: .preserving, b: .preserving, endpoint: "any")
        defer { network.down() }
        let relay = try await RelayProcess(
            address: NatNetwork.relayAddress, port: NatNetwork.relayPort, opened: "documentation",
            prefix: network.inside("w"))
        func isPeer(_ peer: String) async throws -> Bool {
            let outcome = try await Outcome.of(
                network.inside("w") + [
                    RelayProcess.apus, "relay", "check", "--secret", RelayProcess.secret, "--realm", "test", "--server",
                    relay.endpoint("udp"), "--peer", peer,
                ])
            return outcome.status == 0
        }
        let later = "203.0.113.77"
        #expect(try await isPeer("\(later):22"))
        let added = try await Outcome.of(network.inside("w") + ["ip", "address", "add", "\(later)/32", "dev", "lo"])
        #expect(added.status == 0, "\(added.all)")
        try await eventually("the relay knows its new address") { try await !isPeer("\(later):22") }
        #expect(try await !isPeer("\(later):50000"), "no allocation is there")
        // And somebody else's again when the machine has it no more.
        let removed = try await Outcome.of(network.inside("w") + ["ip", "address", "del", "\(later)/32", "dev", "lo"])
        #expect(removed.status == 0, "\(removed.all)")
        try await eventually("the relay has seen it go") { try await isPeer("\(later):22") }
        #expect(relay.stop() == 0)
    }

    @Test(
        "Static users, lists of peers and their reload hold before the NAT, for turnutils_uclient and for aioice",
        .enabled(
            if: OtherClients.uclient != nil && OtherClients.python != nil && OtherClients.hasNamespaces,
            "coturn, aioice or namespaces are missing"))
    func operators() async throws {
        let network = try ExternalNetwork()
        defer { network.down() }
        let peer = try Child(network.inside("w") + ["turnutils_peer", "-L", "203.0.113.1", "-p", "3480"])
        defer { peer.terminate() }
        let keys = "users_file: users\nlegacy_channels: true\nexternal: 203.0.113.11\n"
        // A documentation range, of which the list lets in a part.
        let relay = try await ConfiguredRelay(
            keys: keys + "allow: 203.0.113.0/28\n", prefix: network.inside("a"), address: "10.1.0.2",
            port: NatNetwork.relayPort
        ) { try ConfiguredRelay.addUser("camera", "north", to: "\($0)/users") }
        #expect(try await isAllBack(network, ["-c", "-e", "203.0.113.1", "-r", "3480"]))
        #expect(try await isAllBack(network, ["-y"]))
        let endpoint = "203.0.113.11:\(NatNetwork.relayPort)"
        let seen = try await PairSeen.meet(
            relays: (endpoint, endpoint), isRelayOnly: true, credentials: ("camera", "north"),
            prefixes: (network.inside("w"), network.inside("w")))
        seen.expectAllMessages(relay.child.errors)
        #expect(seen.a.local_address?.hasPrefix("203.0.113.11") == true, "\(seen)")

        // The peer is denied, and from relay to relay everything goes on.
        let busy = try Child(
            network.inside("w") + [
                RelayProcess.apus, "relay", "check", "--server", endpoint, "--username", "camera", "--password",
                "north",
                "--count", "400", "--interval", "20",
            ])
        try await eventually("the busy clients have their allocations") {
            busy.output.components(separatedBy: "allocated").count == 3
        }
        try relay.write(keys + "allow: 203.0.113.0/28\ndeny: 203.0.113.1\n")
        try await relay.reload(ReloadTests.done)
        #expect(try await isAllBack(network, ["-c", "-e", "203.0.113.1", "-r", "3480"]), "allow goes before deny")
        try relay.write(keys + "deny: 203.0.113.1\n")
        try await relay.reload(ReloadTests.done)
        #expect(try await !isAllBack(network, ["-c", "-e", "203.0.113.1", "-r", "3480"]))
        await busy.ended()
        #expect(busy.status == 0 && busy.output.contains("400 of 400 messages"), "\(busy.output) \(busy.errors)")
        // The user is gone.
        #expect(try await relay.apus(["user", "remove", "camera", "--file", relay.users]).status == 0)
        try await relay.reload(ReloadTests.done)
        #expect(try await !isAllBack(network, ["-y"]))
    }

    /// turnutils_uclient as the static user, from the outside.
    private func isAllBack(_ network: ExternalNetwork, _ options: [String]) async throws -> Bool {
        let outcome = try await Outcome.of(
            network.inside("w") + [
                "turnutils_uclient", "-u", "camera", "-w", "north", "-m", "2", "-n", "20", "-l", "171",
            ] + options + ["203.0.113.11"], seconds: 15)
        return outcome.status == 0 && outcome.all.contains("Total lost packets 0 (0.000000%)")
    }
}

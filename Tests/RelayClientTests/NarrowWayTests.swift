import ApusTestKit
import Testing

@Suite("Packets that are longer than the way to a peer (RFC 8656 §11.5, §12)")
struct NarrowWayTests {
    @Test(
        "With DONT-FRAGMENT the client is told the way's MTU, by a router and then from memory; without, all arrives",
        .enabled(
            if: OtherClients.peer != nil && OtherClients.hasNamespaces,
            "Debian's coturn is not installed, or network namespaces cannot be made here"))
    func longSend() async throws {
        let name = "apus\(UInt32.random(in: .min ... .max))"
        let made = try Outcome.now([OtherClients.script("narrow.sh"), "up", name, "1200"])
        try #require(made.status == 0, "\(made.all)")
        defer { _ = try? Outcome.now([OtherClients.script("narrow.sh"), "down", name]) }
        let inside = ["ip", "netns", "exec"]
        let relay = try await RelayProcess(
            address: NatNetwork.relayAddress, port: NatNetwork.relayPort, opened: "documentation",
            prefix: inside + ["\(name)-w"])
        let peer = try Child(inside + ["\(name)-p", "turnutils_peer", "-L", "198.51.100.2", "-p", "3480"])
        defer { peer.terminate() }
        let issued = try await RelayProcess.credentials()
        let seen = try await Outcome.of(
            inside + ["\(name)-w", "python3", OtherClients.script("long_send.py"), relay.address, "\(relay.port)"]
                + [issued.user, issued.password, "198.51.100.2", "3480", "1300"])
        let lines = seen.output.split(separator: "\n")
        #expect(lines == ["icmp 3 4 1200", "icmp 3 4 1200", "echo 1300"], "\(seen.all) \(relay.log)")
        #expect(relay.stop() == 0)
    }
}

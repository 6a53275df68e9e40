import ApusTestKit
import Foundation
import Testing

@Suite("A relay with several listeners and relay addresses (D8)")
struct ListenerTests {
    @Test("Clients come at each port, and allocations are spread over the relay addresses of one family")
    func several() async throws {
        let second = try FreePort.next()
        let relay = try await ConfiguredRelay(
            keys: """
                users_file: users
                open: loopback
                relay_addresses: 127.0.0.1 127.0.0.2
                """, more: "127.0.0.1:\(second)"
        ) { try ConfiguredRelay.addUser("first", "north", to: "\($0)/users") }
        var hosts: Set<String> = []
        for round in 0..<12 {
            let outcome = try await relay.apus([
                "check", "--server", "127.0.0.1:\(round.isMultiple(of: 2) ? relay.port : second)", "--username",
                "first",
                "--password", "north", "--count", "3", "--transport", round.isMultiple(of: 3) ? "tcp" : "udp",
            ])
            #expect(outcome.status == 0, "\(outcome.all) \(relay.child.errors)")
            for match in outcome.output.matches(of: /allocated ([0-9.]+):/) { hosts.insert(String(match.1)) }
        }
        // 24 allocations that all chose the same one of two: once in eight million runs.
        #expect(hosts == ["127.0.0.1", "127.0.0.2"])
    }

    @Test(
        "turnutils_uclient comes through a proxy that names its clients, and the relay knows these",
        .enabled(
            if: OtherClients.uclient != nil && OtherClients.python != nil, "coturn or the clients' Python is missing"))
    func proxied() async throws {
        let python = try #require(OtherClients.python)
        let relay = try await ConfiguredRelay(
            keys: "users_file: users\nopen: loopback\nlegacy_channels: true\nproxy_from: 127.0.0.3\n"
        ) { try ConfiguredRelay.addUser("first", "north", to: "\($0)/users") }
        let port = try FreePort.next()
        let proxy = try Child([
            python, OtherClients.script("proxy.py"), "127.0.0.1", "\(port)", "127.0.0.3", "127.0.0.1", "\(relay.port)",
        ])
        defer { proxy.terminate() }
        try await eventually("the proxy listens") { proxy.output.contains("ready") }
        let outcome = try await Outcome.of([
            "turnutils_uclient", "-t", "-u", "first", "-w", "north", "-p", "\(port)", "-m", "2", "-n", "20", "-y",
            "127.0.0.1",
        ])
        #expect(outcome.status == 0, "\(outcome.all) \(relay.child.errors) \(proxy.errors)")
        #expect(outcome.output.contains("Total lost packets 0 (0.000000%)"), "\(outcome.all)")
        // Who comes without a proxy needs no header.
        let direct = try await relay.check("first", "north", ["--transport", "tcp"])
        #expect(direct.status == 0, "\(direct.all)")
        relay.child.terminate()
        let ended = relay.child.errors.split(separator: "\n").filter { $0.contains("An allocation ended") }
        #expect(ended.count >= 4 && ended.allSatisfy { !$0.contains("127.0.0.3") }, "\(relay.child.errors)")
    }
}

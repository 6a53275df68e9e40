import ApusConfiguration
import ApusCore
import ApusNodeConfiguration
import ApusRelayService
import ApusTraversal
import Foundation
import Testing

@Suite("The relay's configuration and keys (D8)")
struct RelayConfigurationTests {
    private let root = [UInt8](repeating: 7, count: 32)

    private func read(_ yaml: String, _ environment: [String: String] = [:]) throws -> RelayConfiguration {
        var reader = try ConfigurationReader(
            yaml: yaml, source: "node.yaml", folder: "/etc/apus", environment: environment)
        return try RelayConfiguration(&reader)
    }

    @Test("Addresses, ranges and bounds are read, and the environment goes before the file")
    func keys() throws {
        let configuration = try read(
            """
            relay:
              addresses: 192.0.2.1 2001:db8::1
              port: 4000
              open: loopback private
              lifetime_max: 20m
              port_min: 50000
              port_max: 50009
            """, ["APUS_RELAY_PORT": "4001"])
        #expect(configuration.endpoints().map(\.port) == [4001, 4001])
        #expect(configuration.endpoints().map(\.family) == [.v4, .v6])
        #expect(configuration.opened == [.loopback, .private])
        #expect(configuration.lifetimeMax == .seconds(1200))
        #expect(configuration.ports == 50_000...50_009)
        #expect(configuration.firstEndpoint() == HostPort(host: "192.0.2.1", port: 4001))
    }

    @Test(
        "What cannot be meant is refused with the key (10022)",
        arguments: [
            ("addresses: relay.example", "relay.addresses"), ("open: lan", "relay.open"), ("port: 0", "relay.port"),
            ("port_min: 60000\n  port_max: 50000", "relay.port_max"), ("lifetime_max: 1m", "relay.lifetime_max"),
            ("enabled: yes", "relay.enabled"), ("realm: ''", "relay.realm"),
            ("secret: a\n  secret_file: b", "relay.secret_file"), ("tls: {port: 3478}", "relay.tls.port"),
            ("addresses: 192.0.2.1:0", "relay.addresses"), ("addresses: 2001:db8::1:x", "relay.addresses"),
            ("addresses: 192.0.2.1:443\n  tls: {addresses: 192.0.2.1:443}", "relay.tls.addresses"),
            ("addresses: 192.0.2.1:443\n  tls: {port: 443}", "relay.tls.port"),
            ("tls: {addresses: 192.0.2.1:3478}", "relay.tls.addresses"),
            ("allow: 10.0.0.1/8", "relay.allow"), ("deny: 10.0.0.0/33", "relay.deny"),
            ("deny: 10.0.0.0/8:0", "relay.deny"), ("proxy_from: 10.0.0.0/8:80", "relay.proxy_from"),
            ("external: 10.0.0.5/fd00::5", "relay.external"),
            ("external: relay.example", "relay.external"),
            ("external: 203.0.113.5/10.0.0.5 203.0.113.5/10.0.0.6", "relay.external"),
            ("external: 203.0.113.5\n  external_from: 203.0.113.9:3478", "relay.external_from"),
            ("external_from: 203.0.113.9", "relay.external_from"),
            ("nat64_prefixes: '2001:db8::/95'", "relay.nat64_prefixes"),
            ("nat64_prefixes: 10.0.0.0/32", "relay.nat64_prefixes"),
            ("quota: {node_bits_per_second: 7}", "relay.quota.node_bits_per_second"),
            ("quota: {node_bits_per_second: 63999}", "relay.quota.node_bits_per_second"),
            ("quota: {bits_per_second: 1}", "relay.quota.bits_per_second"),
            ("tls: {certificate: a}", "relay.tls.private_key"), ("tls: {private_key: a}", "relay.tls.certificate"),
        ])
    func refused(line: String, key: String) throws {
        let error = #expect(throws: ApusError.self) { try read("relay:\n  \(line)\n") }
        #expect(error?.code == .configurationInvalid)
        #expect(error?.message.contains("\(key): ") == true, "\(error?.message ?? "")")
    }

    @Test("Listeners have ports of their own where these are named, and every relay address that is named is used")
    func listeners() throws {
        let configuration = try read(
            """
            relay:
              addresses: 192.0.2.1 192.0.2.1:80 [2001:db8::1]:80
              tls: {addresses: "192.0.2.1:443 2001:db8::1"}
              relay_addresses: 192.0.2.1 192.0.2.2 2001:db8::1
            """)
        #expect(configuration.endpoints().map(\.port) == [3478, 80, 80])
        #expect(configuration.secureEndpoints().map(\.port) == [443, 5349])
        let hosts = try configuration.relayHosts(endpoints: configuration.endpoints())
        #expect(hosts.map(\.hostDescription) == ["192.0.2.1", "192.0.2.2", "2001:db8:0:0:0:0:0:1"])
    }

    @Test("Public addresses stand for the relay's own or for those behind a slash, and clients are told them")
    func external() throws {
        let configuration = try read(
            "relay: {addresses: 10.0.0.5 fd00::5, external: 203.0.113.5 203.0.113.9/10.0.0.9 2001:db8::5/fd00::5}")
        let hosts = try configuration.relayHosts(endpoints: configuration.endpoints())
        let externals = try configuration.externalAddresses(hosts: hosts)
        let expected = [
            "203.0.113.5/10.0.0.5", "203.0.113.9/10.0.0.9", "2001:db8:0:0:0:0:0:5/fd00:0:0:0:0:0:0:5",
        ]
        #expect(externals.pairs.map { "\($0.external.hostDescription)/\($0.local.hostDescription)" } == expected)
        #expect(configuration.firstEndpoint() == HostPort(host: "203.0.113.5", port: 3478))
        let other = try read("relay: {addresses: fd00::5, external: 203.0.113.5}")
        let error = #expect(throws: ApusError.self) {
            try other.externalAddresses(hosts: try other.relayHosts(endpoints: other.endpoints()))
        }
        #expect(error?.code == .configurationInvalid)
    }

    @Test("The TLS and DTLS endpoints are at the addresses of the others, each once, where there is a certificate")
    func secureEndpoints() throws {
        let plain = try read("relay: {addresses: 192.0.2.1 192.0.2.1:3478 2001:db8::1}")
        #expect(plain.endpoints().map(\.family) == [.v4, .v6])
        #expect(plain.firstSecureEndpoint() == nil)
        #expect(plain.secureEndpoints().map(\.port) == [5349, 5349])
        let configuration = try read(
            """
            relay:
              addresses: 192.0.2.1
              tls: {port: 443, certificate: a.pem, private_key: /b.pem, handshakes_max: 9}
            """, ["APUS_RELAY_TLS_PORT": "444"])
        #expect(configuration.handshakesMax == 9 && configuration.sessionsMax == plain.sessionsMax)
        #expect(configuration.certificateFile == "/etc/apus/a.pem")
        #expect(configuration.keyFile == "/b.pem")
        #expect(configuration.firstSecureEndpoint() == HostPort(host: "192.0.2.1", port: 444))
    }

    @Test("Without addresses the relay listens where others reach the machine, and at 127.0.0.1 last")
    func machine() throws {
        let configuration = try read("")
        #expect(configuration.endpoints().last == TransportAddress("127.0.0.1", port: 3478))
        let hosts = try configuration.relayHosts(endpoints: configuration.endpoints())
        #expect((1...2).contains(hosts.count))
        for host in hosts where PeerPolicy.range(of: host) == .loopback {
            // Only where the machine has no other address of the family.
            #expect(configuration.endpoints().count { $0.family == host.family } == 1)
        }
    }

    @Test("A wildcard needs the address that peers answer to (10022)")
    func wildcard() throws {
        let configuration = try read("relay: {addresses: 0.0.0.0}")
        #expect(throws: ApusError(.configurationInvalid)) {
            try configuration.relayHosts(endpoints: configuration.endpoints())
        }
        let named = try read("relay: {addresses: 0.0.0.0, relay_addresses: 192.0.2.7}")
        #expect(try named.relayHosts(endpoints: named.endpoints()).map(\.hostDescription) == ["192.0.2.7"])
    }

    @Test("Nodes with one cluster key have the same nonce key and credentials; another key gives others")
    func derived() throws {
        let configuration = try read("")
        let keys = try RelayKeys(root: root, configuration: configuration)
        let same = try RelayKeys(root: root, configuration: configuration)
        let other = try RelayKeys(root: Array(repeating: 8, count: 32), configuration: configuration)
        #expect(keys.nonceKey == same.nonceKey && keys.nonceKey != other.nonceKey)
        #expect(keys.nonceKey.count == 32 && keys.nonceKey != root)
        #expect(keys.credentials.current == same.credentials.current)
        #expect(keys.credentials.current != other.credentials.current)
        #expect(keys.credentials.current != keys.nonceKey)
    }

    @Test("A static secret takes the place of the derived one; a file's second line is the one before")
    func secret() throws {
        let given = try RelayKeys(root: root, configuration: try read("relay: {secret: a static secret}"))
        #expect(given.credentials.current == Array("a static secret".utf8))
        #expect(given.credentials.previous == nil)
        let file = NSTemporaryDirectory() + "/apus-secret-\(UUID().uuidString)"
        try Data("of today\nof before\n".utf8).write(to: URL(fileURLWithPath: file))
        defer { try? FileManager.default.removeItem(atPath: file) }
        var configuration = RelayConfiguration()
        configuration.secretFile = file
        let read = try RelayKeys(root: root, configuration: configuration)
        #expect(read.credentials.current == Array("of today".utf8))
        #expect(read.credentials.previous == Array("of before".utf8))
        #expect(read.nonceKey == given.nonceKey)
        configuration.secretFile = file + "-missing"
        #expect(throws: ApusError(.configurationInvalid)) { try RelayKeys(root: root, configuration: configuration) }
    }
}

import ApusCore
import ApusGateway
import ApusHTTP
import ApusListener
import ApusNodeConfiguration
import ApusRelayService
import ApusTransport
import ApusTraversal
import Testing

@Suite("A node's bounds and its limit of open files")
struct DescriptorPlanTests {
    private func configuration(_ more: [String: String] = [:]) throws -> NodeConfiguration {
        let yaml = """
            cluster: home
            node: n1
            data_directory: n1
            ownership: {file: shared/ownership.sqlite}
            records: {file: shared/records.sqlite}
            tls: {authority: pki/ca.pem, certificate: pki/n1.pem, key: pki/n1.key,
                  client_certificate: pki/clients.pem, client_key: pki/clients.key}
            keys: {cluster: pki/cluster.key, token_public: pki/token.pub}
            """
        return try NodeConfiguration(yaml: yaml, source: "test", folder: "test", environment: more)
    }

    private func around(_ limit: Int) -> DescriptorPlan.Surroundings {
        .init(limit: limit, inUse: 12, coreCount: 2, relayAddressCount: 2)
    }

    /// All that may take a descriptor, as the configuration bounds it.
    private func sum(_ node: NodeConfiguration) -> Int {
        node.httpListener.connectionsMax + node.httpListener.webSocketsMax + node.transport.handshakingMax
            + node.gateway.refusalsMax + node.gateway.connectionsMax
            + node.relay.allocationsMax + node.relay.streamsMax + node.relay.tcpPeersMax
            + node.relay.connectedFlowsMax * 2
    }

    @Test("A large limit changes nothing")
    func large() throws {
        let fitted = try configuration().fitting(around(524_288))
        #expect(fitted.lowered.isEmpty)
        #expect(fitted.configuration.gateway.connectionsMax == 15_000)
    }

    @Test(
        "Bounds together stay below the limit, and each one that was lowered is named", arguments: [256, 1_024, 20_000])
    func lowered(limit: Int) throws {
        let wanted = try configuration()
        let fitted = try wanted.fitting(around(limit))
        #expect(sum(fitted.configuration) < limit - 64)
        #expect(fitted.configuration.gateway.connectionsMax >= 16)
        #expect(fitted.configuration.relay.allocationsMax >= 8)
        #expect(fitted.configuration.gateway.unauthenticatedMax <= fitted.configuration.gateway.connectionsMax / 2)
        let clients = try #require(fitted.lowered.first { $0.key == "gateway.connections_max" })
        #expect(clients.from == 15_000 && clients.to == fitted.configuration.gateway.connectionsMax)
        #expect(clients.description == "gateway.connections_max 15000 to \(clients.to)")
        #expect(fitted.lowered.contains { $0.key == "relay.allocations_max" })
    }

    @Test("A bound that is configured low stays, and leaves its descriptors to the others")
    func modest() throws {
        let plain = try configuration().fitting(around(20_000)).configuration
        let fitted = try configuration(["APUS_RELAY_ENABLED": "false"]).fitting(around(20_000))
        #expect(fitted.lowered.isEmpty)
        #expect(fitted.configuration.gateway.connectionsMax > plain.gateway.connectionsMax)
        let few = try configuration(["APUS_RELAY_ALLOCATIONS_MAX": "100"]).fitting(around(20_000))
        #expect(few.configuration.relay.allocationsMax == 100)
        #expect(few.configuration.gateway.connectionsMax > plain.gateway.connectionsMax)
    }

    @Test("A limit that is too low for anything stops the start with 10022")
    func tooLow() throws {
        #expect(throws: ApusError(.configurationInvalid)) { try configuration().fitting(around(128)) }
    }

    @Test(
        "Listeners of TLS and DTLS are counted where there is a certificate, at the addresses that are named for them")
    func secureListeners() throws {
        func left(_ change: (inout RelayConfiguration) -> Void) throws -> Int {
            var relay = RelayConfiguration()
            relay.threadCount = 4
            // So that a descriptor more or less is seen.
            (relay.allocationsMax, relay.tcpPeersMax, relay.connectedFlowsMax) = (8, 0, 0)
            (relay.streamsMax) = 1_000_000
            change(&relay)
            _ = try relay.fit(around(20_000))
            return relay.streamsMax
        }
        let plain = try left { _ in }
        let same = try left { $0.certificateFile = "a" }
        let named = try left {
            $0.certificateFile = "a"
            $0.secureAddresses = (0..<50).map { TransportAddress(v4: 0x0a00_0001 + $0, port: 443) }
        }
        #expect(plain - same == 4 * 2 * 2, "two addresses at four threads, TLS and DTLS")
        #expect(same - named == 4 * 2 * 48)
        let closed = try left {
            $0.secureAddresses = (0..<50).map { TransportAddress(v4: 0x0a00_0001 + $0, port: 443) }
        }
        #expect(closed == plain, "none is opened without a certificate")
    }

    @Test("A relay that runs alone has the descriptors for itself")
    func alone() throws {
        var relay = try configuration().relay
        let lowered = try relay.fit(around(20_000)).lowered
        #expect(relay.allocationsMax > 12_000)
        #expect(!lowered.isEmpty)
        #expect(throws: ApusError(.configurationInvalid)) { try relay.fit(around(64)) }
    }
}

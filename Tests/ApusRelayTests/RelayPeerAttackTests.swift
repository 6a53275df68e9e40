import ApusCore
import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("Attacks on what stands behind a relay (D8; coturn's CVEs)")
struct RelayPeerAttackTests {
    /// An address as an attacker writes it, in the bytes of a family that it may not belong to.
    struct Target: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let bytes: [UInt8]

        init(_ name: String, _ bytes: [UInt8]) { (testDescription, self.bytes) = (name, bytes) }

        /// XOR-PEER-ADDRESS as the bytes are, without what a writer of ours would make of them.
        func value(port: UInt16, _ transaction: [UInt8]) -> [UInt8] {
            let mask = [0x21, 0x12, 0xa4, 0x42] + transaction
            let mixed = port ^ 0x2112
            return [0, bytes.count == 4 ? 1 : 2, UInt8(mixed >> 8), UInt8(truncatingIfNeeded: mixed)]
                + zip(bytes, mask).map { $0 ^ $1 }
        }
    }

    static let targets = [
        Target("127.0.0.1 (CVE-2018-4058)", [127, 0, 0, 1]),
        Target("127.0.0.1 as v4-mapped (CVE-2026-27624)", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]),
        Target("127.1.2.3", [127, 1, 2, 3]),
        Target("0.0.0.0 (CVE-2020-26262)", [0, 0, 0, 0]),
        Target("0.0.0.0 as v4-mapped", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]),
        Target("::1 (CVE-2020-26262)", [UInt8](repeating: 0, count: 15) + [1]),
        Target(":: (CVE-2020-26262)", [UInt8](repeating: 0, count: 16)),
        Target("127.0.0.1 as v4-compatible", [UInt8](repeating: 0, count: 12) + [127, 0, 0, 1]),
        Target("127.0.0.1 behind NAT64", [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 127, 0, 0, 1]),
        Target("127.0.0.1 behind 6to4", [0x20, 2, 127, 0, 0, 1] + [UInt8](repeating: 0, count: 9) + [1]),
        Target("127.0.0.1 behind Teredo", [0x20, 1, 0, 0, 8, 8, 8, 8, 0, 0, 0, 0, 128, 255, 255, 254]),
        Target("a cloud's metadata, 169.254.169.254", [169, 254, 169, 254]),
        Target("255.255.255.255", [255, 255, 255, 255]),
        Target("224.0.0.1", [224, 0, 0, 1]),
        Target("ff02::1", [0xff, 2] + [UInt8](repeating: 0, count: 13) + [1]),
        Target("fe80::1", [0xfe, 0x80] + [UInt8](repeating: 0, count: 13) + [1]),
        Target("10.0.0.1", [10, 0, 0, 1]),
    ]

    /// The server of these tests relays from both families where the machine has both.
    private func start(_ change: (inout TurnServerConfiguration) -> Void = { _ in }) throws -> RelayUnderTest {
        let hosts = [TransportAddress(v4: LoopbackSocket.host, port: 0), TransportAddress(v6High: 0, low: 1, port: 0)]
        return try RelayUnderTest(hosts: hosts) {
            $0.peers = PeerPolicy()
            change(&$0)
        }
    }

    @Test("By default nothing goes to a forbidden peer, however its address is written", arguments: targets)
    func forbidden(_ target: Target) throws {
        let relay = try start()
        defer { relay.control.stop() }
        let victim = LoopbackSocket()
        for family in [TransportAddress.Family.v4, .v6] {
            let client = relay.client()
            let allocated = try client.ask(.allocate) {
                $0.add(requestedTransport: 17)
                $0.add(.requestedAddressFamily, family: family)
            }
            // A machine without IPv6 has no such relay.
            guard allocated.kind == .success || family == .v4 else { continue }
            let isOwnFamily = (target.bytes.count == 4) == (family == .v4)
            func peer(_ writer: inout StunWriter) {
                writer.add(.xorPeerAddress, target.value(port: victim.address.port, Array(writer.bytes[8..<20])))
            }
            for method in [StunMethod.createPermission, .channelBind] {
                let code = try client.code(method) {
                    if method == .channelBind { $0.add(channelNumber: 0x4001) }
                    peer(&$0)
                }
                // An IPv4 relay has no IPv6 peer, and the other way round: 443. A v4-mapped one is IPv4.
                #expect(isOwnFamily && !target.testDescription.contains("v4-mapped") ? code == 403 : code ?? 0 >= 403)
            }
            for isUnusual in [false, true] {
                var writer = StunWriter(StunMessageType(.indication, .send), TransactionID(high: 1, low: 1))
                peer(&writer)
                if isUnusual { writer.add(.dontFragment, []) }
                writer.add(.data, [1])
                client.send(writer.bytes)
            }
            client.send(PlaneHarness.channelData(0x4001, [1]))
            #expect(client.isNextAnswered())
        }
        #expect(victim.receive(milliseconds: 30) == nil)
    }

    @Test("The cluster's own addresses are peers at relays' ports alone, however they are written")
    func own() throws {
        let mine = TransportAddress(v4: 0xC0A8_4D01, port: 0)
        let relay = try start { $0.peers = PeerPolicy(own: [mine], relayPorts: 49_152...65_535) }
        defer { relay.control.stop() }
        let client = relay.client()
        _ = try client.allocate()
        let forms = [
            Target("plain", mine.bytes),
            Target("v4-mapped", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] + mine.bytes),
        ]
        for form in forms {
            for port in [22, 80, 3478, 5349, 7400, 49_151] as [UInt16] {
                let code = try client.code(.channelBind) {
                    $0.add(channelNumber: 0x4001)
                    $0.add(.xorPeerAddress, form.value(port: port, Array($0.bytes[8..<20])))
                }
                #expect(code == 403, "port \(port), \(form.testDescription)")
            }
        }
        let relayed = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: mine.withPort(50_000))
        }
        #expect(relayed == 0)
    }

    @Test("The relay's own endpoints are no peers by default: no client speaks to the relay through the relay")
    func endpoints() throws {
        let relay = try start { $0.peers = PeerPolicy(own: [TransportAddress(v4: LoopbackSocket.host, port: 0)]) }
        defer { relay.control.stop() }
        let client = relay.client()
        let relayed = try client.allocate()
        for peer in [relay.endpoint, relay.streamEndpoint, relayed] {
            let code = try client.code(.channelBind) {
                $0.add(channelNumber: 0x4001)
                $0.add(.xorPeerAddress, xorAddress: peer)
            }
            #expect(code == 403)
        }
    }

    @Test("A client that is its own peer has each packet once, and no loop")
    func loop() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        let relayed = try client.allocate()
        let bound = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: relayed)
        }
        #expect(bound == 0)
        client.send(PlaneHarness.channelData(0x4001, [1, 2, 3, 4]))
        #expect(client.socket.receive() == PlaneHarness.channelData(0x4001, [1, 2, 3, 4]))
        #expect(client.socket.receive(milliseconds: 50) == nil)
    }

    @Test("Relayed ports cannot be foretold (CVE-2025-69217)")
    func ports() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let clients = (0..<32).map { _ in relay.client() }
        let ports = try clients.map { Int(try $0.allocate().port) }
        let steps = zip(ports, ports.dropFirst()).map { $1 - $0 }
        #expect(Set(steps).count > 24, "ports come in steps: \(ports)")
        #expect((ports.max() ?? 0) - (ports.min() ?? 0) > 4_000, "ports come from a corner: \(ports)")
    }
}

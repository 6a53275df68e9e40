import ApusRelay
import ApusTestKit
import ApusTraversal
import Glibc
import Testing

@Suite("Connections that come through a proxy (PROXY protocol, version 2)")
struct ProxyTests {
    private static let proxy: UInt32 = 0x7F00_0505
    private let client = TransportAddress(v4: 0xC000_0207, port: 49_153)

    private func rule() throws -> PeerRule { try #require(PeerRule("127.0.5.5")) }

    /// The header for a client of IPv4; of the proxy itself where there is none.
    private func header(_ client: TransportAddress?) -> [UInt8] {
        let signature: [UInt8] = [0x0D, 0x0A, 0x0D, 0x0A, 0, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A]
        guard let client else { return signature + [0x20, 0, 0, 0] }
        let ports = [UInt8(client.port >> 8), UInt8(client.port & 0xFF), 0x0D, 0x96]
        return signature + [0x21, 0x11, 0, 12] + client.bytes + [198, 51, 100, 1] + ports
    }

    private func connect(_ endpoint: TransportAddress) -> LoopbackSocket {
        LoopbackSocket(connectedTo: endpoint, from: 0x7F00_0505)
    }

    @Test("The client that the header names is the connection's, in one piece with its request and byte by byte")
    func named() throws {
        let rule = try rule()
        let harness = try PlaneHarness { $0.proxies = [rule] }
        let peer = LoopbackSocket()
        for isSlow in [false, true] {
            let remote = client.withPort(isSlow ? 2 : 1)
            let bytes = header(remote) + PlaneHarness.request(0x003)
            let connection = connect(harness.streamEndpoint)
            if isSlow {
                for byte in bytes {
                    connection.write([byte])
                    usleep(500)
                }
            } else {
                connection.write(bytes)
            }
            let flow = try harness.flow(from: remote)
            #expect(flow.transport == .tcp)
            let allocation = try harness.installWithChannel(flow, peer: peer.address)
            connection.write([0x40, 0, 0, 4, 5, 6, 7, 8])
            #expect(peer.receive() == [5, 6, 7, 8])
            peer.send([1, 2, 3, 4], to: allocation.relayed)
            #expect(connection.receive(bytes: 8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        }
    }

    @Test(
        "The header goes before the handshake of TLS",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"))
    func secured() throws {
        let rule = try #require(PeerRule("127.0.0.0/8"))
        let harness = try PlaneHarness.secured { $0.proxies = [rule] }
        let secure = try #require(
            SecureClient(harness.secureEndpoint, isDatagram: false, prelude: header(client)))
        secure.write(PlaneHarness.request(0x003))
        #expect(try harness.flow(from: client).transport == .tls)
    }

    @Test("A proxy that speaks for itself is its own client")
    func local() throws {
        let rule = try rule()
        let harness = try PlaneHarness { $0.proxies = [rule] }
        let connection = connect(harness.streamEndpoint)
        connection.write(header(nil) + PlaneHarness.request(0x003))
        #expect(try harness.flow(from: connection.address).remote.v4 == Self.proxy)
    }

    @Test("A proxy that sends no header is closed, and a header from anybody else is no request")
    func refused() throws {
        let rule = try rule()
        let harness = try PlaneHarness { $0.proxies = [rule] }
        let silent = connect(harness.streamEndpoint)
        silent.write(PlaneHarness.request(0x003))
        #expect(silent.receive() ?? [] == [])
        #expect(harness.counters { $0.malformed == 1 } != nil)
        let outsider = LoopbackSocket(connectedTo: harness.streamEndpoint)
        outsider.write(header(client) + PlaneHarness.request(0x003))
        #expect(outsider.receive() ?? [] == [])
        #expect(harness.counters { $0.malformed == 2 && $0.connections == 0 } != nil)
    }

    @Test("Connections without a header count for the proxy's source, those with one for their client's")
    func bounds() throws {
        let rule = try rule()
        let harness = try PlaneHarness {
            $0.proxies = [rule]
            $0.unauthenticatedPerSourceMax = 4
            $0.unauthenticatedTimeout = .seconds(2)
        }
        // Three that never send a whole header, and eight of one client through the same proxy.
        let halves = (0..<3).map { _ in connect(harness.streamEndpoint) }
        for half in halves { half.write(Array(header(client).prefix(20))) }
        var held: [LoopbackSocket] = []
        for number in 1...8 as ClosedRange<UInt16> {
            let connection = connect(harness.streamEndpoint)
            connection.write(header(client.withPort(number)) + PlaneHarness.request(0x003))
            _ = try harness.flow(from: client.withPort(number))
            held.append(connection)
        }
        #expect(harness.counters { $0.unauthenticatedDisplaced == 4 && $0.connections == 7 } != nil)
        #expect(harness.counters { $0.unauthenticatedLate == 7 && $0.connections == 0 } != nil)
        withExtendedLifetime((halves, held)) {}
    }
}

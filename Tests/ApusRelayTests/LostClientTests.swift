import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Testing

@Suite("What is an allocation's goes to its own client and to nobody else (D8)")
struct LostClientTests {
    /// An allocation with a ticket outlives its client's connection (RFC 8016), so that its row does too.
    @Test(
        "A client moves to a connection that is gone already: who gets the old one's place hears nothing of it",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"),
        arguments: [RelayFlow.Transport.tcp, .dtls])
    func moved(transport: RelayFlow.Transport) throws {
        let harness = try PlaneHarness.secured()
        var client: PlaneClient? = try PlaneClient(harness, transport)
        let flow = try #require(client?.flow)
        let peer = LoopbackSocket()
        let allocation = try harness.install(flow)
        harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: 1...65_535))
        var gone = flow
        gone.connection = 1 << 20
        harness.command(.moveFlow(allocation: allocation.id, flow: gone))
        harness.settle()
        harness.command(.closeStream(flow))
        let closed: Bool? = harness.event { if case .streamClosed(flow) = $0 { true } else { nil } }
        #expect(closed == true)
        client = nil
        let outsider = try PlaneClient(harness, transport)
        peer.send([1, 2, 3], to: allocation.relayed)
        #expect(outsider.receives(within: 200) == nil)
        #expect(harness.remove(allocation.id)?.dropped == 1)
    }

    @Test("§11.3: data of IPv6 that no Data indication can hold is dropped, and what follows is whole")
    func longData() throws {
        let harness = try PlaneHarness()
        let host = TransportAddress(v6High: 0, low: 1, port: 0)
        // A machine without IPv6 has no such relay.
        guard let opened = try? RelaySocket.open(host, bufferBytes: 512 * 1_024) else { return }
        let client = try PlaneClient(harness, .tcp)
        harness.command(.install(allocation: 1, flow: client.flow, socket: opened.socket))
        harness.command(.permit(allocation: 1, peer: host, ports: 1...65_535))
        harness.settle()
        let peer = LoopbackSocket(v6: ())
        // The header's length has 16 bits: 28 bytes of attributes leave room for 65,504 of data.
        peer.sendV6([UInt8](repeating: 1, count: 65_505), to: opened.address.port)
        peer.sendV6([2], to: opened.address.port)
        let data = client.receive(52)
        #expect(data.prefix(8) == [0, 0x17, 0, 32, 0x21, 0x12, 0xA4, 0x42])
        #expect(data.suffix(8) == [0, 0x13, 0, 1, 2, 0, 0, 0])
        peer.sendV6([UInt8](repeating: 3, count: 65_504), to: opened.address.port)
        #expect(client.receive(65_552).suffix(65_504) == [UInt8](repeating: 3, count: 65_504))
        #expect(harness.remove(1)?.dropped == 1)
    }

    @Test("A plane that sleeps between its ticks leaves none out: counters are told each second")
    func ticks() throws {
        let harness = try PlaneHarness()
        let client = LoopbackSocket()
        _ = try harness.install(harness.flow(of: client))
        client.send([0xFF], to: harness.endpoint)
        #expect(harness.counters { $0.malformed == 1 } != nil)
        let start = MonotonicTime.now()
        for count in 2...3 as ClosedRange<UInt64> {
            client.send([0xFF], to: harness.endpoint)
            #expect(harness.counters { $0.malformed == count } != nil)
        }
        #expect(MonotonicTime.now() - start < .milliseconds(2_400))
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Channels that carry much have a socket connected to their peer (D8)")
struct HotFlowTests {
    private let payload = (0..<201).map { UInt8($0) }

    /// Sends so many datagrams to the peer by the channel 0x4000 and back, a few at a time, and checks all of them.
    private func carry(
        _ count: Int, _ harness: PlaneHarness, _ client: LoopbackSocket, _ peer: LoopbackSocket,
        relayed: TransportAddress
    ) {
        for block in 0..<(count + 19) / 20 {
            let sent = (0..<20).map { [UInt8](repeating: UInt8($0), count: 1 + (block * 7 + $0 / 5 * 90) % 1_300) }
            for bytes in sent { client.send(PlaneHarness.channelData(0x4000, bytes), to: harness.endpoint) }
            #expect(sent.map { _ in peer.receive() } == sent)
            for bytes in sent { peer.send(bytes, to: relayed) }
            #expect(sent.map { _ in client.receive() } == sent.map { PlaneHarness.channelData(0x4000, $0) })
        }
    }

    @Test("Before, while and after, data is in order, comes from the relayed address, and others reach that too")
    func asBefore() throws {
        let harness = try PlaneHarness()
        let (client, other) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.install(harness.flow(of: client))
        // Connected itself, it hears the relayed address alone.
        let peer = LoopbackSocket(datagramsTo: allocation.relayed)
        harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: 1...65_535))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: peer.address))
        harness.settle()
        carry(1_500, harness, client, peer, relayed: allocation.relayed)
        #expect(harness.counters { $0.connectedFlows == 1 } != nil)
        // A permitted host at another port is no peer of the channel.
        other.send(payload, to: allocation.relayed)
        #expect(client.receive()?.prefix(2) == [0, 0x17])
        client.send(PlaneHarness.sendIndication(other.address, payload), to: harness.endpoint)
        #expect(other.receive() == payload)
        // The address is nobody else's, although two sockets have it.
        #expect(throws: ApusError.self) { try RelaySocket.open(allocation.relayed, bufferBytes: 4_096) }

        harness.command(.unbindChannel(allocation: allocation.id, number: 0x4000))
        harness.settle()
        peer.send(payload, to: allocation.relayed)
        #expect(client.receive()?.prefix(2) == [0, 0x17])
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: peer.address))
        harness.settle()
        carry(1_500, harness, client, peer, relayed: allocation.relayed)

        let traffic = try #require(harness.remove(allocation.id))
        #expect((traffic.upPackets, traffic.downPackets, traffic.dropped) == (3_001, 3_002, 0))
        let again = try RelaySocket.open(allocation.relayed, bufferBytes: 4_096)
        RelaySocket.close(again.socket)
    }

    @Test("Each of an allocation's channels has its own; over the bound they do without")
    func bound() throws {
        let harness = try PlaneHarness { $0.connectedFlowsMax = 1 }
        let client = LoopbackSocket()
        let allocation = try harness.install(harness.flow(of: client))
        let peers = [LoopbackSocket(datagramsTo: allocation.relayed), LoopbackSocket(datagramsTo: allocation.relayed)]
        harness.command(.permit(allocation: allocation.id, peer: peers[0].address, ports: 1...65_535))
        for peer in peers {
            harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: peer.address))
            harness.settle()
            carry(1_100, harness, client, peer, relayed: allocation.relayed)
            if peer === peers[1] { break }
            // The first goes on under another number, so that the second may have this one.
            harness.command(.unbindChannel(allocation: allocation.id, number: 0x4000))
            harness.command(.bindChannel(allocation: allocation.id, number: 0x4001, peer: peer.address))
            harness.settle()
            for _ in 0..<1_100 {
                client.send(PlaneHarness.channelData(0x4001, [1]), to: harness.endpoint)
                #expect(peer.receive() == [1])
            }
        }
        #expect(harness.counters { $0.connectedFlows > 1 || $0.unsegmented > 0 } == nil)
        client.send(PlaneHarness.channelData(0x4001, [7]), to: harness.endpoint)
        #expect(peers[0].receive() == [7])
    }

    @Test("What ICMP tells of a connected peer that is gone reaches control, and the channel goes on with its next one")
    func gone() throws {
        let harness = try PlaneHarness()
        let client = LoopbackSocket()
        let allocation = try harness.install(harness.flow(of: client))
        var peer: LoopbackSocket? = LoopbackSocket(datagramsTo: allocation.relayed)
        let address = try #require(peer?.address)
        harness.command(.permit(allocation: allocation.id, peer: address, ports: 1...65_535))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: address))
        harness.settle()
        if let peer { carry(1_100, harness, client, peer, relayed: allocation.relayed) }
        #expect(harness.counters { $0.connectedFlows == 1 } != nil)
        peer = nil
        client.send(PlaneHarness.channelData(0x4000, payload), to: harness.endpoint)
        let told = harness.event { event -> StunICMP? in
            if case .peerError(allocation.id, address, let icmp) = event { icmp } else { nil }
        }
        #expect((told?.type, told?.code) == (3, 3))
    }
}

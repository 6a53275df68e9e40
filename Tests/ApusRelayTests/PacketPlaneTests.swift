import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("The packet plane over datagrams (D8, RFC 8656)")
struct PacketPlaneTests {
    private let payload = (0..<201).map { UInt8($0) }

    @Test("§12: a bound channel carries data both ways, and the allocation's end says how much")
    func channel() throws {
        let harness = try PlaneHarness()
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        client.send(PlaneHarness.channelData(0x4000, payload), to: harness.endpoint)
        #expect(peer.receive() == payload)
        peer.send(payload, to: allocation.relayed)
        #expect(client.receive() == PlaneHarness.channelData(0x4000, payload))
        let traffic = try #require(harness.remove(allocation.id))
        #expect((traffic.upPackets, traffic.upBytes) == (1, 201))
        #expect((traffic.downPackets, traffic.downBytes) == (1, 201))
        #expect(traffic.dropped == 0)
    }

    @Test(
        "A thousand datagrams of changing sizes arrive in order both ways, with and without offload",
        arguments: [true, false])
    func order(usesOffload: Bool) throws {
        let harness = try PlaneHarness { $0.usesOffload = usesOffload }
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        for block in 0..<50 {
            let sent = (0..<20).map { [UInt8](repeating: UInt8($0), count: 1 + (block * 7 + $0 / 5 * 90) % 1_300) }
            for bytes in sent { client.send(PlaneHarness.channelData(0x4000, bytes), to: harness.endpoint) }
            #expect(sent.map { _ in peer.receive() } == sent)
            for bytes in sent { peer.send(bytes, to: allocation.relayed) }
            #expect(sent.map { _ in client.receive() } == sent.map { PlaneHarness.channelData(0x4000, $0) })
        }
    }

    @Test("§11: a Send indication reaches a permitted peer, whose answer comes as a Data indication")
    func indications() throws {
        let harness = try PlaneHarness()
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.install(harness.flow(of: client))
        harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: 1...65_535))
        harness.settle()
        client.send(PlaneHarness.sendIndication(peer.address, payload), to: harness.endpoint)
        #expect(peer.receive() == payload)
        peer.send(payload, to: allocation.relayed)
        let data = try #require(client.receive())
        // All but type and transaction is what a Send indication of the same data has, padding with zeros too.
        let same = PlaneHarness.sendIndication(peer.address, payload)
        #expect(data.count == same.count)
        #expect(data.prefix(2) == [0, 0x17])
        #expect(data[2..<8] == same[2..<8])
        #expect(data[20...] == same[20...])
    }

    @Test("§9: without a permission nothing passes either way, and both are counted; revoking ends it again")
    func permissions() throws {
        let harness = try PlaneHarness()
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.install(harness.flow(of: client))
        harness.settle()
        client.send(PlaneHarness.sendIndication(peer.address, payload), to: harness.endpoint)
        peer.send(payload, to: allocation.relayed)
        #expect(harness.counters { $0.notPermitted == 2 } != nil)
        harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: 1...65_535))
        harness.settle()
        peer.send(payload, to: allocation.relayed)
        #expect(client.receive() != nil)
        harness.command(.revoke(allocation: allocation.id, peer: peer.address))
        harness.settle()
        peer.send(payload, to: allocation.relayed)
        #expect(harness.counters { $0.notPermitted == 3 } != nil)
        #expect(client.receive(milliseconds: 50) == nil)
        #expect(harness.remove(allocation.id)?.dropped == 3)
    }

    @Test("Indications reach a permitted host at the permitted ports alone; unfragmented ones go by control")
    func ports() throws {
        let harness = try PlaneHarness()
        let (client, peer, other) = (LoopbackSocket(), LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.install(harness.flow(of: client))
        let port = peer.address.port
        harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: port...port))
        for to in [other.address, peer.address] {
            harness.command(
                .sendToPeer(allocation: allocation.id, peer: to, bytes: [UInt8(1)], isUnfragmented: true))
        }
        harness.settle()
        client.send(PlaneHarness.sendIndication(other.address, [2]), to: harness.endpoint)
        client.send(PlaneHarness.sendIndication(peer.address, [3]), to: harness.endpoint)
        #expect(peer.receive() == [1])
        #expect(peer.receive() == [3])
        #expect(other.receive(milliseconds: 50) == nil)
        #expect(harness.remove(allocation.id)?.dropped == 2)
    }

    @Test("§12.4: data on a channel that is not bound, cut short or of no allocation goes nowhere and is counted")
    func badChannelData() throws {
        let harness = try PlaneHarness()
        let (client, outsider, peer) = (LoopbackSocket(), LoopbackSocket(), LoopbackSocket())
        _ = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        client.send(PlaneHarness.channelData(0x4001, payload), to: harness.endpoint)
        client.send([0x40, 0, 0, 9, 1, 2], to: harness.endpoint)
        client.send([0x40], to: harness.endpoint)
        client.send([0x80, 1, 2, 3], to: harness.endpoint)
        client.send([], to: harness.endpoint)
        outsider.send(PlaneHarness.channelData(0x4000, payload), to: harness.endpoint)
        let counters = try #require(harness.counters { $0.unknownFlow == 1 && $0.malformed == 4 })
        #expect(counters.unboundChannel == 1)
        #expect(peer.receive(milliseconds: 50) == nil)
    }

    @Test("Every other STUN message goes up with its flow, and what control sends goes to that flow")
    func control() throws {
        let harness = try PlaneHarness()
        let client = LoopbackSocket()
        let request = PlaneHarness.request(0x003, count: 8)
        client.send(request, to: harness.endpoint)
        let flow = harness.event { if case .control(let flow, request) = $0 { flow } else { nil } }
        #expect(flow == harness.flow(of: client))
        harness.command(.send(harness.flow(of: client), [1, 2, 3, 4]))
        #expect(client.receive() == [1, 2, 3, 4])
    }

    @Test("D13: a STUN message longer than control takes, and those over the ring's bound, are dropped and counted")
    func controlBounds() throws {
        let harness = try PlaneHarness { $0.ringCapacity = 16 }
        let client = LoopbackSocket()
        client.send(PlaneHarness.request(0x003, count: 4_000), to: harness.endpoint)
        for _ in 0..<100 { client.send(PlaneHarness.request(0x003), to: harness.endpoint) }
        pause(milliseconds: 300)
        let counters = harness.counters { $0.unauthenticatedDropped >= 1 && $0.controlTooLong == 1 }
        #expect(counters?.controlDropped == 0)
    }

    @Test("§12: a channel that is unbound carries nothing; its number and its peer may be bound anew")
    func unbind() throws {
        let harness = try PlaneHarness()
        let (client, peer, other) = (LoopbackSocket(), LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        // The same peer under another number, and another peer under the same number, are refused.
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4001, peer: peer.address))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: other.address))
        harness.settle()
        client.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(peer.receive() == [1])
        harness.command(.unbindChannel(allocation: allocation.id, number: 0x4000))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4FFF, peer: peer.address))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: other.address))
        harness.settle()
        client.send(PlaneHarness.channelData(0x4FFF, [2]), to: harness.endpoint)
        client.send(PlaneHarness.channelData(0x4000, [3]), to: harness.endpoint)
        #expect(peer.receive() == [2])
        #expect(other.receive() == [3])
    }

    @Test("D13: channels, permissions and allocations over their bounds are refused, those within go on")
    func bounds() throws {
        let harness = try PlaneHarness {
            $0.channelsMax = 2
            $0.permissionsMax = 1
            $0.allocationsMax = 1
        }
        let (client, second) = (LoopbackSocket(), LoopbackSocket())
        let peers = (0..<3).map { _ in LoopbackSocket() }
        let allocation = try harness.install(harness.flow(of: client))
        harness.command(.permit(allocation: allocation.id, peer: peers[0].address, ports: 1...65_535))
        let surplus = TransportAddress(v4: 0x7F00_0002, port: 1)
        harness.command(.permit(allocation: allocation.id, peer: surplus, ports: 1...65_535))
        for (index, peer) in peers.enumerated() {
            let number = 0x4000 + UInt16(index)
            harness.command(.bindChannel(allocation: allocation.id, number: number, peer: peer.address))
        }
        let refused = try harness.install(harness.flow(of: second))
        #expect(harness.event { $0 == .refused(allocation: refused.id) ? true : nil } == true)
        for index in 0..<3 {
            client.send(PlaneHarness.channelData(0x4000 + UInt16(index), [UInt8(index)]), to: harness.endpoint)
        }
        #expect(peers[0].receive() == [0])
        #expect(peers[1].receive() == [1])
        #expect(harness.counters { $0.unboundChannel == 1 } != nil)
    }

    @Test("A removed allocation's client and number may have another one; RFC 8016: a client goes on elsewhere")
    func lives() throws {
        let harness = try PlaneHarness()
        let (client, moved, peer) = (LoopbackSocket(), LoopbackSocket(), LoopbackSocket())
        let first = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        #expect(harness.remove(first.id) != nil)
        let second = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        client.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(peer.receive() == [1])
        harness.command(.moveFlow(allocation: second.id, flow: harness.flow(of: moved)))
        harness.settle()
        moved.send(PlaneHarness.channelData(0x4000, [2]), to: harness.endpoint)
        #expect(peer.receive() == [2])
        peer.send([3], to: second.relayed)
        #expect(moved.receive() == PlaneHarness.channelData(0x4000, [3]))
        client.send(PlaneHarness.channelData(0x4000, [4]), to: harness.endpoint)
        #expect(harness.counters { $0.unknownFlow == 1 } != nil)
    }

    @Test("Two hundred allocations at once keep their data apart")
    func many() throws {
        let harness = try PlaneHarness()
        let peer = LoopbackSocket()
        let clients = (0..<200).map { _ in LoopbackSocket() }
        let allocations = try clients.map { client in
            let allocation = try harness.install(harness.flow(of: client))
            harness.command(.permit(allocation: allocation.id, peer: peer.address, ports: 1...65_535))
            harness.command(.bindChannel(allocation: allocation.id, number: 0x4ABC, peer: peer.address))
            return allocation
        }
        harness.settle()
        for (index, client) in clients.enumerated() {
            client.send(PlaneHarness.channelData(0x4ABC, [UInt8(index), 1]), to: harness.endpoint)
        }
        #expect(Set(clients.compactMap { _ in peer.receive()?.first }).count == 200)
        for (index, allocation) in allocations.enumerated() { peer.send([UInt8(index), 2, 3], to: allocation.relayed) }
        for (index, client) in clients.enumerated() {
            #expect(client.receive() == PlaneHarness.channelData(0x4ABC, [UInt8(index), 2, 3]))
        }
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Peers that cannot be reached (RFC 8656 §11.5)")
struct PeerErrorTests {
    /// An address of the loopback at which nobody listens.
    private func closedPeer(_ isV6: Bool = false) -> TransportAddress {
        (isV6 ? LoopbackSocket(v6: ()) : LoopbackSocket()).address
    }

    private func event(_ harness: PlaneHarness, _ id: UInt32) -> (peer: TransportAddress, icmp: StunICMP)? {
        harness.event { if case .peerError(id, let peer, let icmp) = $0 { (peer, icmp) } else { nil } }
    }

    @Test("§18.13: the client is told type 3 and code 3 of a closed port, with the peer's address")
    func closedPort() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        let peer = closedPeer()
        _ = try client.allocate()
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer) } == 0)
        client.send(PlaneHarness.sendIndication(peer, [1, 2, 3]))
        let told = try StunMessage(try #require(client.socket.receive()))
        #expect(told.type == StunMessageType(.indication, .data))
        #expect(try told.xorAddress(.xorPeerAddress) == peer)
        #expect(try told.icmp() == StunICMP(type: 3, code: 3, errorData: 0))
        #expect(!told.has(.data))
    }

    @Test("Of IPv6 it is type 1 and code 4")
    func closedPortV6() throws {
        let relay = try RelayUnderTest(hosts: [
            TransportAddress(v4: LoopbackSocket.host, port: 0), TransportAddress(v6High: 0, low: 1, port: 0),
        ])
        defer { relay.control.stop() }
        let client = relay.client()
        let peer = closedPeer(true)
        _ = try client.allocate(.v6)
        #expect(
            try client.code(.channelBind) {
                $0.add(channelNumber: 0x4001)
                $0.add(.xorPeerAddress, xorAddress: peer)
            } == 0)
        client.send(PlaneHarness.channelData(0x4001, [1]))
        let told = try StunMessage(try #require(client.socket.receive()))
        #expect(try told.xorAddress(.xorPeerAddress) == peer)
        #expect(try told.icmp() == StunICMP(type: 1, code: 4, errorData: 0))
    }

    @Test(
        "Errors of one peer cost the packets of another nothing, sent and received, with and without offload",
        arguments: [true, false])
    func others(usesOffload: Bool) throws {
        let harness = try PlaneHarness { $0.usesOffload = usesOffload }
        let (client, peer, closed) = (LoopbackSocket(), LoopbackSocket(), closedPeer())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4001, peer: closed))
        harness.settle()
        for block in 0..<50 {
            // Of changing sizes, so that each is a message of its own, and equal ones, which go as one.
            let sent = (0..<8).map { [UInt8](repeating: UInt8($0), count: block < 25 ? 100 : 20 + $0 * 7) }
            for bytes in sent {
                client.send(PlaneHarness.channelData(0x4001, bytes), to: harness.endpoint)
                client.send(PlaneHarness.channelData(0x4000, bytes), to: harness.endpoint)
                peer.send(bytes, to: allocation.relayed)
            }
            #expect(sent.map { _ in peer.receive() } == sent)
            #expect(sent.map { _ in client.receive() } == sent.map { PlaneHarness.channelData(0x4000, $0) })
        }
        let told = try #require(event(harness, allocation.id))
        #expect(told.peer == closed && told.icmp == StunICMP(type: 3, code: 3, errorData: 0))
        let traffic = try #require(harness.remove(allocation.id))
        #expect((traffic.upPackets, traffic.downPackets, traffic.dropped) == (800, 400, 0))
    }

    @Test("D13: an allocation's errors of one second are told up to the bound, and counted beyond it")
    func bound() throws {
        let harness = try PlaneHarness {
            $0.peerErrorsPerSecondMax = 2
            // A run that is sent as one comes back as one.
            $0.usesOffload = false
        }
        let (client, closed) = (LoopbackSocket(), closedPeer())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: closed)
        for _ in 0..<20 {
            client.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
            pause(milliseconds: 1)
        }
        let counters = try #require(harness.counters { $0.peerErrors + $0.peerErrorsLimited >= 20 })
        // They may fall into two seconds.
        #expect((2...4).contains(counters.peerErrors))
        #expect(event(harness, allocation.id) != nil)
    }

    @Test("A peer whose permission has ended meanwhile is not told of, and with a bound of 0 none is")
    func untold() throws {
        let harness = try PlaneHarness()
        let (client, closed) = (LoopbackSocket(), closedPeer())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: closed)
        // The channel still sends; only the permission is gone.
        harness.command(.revoke(allocation: allocation.id, peer: closed))
        harness.settle()
        client.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(harness.counters { $0.peerErrorsIgnored == 1 && $0.peerErrors == 0 } != nil)

        let silent = try PlaneHarness { $0.peerErrorsPerSecondMax = 0 }
        let other = try silent.installWithChannel(silent.flow(of: client), peer: closed)
        client.send(PlaneHarness.channelData(0x4000, [1]), to: silent.endpoint)
        // What control says overtakes what clients do.
        pause(milliseconds: 50)
        let traffic = try #require(silent.remove(other.id))
        #expect((traffic.upPackets, traffic.dropped) == (1, 0))
    }

    @Test("§12: what is not to be fragmented arrives where it fits, over IPv4 and IPv6", arguments: [false, true])
    func unfragmented(isV6: Bool) throws {
        let relay = try RelayUnderTest(hosts: [
            TransportAddress(v4: LoopbackSocket.host, port: 0), TransportAddress(v6High: 0, low: 1, port: 0),
        ])
        defer { relay.control.stop() }
        let client = relay.client()
        let peer = isV6 ? LoopbackSocket(v6: ()) : LoopbackSocket()
        _ = try client.allocate(isV6 ? .v6 : .v4)
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer.address) } == 0)
        var writer = StunWriter(StunMessageType(.indication, .send), TransactionID(high: 1, low: 2))
        writer.add(.xorPeerAddress, xorAddress: peer.address)
        writer.add(.dontFragment, [])
        writer.add(.data, [7, 8])
        client.send(writer.bytes)
        #expect(peer.receive() == [7, 8])
    }
}

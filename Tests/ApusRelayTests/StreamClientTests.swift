import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("The packet plane's clients over TCP (RFC 8656 §12.5)")
struct StreamClientTests {
    /// A connection that control knows, with an allocation and a channel to the peer.
    private func connect(
        _ harness: PlaneHarness, peer: LoopbackSocket, receiveBytes: Int32? = nil
    ) throws -> (
        client: LoopbackSocket, flow: RelayFlow, allocation: (id: UInt32, relayed: TransportAddress)
    ) {
        let client = LoopbackSocket(connectedTo: harness.streamEndpoint, receiveBytes: receiveBytes)
        client.write(PlaneHarness.request(0x003))
        let flow = try harness.flow(from: client.address)
        return (client, flow, try harness.installWithChannel(flow, peer: peer.address))
    }

    private func padded(_ number: UInt16, _ payload: [UInt8]) -> [UInt8] {
        PlaneHarness.channelData(number, payload) + [UInt8](repeating: 0, count: (4 - payload.count % 4) % 4)
    }

    @Test("Channel data of every padding passes both ways, glued or byte by byte", arguments: [true, false])
    func channel(isGlued: Bool) throws {
        let harness = try PlaneHarness()
        let peer = LoopbackSocket()
        let (client, flow, allocation) = try connect(harness, peer: peer)
        #expect(flow.transport == .tcp)
        let payloads = (1...40).map { [UInt8](repeating: UInt8($0), count: $0 % 9) }
        let bytes = payloads.flatMap { padded(0x4000, $0) }
        if isGlued { client.write(bytes) } else { for byte in bytes { client.write([byte]) } }
        #expect(payloads.map { _ in peer.receive() } == payloads)
        for payload in payloads { peer.send(payload, to: allocation.relayed) }
        #expect(client.receive(bytes: bytes.count) == bytes)
    }

    @Test("A message that is longer than one read arrives whole, and indications pass beside channels")
    func longMessages() throws {
        let harness = try PlaneHarness()
        let peer = LoopbackSocket()
        let (client, _, _) = try connect(harness, peer: peer)
        let long = (0..<40_001).map { UInt8(truncatingIfNeeded: $0) }
        client.write(padded(0x4000, long))
        #expect(peer.receive() == long)
        client.write(PlaneHarness.sendIndication(peer.address, [5, 6, 7]) + padded(0x4000, [8]))
        #expect(peer.receive() == [5, 6, 7])
        #expect(peer.receive() == [8])
    }

    @Test("What is neither STUN nor channel data ends the connection, and control is told")
    func garbage() throws {
        let harness = try PlaneHarness()
        let peer = LoopbackSocket()
        let (client, flow, _) = try connect(harness, peer: peer)
        client.write(Array("GET / HTTP/1.1\r\n\r\n".utf8).map { $0 | 0x80 })
        #expect(harness.event { $0 == .streamClosed(flow) ? true : nil } == true)
        #expect(client.receive() == [])
    }

    @Test("Control closes a connection, and a late command for it does nothing")
    func close() throws {
        let harness = try PlaneHarness()
        let peer = LoopbackSocket()
        let (client, flow, allocation) = try connect(harness, peer: peer)
        harness.command(.closeStream(flow))
        #expect(client.receive() == [])
        harness.command(.send(flow, [1]))
        peer.send([1], to: allocation.relayed)
        #expect(harness.remove(allocation.id) != nil)
    }

    @Test("D13: what comes for a client that does not read is dropped at the bound and counted, others go on")
    func slowClient() throws {
        let harness = try PlaneHarness { $0.streamOutputMax = 32_768 }
        let peer = LoopbackSocket()
        let (silent, _, slow) = try connect(harness, peer: peer, receiveBytes: 65_536)
        let (reader, _, other) = try connect(harness, peer: peer)
        let block = [UInt8](repeating: 1, count: 8_000)
        // More than the kernel keeps for a connection.
        for _ in 0..<60 {
            for _ in 0..<40 { peer.send(block, to: slow.relayed) }
            usleep(2_000)
            peer.send([9], to: other.relayed)
            #expect(reader.receive(bytes: 8) == [0x40, 0, 0, 1, 9, 0, 0, 0])
        }
        #expect(harness.counters { $0.slowStream > 0 } != nil)
        withExtendedLifetime(silent) {}
    }

    @Test("D13: a connection that says nothing is closed, one over the bound takes the place of the unauthenticated")
    func idle() throws {
        let harness = try PlaneHarness {
            $0.streamIdleMax = .milliseconds(300)
            $0.streamsMax = 1
        }
        let first = LoopbackSocket(connectedTo: harness.streamEndpoint)
        usleep(20_000)
        let second = LoopbackSocket(connectedTo: harness.streamEndpoint)
        #expect(first.receive() == [])
        #expect(second.receive() == [])
        #expect(harness.counters { $0.refusedStreams == 0 && $0.unauthenticatedDisplaced == 1 } != nil)
    }

    @Test("D13: threads that may each have more than their share have no more together than the node may")
    func shared() throws {
        let budget = StreamBudget(countMax: 3)
        func harness() throws -> PlaneHarness {
            try PlaneHarness {
                $0.streamsMax = 3
                $0.streamBudget = budget
            }
        }
        let (first, second) = (try harness(), try harness())
        let (peer, other) = (LoopbackSocket(), LoopbackSocket())
        let one = try connect(first, peer: peer), two = try connect(first, peer: other)
        let three = try connect(second, peer: peer)
        let refused = LoopbackSocket(connectedTo: second.streamEndpoint)
        #expect(refused.receive() == [])
        #expect(second.counters { $0.refusedStreams == 1 } != nil)
        // One that has ended leaves its place to any thread.
        first.command(.closeStream(one.1))
        #expect(one.0.receive() == [])
        _ = try connect(second, peer: other)
        withExtendedLifetime((two, three)) {}
    }

    @Test("D13: where every connection has an allocation, one over the bound is not taken")
    func full() throws {
        let harness = try PlaneHarness { $0.streamsMax = 1 }
        let peer = LoopbackSocket()
        let (first, _, allocation) = try connect(harness, peer: peer)
        let second = LoopbackSocket(connectedTo: harness.streamEndpoint)
        #expect(second.receive() == [])
        peer.send([1, 2, 3, 4], to: allocation.relayed)
        #expect(first.receive(bytes: 8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        #expect(harness.counters { $0.refusedStreams == 1 && $0.unauthenticatedDisplaced == 0 } != nil)
    }
}

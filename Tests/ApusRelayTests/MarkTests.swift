import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("DSCP, ECN and TTL of relayed datagrams (RFC 8656 §14)")
struct MarkTests {
    /// Low byte: TTL; next byte: DSCP and ECN.
    private func marks(ttl: UInt32, tos: UInt32) -> UInt32 { tos << 8 | ttl }

    /// What a socket sends carries these from now on.
    private func set(_ socket: LoopbackSocket, ttl: Int32, tos: Int32) {
        // IP_TOS and IP_TTL of Linux.
        for (option, value) in [(1 as Int32, tos), (2, ttl)] {
            var value = value
            setsockopt(socket.descriptor, Int32(IPPROTO_IP), option, &value, socklen_t(MemoryLayout<Int32>.size))
        }
    }

    /// The marks of the next datagram; nil where none comes in time.
    private func next(_ socket: LoopbackSocket, milliseconds: Int32 = 5_000) -> UInt32? {
        var ready = pollfd(fd: socket.descriptor, events: Int16(POLLIN), revents: 0)
        guard poll(&ready, 1, milliseconds) > 0 else { return nil }
        let arena = ReceiveArena()
        return arena.receive(socket.descriptor, first: 0, count: 1) == 1 ? arena.receipt(0).marks : nil
    }

    @Test("A channel's datagrams carry theirs over both ways, one hop less", arguments: [true, false])
    func channel(isCarried: Bool) throws {
        let harness = try PlaneHarness { $0.carriesMarks = isCarried }
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        for socket in [client, peer] { RelaySocket.reportMarks(of: socket.descriptor) }
        // Expedited forwarding, congestion experienced, and both.
        for (ttl, tos) in [(50 as Int32, 0xB8 as Int32), (9, 0x03), (255, 0xBB), (2, 0)] {
            let expected = isCarried ? marks(ttl: UInt32(ttl) - 1, tos: UInt32(tos)) : marks(ttl: 64, tos: 0)
            set(client, ttl: ttl, tos: tos)
            client.send(PlaneHarness.channelData(0x4000, [1, 2, 3]), to: harness.endpoint)
            #expect(next(peer) == expected)
            client.send(PlaneHarness.sendIndication(peer.address, [1]), to: harness.endpoint)
            #expect(next(peer) == expected)
            set(peer, ttl: ttl, tos: tos)
            peer.send([4, 5, 6], to: allocation.relayed)
            #expect(next(client) == expected)
        }
    }

    @Test("A channel with a socket of its own carries marks over as well, when they stay and when they change")
    func hot() throws {
        let harness = try PlaneHarness()
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        _ = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        for _ in 0..<1_100 {
            client.send(PlaneHarness.channelData(0x4000, [1, 2, 3]), to: harness.endpoint)
            #expect(peer.receive() == [1, 2, 3])
        }
        #expect(harness.counters { $0.connectedFlows == 1 } != nil)
        RelaySocket.reportMarks(of: peer.descriptor)
        for isLater in [false, true] {
            for (ttl, tos) in [(50 as Int32, 0xB8 as Int32), (9, 0x03), (50, 0xB8), (50, 0xB9)] {
                set(client, ttl: ttl, tos: tos)
                // Long enough for the socket itself to have others.
                if isLater { usleep(1_100_000) }
                for _ in 0..<3 {
                    client.send(PlaneHarness.channelData(0x4000, [4, 5, 6]), to: harness.endpoint)
                    #expect(next(peer) == marks(ttl: UInt32(ttl) - 1, tos: UInt32(tos)))
                }
            }
        }
        set(client, ttl: 1, tos: 0)
        client.send(PlaneHarness.channelData(0x4000, [7]), to: harness.endpoint)
        #expect(peer.receive(milliseconds: 100) == nil)
    }

    @Test("Between the families TTL is hop limit, and the type of service is the traffic class")
    func families() throws {
        let relay = try RelayUnderTest(hosts: [
            TransportAddress(v4: LoopbackSocket.host, port: 0), TransportAddress(v6High: 0, low: 1, port: 0),
        ])
        defer { relay.control.stop() }
        let client = relay.client()
        let relayed = try client.allocate(.v6)
        let peer = LoopbackSocket(v6: ())
        let bound = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4000)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(bound == 0)
        for socket in [client.socket, peer] { RelaySocket.reportMarks(of: socket.descriptor) }
        set(client.socket, ttl: 40, tos: 0x2E)
        client.send(PlaneHarness.channelData(0x4000, [1, 2, 3]))
        #expect(next(peer) == marks(ttl: 39, tos: 0x2E))
        // IPV6_UNICAST_HOPS and IPV6_TCLASS of Linux.
        for (option, value) in [(16 as Int32, 12 as Int32), (67, 0xB9)] {
            var value = value
            setsockopt(peer.descriptor, Int32(IPPROTO_IPV6), option, &value, socklen_t(MemoryLayout<Int32>.size))
        }
        peer.sendV6([4, 5, 6], to: relayed.port)
        #expect(next(client.socket) == marks(ttl: 11, tos: 0xB9))
    }

    @Test("A datagram at its last hop is dropped and counted; a request to the relay itself is served")
    func lastHop() throws {
        let harness = try PlaneHarness()
        let (client, peer) = (LoopbackSocket(), LoopbackSocket())
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
        set(client, ttl: 1, tos: 0)
        client.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(peer.receive(milliseconds: 100) == nil)
        client.send(PlaneHarness.request(0x004), to: harness.endpoint)
        #expect(try harness.flow(from: client.address).transport == .udp)
        set(client, ttl: 64, tos: 0)
        client.send(PlaneHarness.channelData(0x4000, [2]), to: harness.endpoint)
        #expect(peer.receive() == [2])
        #expect(harness.remove(allocation.id)?.dropped == 1)
    }

    @Test("Runs hold datagrams of equal marks alone, cut by the kernel or sent one by one", arguments: [true, false])
    func runs(canSegment: Bool) throws {
        let (sender, receiver) = (LoopbackSocket(), LoopbackSocket())
        RelaySocket.reportMarks(of: receiver.descriptor)
        var batch = SendBatch(segmentMax: 1_452, canSegment: canSegment)
        let memory = UnsafeMutableRawPointer.allocate(byteCount: 64, alignment: 64)
        let address = UnsafeMutablePointer<RawAddress>.allocate(capacity: 1)
        address.initialize(to: RawAddress(receiver.address))
        defer {
            memory.deallocate()
            address.deallocate()
        }
        memory.initializeMemory(as: UInt8.self, repeating: 7, count: 64)
        var (dropped, mark) = (UInt64(0), SendBatch.Mark())
        let sent = [0xB820, 0xB820, 0xB820, 0x0120, 0x0120, 0xB820] as [UInt32]
        withUnsafeMutablePointer(to: &dropped) { dropped in
            for marks in sent + [SendBatch.expired] {
                batch.marks = marks
                batch.add(
                    memory, 40, head: nil, mark: &mark, socket: sender.descriptor, address: address, dropped: dropped)
            }
        }
        #expect(batch.pendingRuns == (canSegment ? 3 : 6))
        batch.flush()
        #expect(sent.compactMap { _ in next(receiver, milliseconds: 1_000) } == sent)
        #expect(dropped == 1 && batch.dropped == 1)
    }
}

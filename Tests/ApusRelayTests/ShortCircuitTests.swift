import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Glibc
import Testing

@Suite("Two allocations of one plane meet without the kernel (D8)")
struct ShortCircuitTests {
    private typealias Allocation = (id: UInt32, relayed: TransportAddress)

    /// Two allocations, each with a permission for the other and, where told, a channel to it: 0x4000 and 0x4001.
    private func pair(
        _ harness: PlaneHarness, _ first: RelayFlow, _ second: RelayFlow, channels: [Bool] = [true, true]
    ) throws -> (Allocation, Allocation) {
        let pair = (try harness.install(first), try harness.install(second))
        for (index, ends) in [(pair.0, pair.1), (pair.1, pair.0)].enumerated() {
            harness.command(.permit(allocation: ends.0.id, peer: ends.1.relayed, ports: 1...65_535))
            guard channels[index] else { continue }
            harness.command(
                .bindChannel(allocation: ends.0.id, number: 0x4000 + UInt16(index), peer: ends.1.relayed))
        }
        harness.settle()
        return pair
    }

    @Test("Data is in order both ways, as channels say it; both allocations count it", arguments: [true, false])
    func order(usesOffload: Bool) throws {
        let harness = try PlaneHarness { $0.usesOffload = usesOffload }
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (first, second) = try pair(harness, harness.flow(of: one), harness.flow(of: other))
        for block in 0..<50 {
            let sent = (0..<20).map { [UInt8](repeating: UInt8($0), count: (block * 7 + $0 / 5 * 90) % 1_300) }
            for bytes in sent { one.send(PlaneHarness.channelData(0x4000, bytes), to: harness.endpoint) }
            #expect(sent.map { _ in other.receive() } == sent.map { PlaneHarness.channelData(0x4001, $0) })
            for bytes in sent { other.send(PlaneHarness.channelData(0x4001, bytes), to: harness.endpoint) }
            #expect(sent.map { _ in one.receive() } == sent.map { PlaneHarness.channelData(0x4000, $0) })
        }
        #expect(harness.counters { $0.shortCircuited == 2_000 } != nil)
        for id in [first.id, second.id] {
            let traffic = try #require(harness.remove(id))
            #expect((traffic.upPackets, traffic.downPackets, traffic.dropped) == (1_000, 1_000, 0))
            #expect(traffic.upBytes == traffic.downBytes && traffic.upBytes > 0)
        }
    }

    @Test(
        "Datagrams that came in one piece leave in order and whole, with the receiver's channel",
        arguments: [0, 1, 4, 200])
    func joined(size: Int) throws {
        let harness = try PlaneHarness()
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (first, _) = try pair(harness, harness.flow(of: one), harness.flow(of: other))
        let sent = (0..<40).map { [UInt8](repeating: UInt8($0), count: $0 == 39 ? size / 2 : size) }
        guard one.cut(into: Int32(4 + size)) else { return }
        one.send(sent.flatMap { PlaneHarness.channelData(0x4000, $0) }, to: harness.endpoint)
        #expect(sent.map { _ in other.receive() } == sent.map { PlaneHarness.channelData(0x4001, $0) })
        #expect(harness.remove(first.id)?.upPackets == 40)
    }

    @Test(
        "Without a channel the receiver gets a Data indication from the sender's relayed address",
        arguments: [true, false])
    func indications(sendsIndication: Bool) throws {
        let harness = try PlaneHarness()
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (first, second) = try pair(
            harness, harness.flow(of: one), harness.flow(of: other), channels: [true, false])
        let payload: [UInt8] = [5, 6, 7]
        one.send(
            sendsIndication
                ? PlaneHarness.sendIndication(second.relayed, payload) : PlaneHarness.channelData(0x4000, payload),
            to: harness.endpoint)
        let data = try #require(other.receive())
        // All but type and transaction is what a Send indication to the sender's relayed address has.
        let same = PlaneHarness.sendIndication(first.relayed, payload)
        #expect(data.prefix(2) == [0, 0x17])
        #expect(data[2..<8] == same[2..<8] && data[20...] == same[20...])
        #expect(harness.counters { $0.shortCircuited == 1 } != nil)
    }

    @Test("§9: what the receiver does not permit is dropped and counted there")
    func permissions() throws {
        let harness = try PlaneHarness()
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (first, second) = try pair(harness, harness.flow(of: one), harness.flow(of: other))
        harness.command(.revoke(allocation: second.id, peer: first.relayed))
        harness.settle()
        one.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(harness.counters { $0.notPermitted == 1 } != nil)
        #expect(other.receive(milliseconds: 50) == nil)
        #expect(harness.remove(second.id)?.dropped == 1)
        #expect(harness.remove(first.id)?.dropped == 0)
    }

    @Test("The receiver's user is held to its rate")
    func quota() throws {
        let harness = try PlaneHarness()
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (_, second) = try pair(harness, harness.flow(of: one), harness.flow(of: other))
        harness.command(.limit(allocation: second.id, user: 1, RelayRate(packetsPerSecond: 1)))
        harness.settle()
        for _ in 0..<100 { one.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint) }
        var count = 0
        while other.receive(milliseconds: 100) != nil { count += 1 }
        #expect(count == 64)
        #expect(harness.remove(second.id)?.dropped == 36)
    }

    @Test("When the receiver has ended, its address is whoever's it is then; an allocation reaches itself too")
    func ends() throws {
        let harness = try PlaneHarness()
        let (one, other) = (LoopbackSocket(), LoopbackSocket())
        let (first, second) = try pair(harness, harness.flow(of: one), harness.flow(of: other))
        one.send(PlaneHarness.channelData(0x4000, [1]), to: harness.endpoint)
        #expect(other.receive() == PlaneHarness.channelData(0x4001, [1]))
        #expect(harness.remove(second.id) != nil)
        let heir = LoopbackSocket(port: second.relayed.port)
        one.send(PlaneHarness.channelData(0x4000, [2]), to: harness.endpoint)
        #expect(heir.receive() == [2])
        harness.command(.permit(allocation: first.id, peer: first.relayed, ports: 1...65_535))
        harness.command(.bindChannel(allocation: first.id, number: 0x4002, peer: first.relayed))
        harness.settle()
        one.send(PlaneHarness.channelData(0x4002, [3]), to: harness.endpoint)
        #expect(one.receive() == PlaneHarness.channelData(0x4002, [3]))
        #expect(harness.counters { $0.shortCircuited > 1 } == nil)
    }

    @Test(
        "From every endpoint to every endpoint, whole and in order",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"),
        arguments: [RelayFlow.Transport.udp, .tcp, .tls, .dtls], [RelayFlow.Transport.udp, .tcp, .tls, .dtls])
    func endpoints(from: RelayFlow.Transport, to: RelayFlow.Transport) throws {
        let harness = try PlaneHarness.secured()
        let (one, other) = (try PlaneClient(harness, from), try PlaneClient(harness, to))
        _ = try pair(harness, one.flow, other.flow)
        for count in [4, 40, 1_200, 9_000] {
            let payload = (0..<count).map { UInt8(truncatingIfNeeded: $0 / 3) }
            for _ in 0..<5 { one.write(PlaneHarness.channelData(0x4000, payload)) }
            let expected = PlaneHarness.channelData(0x4001, payload)
            for _ in 0..<5 { #expect(other.receive(expected.count) == expected) }
        }
        #expect(harness.counters { $0.shortCircuited == 20 } != nil)
    }

    @Test("Clients of one plane, and of several, reach each other's relayed addresses all the same", arguments: [1, 4])
    func wholeRelay(planes: Int) throws {
        let relay = try RelayUnderTest(planes: planes)
        defer { relay.control.stop() }
        // The relay keeps the allocation of a client that is gone, which one with the same port would get instead.
        var clients: [TurnTestClient] = []
        defer { withExtendedLifetime(clients) {} }
        // Which plane a client comes in at is the kernel's to say; of so many pairs some are at one and some at two.
        for _ in 0..<8 {
            let ends = [relay.client(), relay.client()]
            clients += ends
            let relayed = try ends.map { try $0.allocate() }
            for (index, end) in ends.enumerated() {
                let code = try end.code(.channelBind) {
                    $0.add(channelNumber: 0x4000)
                    $0.add(.xorPeerAddress, xorAddress: relayed[1 - index])
                }
                #expect(code == 0)
            }
            for round in 0..<20 {
                let message = PlaneHarness.channelData(0x4000, [UInt8](repeating: UInt8(round), count: 40 * round))
                for (from, to) in [(0, 1), (1, 0)] {
                    ends[from].send(message)
                    #expect(ends[to].socket.receive() == message)
                }
            }
        }
    }
}

import ApusRelay
import ApusTestKit
import ApusTraversal
import Glibc
import Testing

@Suite("Unauthenticated clients shut no listener of the relay (D13)", .serialized)
struct UnauthenticatedTests {
    private static let attacker: UInt32 = 0x7F00_0909
    /// The head of a request whose 512 bytes never come whole.
    private static let head: [UInt8] = [0, 3, 2, 0, 0x21, 0x12, 0xA4, 0x42]

    @Test("One source with ten times the connections that there are keeps nobody out, byte by byte as it sends")
    func oneSource() throws {
        let harness = try PlaneHarness {
            $0.streamsMax = 64
            $0.unauthenticatedPerSourceMax = 32
            $0.unauthenticatedTimeout = .seconds(1)
        }
        let peer = LoopbackSocket()
        let good = try PlaneClient(harness, .tcp)
        let allocation = try harness.installWithChannel(good.flow, peer: peer.address)
        var held: [LoopbackSocket] = []
        for _ in 0..<640 {
            let connection = LoopbackSocket(connectedTo: harness.streamEndpoint, from: Self.attacker)
            connection.write(Self.head)
            held.append(connection)
        }
        // A client that comes while all these are there is served at once.
        let other = try PlaneClient(harness, .tcp)
        _ = try harness.installWithChannel(other.flow, peer: peer.address)
        other.write([0x40, 0, 0, 4, 5, 6, 7, 8])
        #expect(peer.receive() == [5, 6, 7, 8])
        // Bytes that trickle in give no more time.
        for _ in 0..<12 {
            for connection in held.suffix(32) { connection.write([0]) }
            usleep(100_000)
        }
        let ended = harness.counters {
            $0.unauthenticatedDisplaced + $0.unauthenticatedLate == 640 && $0.unauthenticatedLate >= 32
                && $0.connections == 2
        }
        #expect(ended != nil)
        #expect(ended?.refusedStreams == 0)
        peer.send([1, 2, 3, 4], to: allocation.relayed)
        #expect(good.receive(8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        withExtendedLifetime(held) {}
    }

    @Test("Many sources that fill the table displace one another, and no client with an allocation")
    func manySources() throws {
        let harness = try PlaneHarness {
            $0.streamsMax = 64
            $0.unauthenticatedPerSourceMax = 32
        }
        let peer = LoopbackSocket()
        let good = try PlaneClient(harness, .tcp)
        let allocation = try harness.installWithChannel(good.flow, peer: peer.address)
        let held = (0..<400 as Range<UInt32>).map {
            LoopbackSocket(connectedTo: harness.streamEndpoint, from: Self.attacker + $0 % 100)
        }
        let other = try PlaneClient(harness, .tcp)
        #expect(other.flow.transport == .tcp)
        peer.send([1, 2, 3, 4], to: allocation.relayed)
        #expect(good.receive(8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        #expect(harness.counters { $0.unauthenticatedDisplaced == 338 && $0.refusedStreams == 0 } != nil)
        withExtendedLifetime(held) {}
    }

    @Test("2 KiB of a message are kept before a credential was shown, and all of it afterwards")
    func carried() throws {
        let harness = try PlaneHarness()
        let outsider = LoopbackSocket(connectedTo: harness.streamEndpoint)
        // A request of 60,000 bytes that would be kept until its end.
        outsider.write([0, 3, 0xEA, 0x60, 0x21, 0x12, 0xA4, 0x42] + .init(repeating: 0, count: 2_100))
        // A reset or an end, for which the plane's counters say that it was no timeout.
        #expect(outsider.receive() ?? [] == [])
        #expect(harness.counters { $0.malformed == 1 && $0.connections == 0 } != nil)
        let peer = LoopbackSocket()
        let good = try PlaneClient(harness, .tcp)
        _ = try harness.installWithChannel(good.flow, peer: peer.address)
        let message = PlaneHarness.channelData(0x4000, .init(repeating: 3, count: 40_000))
        good.write(Array(message.prefix(30_000)))
        usleep(50_000)
        good.write(Array(message.dropFirst(30_000)))
        #expect(peer.receive()?.count == 40_000)
    }

    @Test("A connection whose allocation has ended has the time for another one, and is closed then")
    func afterAllocation() throws {
        let harness = try PlaneHarness { $0.unauthenticatedTimeout = .milliseconds(1_500) }
        let peer = LoopbackSocket()
        let good = try PlaneClient(harness, .tcp)
        let first = try harness.installWithChannel(good.flow, peer: peer.address)
        // Longer than an unauthenticated connection has.
        usleep(2_200_000)
        peer.send([1, 2, 3, 4], to: first.relayed)
        #expect(good.receive(8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        #expect(harness.remove(first.id) != nil)
        let second = try harness.installWithChannel(good.flow, peer: peer.address)
        peer.send([1, 2, 3, 4], to: second.relayed)
        #expect(good.receive(8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        #expect(harness.remove(second.id) != nil)
        #expect(good.receives(within: 5_000) == [])
        #expect(harness.counters { $0.unauthenticatedLate == 1 && $0.unauthenticated == 0 } != nil)
    }

    @Test(
        "Handshakes and sessions of one source leave room for another's",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"), arguments: [false, true])
    func secured(isDatagram: Bool) throws {
        let harness = try PlaneHarness.secured {
            $0.streamsMax = 24
            $0.sessionsMax = 24
            $0.handshakesMax = 16
            $0.handshakesPerSourceMax = 8
            $0.unauthenticatedPerSourceMax = 12
            $0.unauthenticatedTimeout = .seconds(3)
        }
        let peer = LoopbackSocket()
        let good = try PlaneClient(harness, isDatagram ? .dtls : .tls)
        let allocation = try harness.installWithChannel(good.flow, peer: peer.address)
        var held: [LoopbackSocket] = []
        for _ in 0..<100 {
            if isDatagram {
                let socket = LoopbackSocket(datagramsTo: harness.sessionEndpoint, from: Self.attacker)
                socket.write(HandmadeHello.bytes())
                let cookie = try #require(socket.receive().flatMap(HandmadeHello.cookie))
                socket.write(HandmadeHello.bytes(cookie: cookie))
                held.append(socket)
            } else {
                held.append(LoopbackSocket(connectedTo: harness.secureEndpoint, from: Self.attacker))
            }
        }
        // Handshakes that are done and go no further.
        let endpoint = isDatagram ? harness.sessionEndpoint : harness.secureEndpoint
        let idle = (0..<20).compactMap { _ in SecureClient(endpoint, isDatagram: isDatagram) }
        #expect(idle.count == 20)
        let other = try PlaneClient(harness, isDatagram ? .dtls : .tls)
        _ = try harness.installWithChannel(other.flow, peer: peer.address)
        let counters = harness.counters { $0.handshakesDisplaced >= 92 && $0.unauthenticatedDisplaced >= 9 }
        #expect(counters != nil && counters?.refusedStreams == 0)
        peer.send([1, 2, 3, 4], to: allocation.relayed)
        #expect(good.receive(8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        let ended = harness.counters {
            $0.unauthenticated == 0 && (isDatagram ? $0.sessions : $0.connections) == 2
        }
        #expect(ended != nil)
        withExtendedLifetime((held, idle)) {}
    }
}

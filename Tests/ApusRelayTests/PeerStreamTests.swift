import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Logging
import Synchronization
import Testing

@Suite("TCP relaying on the loopback (RFC 6062)", .serialized)
struct PeerStreamTests {
    private static let payload = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 7 ^ $0 >> 9) }

    private func relay(
        planes: Int = 1, userRate: RelayRate = RelayRate(), _ change: (inout TurnServerConfiguration) -> Void = { _ in }
    ) throws -> RelayUnderTest {
        try RelayUnderTest(planes: planes, userRate: userRate) {
            $0.isTCPAllowed = true
            change(&$0)
        }
    }

    /// A client's first connection, with an allocation.
    private func allocate(
        _ relay: RelayUnderTest, user: String = "u"
    ) throws -> (client: TurnTestClient, relayed: TransportAddress) {
        let client = relay.client(user: user, isStream: true)
        let answer = try client.ask(.allocate) { $0.add(requestedTransport: 6) }
        #expect(answer.kind == .success)
        return (client, try #require(try answer.xorAddress(.xorRelayedAddress)))
    }

    private func connect(_ client: TurnTestClient, _ peer: TransportAddress) throws -> StunMessage {
        try client.ask(.connect) { $0.add(.xorPeerAddress, xorAddress: peer) }
    }

    private func bind(_ relay: RelayUnderTest, _ number: UInt32, user: String = "u") throws -> TurnTestClient {
        let data = relay.client(user: user, isStream: true)
        data.send(data.request(.connectionBind) { $0.add(.connectionID, number: number) })
        let challenge = try StunMessage(try #require(data.socket.receive()))
        data.nonce = try challenge.text(.nonce)
        data.send(data.request(.connectionBind) { $0.add(.connectionID, number: number) })
        // The peer's bytes may stand right behind the answer.
        let head = data.socket.receive(bytes: 20)
        let rest = data.socket.receive(bytes: Int(head[2]) << 8 | Int(head[3]))
        #expect(try StunMessage(head + rest).type == StunMessageType(.success, .connectionBind))
        return data
    }

    /// An allocation with a peer that accepted and the client's data connection to it.
    private func pair(
        _ relay: RelayUnderTest, user: String = "u"
    ) throws -> (client: TurnTestClient, relayed: TransportAddress, data: TurnTestClient, peer: LoopbackSocket) {
        let (client, relayed) = try allocate(relay, user: user)
        let listener = LoopbackSocket(listening: ())
        let connected = try connect(client, listener.address)
        let number = try #require(try connected.number32(.connectionID))
        let (peer, remote) = try #require(listener.accept())
        // §5.2: the peer sees the relayed address.
        #expect(remote == relayed)
        return (client, relayed, try bind(relay, number, user: user), peer)
    }

    private func standing(_ relay: RelayUnderTest) -> RelayStanding? {
        let box = Mutex<RelayStanding?>(nil)
        // The answer is given on the control thread, which outlives the wait.
        let shared = Shared(box)
        _ = relay.control.order(.standing { standing in shared.box.withLock { $0 = standing } })
        for _ in 0..<500 {
            if let standing = shared.box.withLock({ $0 }) { return standing }
            pause(milliseconds: 10)
        }
        return nil
    }

    private final class Shared: Sendable {
        let box: Mutex<RelayStanding?>
        init(_ box: consuming sending Mutex<RelayStanding?>) { self.box = box }
    }

    @Test(
        "§5.2, §5.4: a connected peer's bytes are the client's and the other way round, on one plane and on four",
        arguments: [1, 4])
    func connects(planes: Int) throws {
        let relay = try relay(planes: planes)
        defer { relay.control.stop() }
        for _ in 0..<6 {
            let (client, _, data, peer) = try pair(relay)
            data.socket.write([1, 2, 3])
            #expect(peer.receive(bytes: 3) == [1, 2, 3])
            peer.write([0x40, 0, 0, 9])
            #expect(data.socket.receive(bytes: 4) == [0x40, 0, 0, 9])
            withExtendedLifetime(client) {}
        }
        for _ in 0..<200 where standing(relay)?.traffic.upBytes != 18 { pause(milliseconds: 20) }
        let traffic = try #require(standing(relay)).traffic
        #expect((traffic.upBytes, traffic.downBytes) == (18, 24))
    }

    @Test("§5.3: a permitted peer that connects is announced, and what it said before the client bound it is not lost")
    func arrives() throws {
        let relay = try relay()
        defer { relay.control.stop() }
        let (client, relayed) = try allocate(relay)
        let outsider = LoopbackSocket(connectedTo: relayed)
        #expect(outsider.receive() == [])
        let host = TransportAddress(v4: LoopbackSocket.host, port: 0)
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: host) } == 0)
        let peer = LoopbackSocket(connectedTo: relayed)
        peer.write([5, 6, 7])
        let attempt = try StunMessage(try #require(client.socket.receive()))
        #expect(attempt.type == StunMessageType(.indication, .connectionAttempt))
        #expect(try attempt.xorAddress(.xorPeerAddress) == peer.address)
        let data = try bind(relay, try #require(try attempt.number32(.connectionID)))
        #expect(data.socket.receive(bytes: 3) == [5, 6, 7])
        data.socket.write([8])
        #expect(peer.receive(bytes: 1) == [8])
    }

    @Test("D13: a peer that does not read stops the client, and the other way round; all of it arrives in order")
    func backPressure() throws {
        let relay = try relay()
        defer { relay.control.stop() }
        let (client, _, data, peer) = try pair(relay)
        for (from, to) in [(data.socket, peer), (peer, data.socket)] {
            var sent = 0
            var idle = 0
            // Until nothing was taken for a tenth of a second.
            while idle < 10, sent < 200_000_000 {
                let count = from.writeNow(Array(Self.payload[(sent % Self.payload.count)...]))
                sent += count
                idle = count == 0 ? idle + 1 : 0
                if count == 0 { pause(milliseconds: 10) }
            }
            #expect(sent < 100_000_000)
            let received = to.receive(bytes: sent)
            #expect(received.count == sent)
            let isInOrder = stride(from: 0, to: received.count, by: Self.payload.count).allSatisfy { start in
                received[start...].prefix(Self.payload.count).elementsEqual(Self.payload.prefix(received.count - start))
            }
            #expect(isInOrder)
        }
        let tail: [UInt8] = [1, 2, 3, 4]
        data.socket.write(tail)
        #expect(peer.receive(bytes: 4) == tail)
        peer.write(tail)
        #expect(data.socket.receive(bytes: 4) == tail)
        withExtendedLifetime(client) {}
    }

    @Test("The end of one direction reaches the other end behind all bytes, and the other direction goes on")
    func ends() throws {
        let relay = try relay()
        defer { relay.control.stop() }
        for isFromPeer in [true, false] {
            let (client, _, data, peer) = try pair(relay, user: isFromPeer ? "a" : "b")
            let (from, to) = isFromPeer ? (peer, data.socket) : (data.socket, peer)
            from.write(Array(Self.payload.prefix(50_000)))
            from.end()
            #expect(to.receive(bytes: 50_000) == Array(Self.payload.prefix(50_000)))
            #expect(to.receive() == [])
            to.write([9, 9])
            #expect(from.receive(bytes: 2) == [9, 9])
            to.end()
            #expect(from.receive() == [])
            // The allocation goes on.
            #expect(try client.code(.refresh) == 0)
        }
    }

    @Test("The allocation's end closes its data connections, and what they carried is counted")
    func allocationEnds() throws {
        let relay = try relay()
        defer { relay.control.stop() }
        let (client, relayed, data, peer) = try pair(relay)
        data.socket.write([1, 2])
        #expect(peer.receive(bytes: 2) == [1, 2])
        #expect(try client.code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        #expect(data.socket.receive() == [])
        #expect(peer.receive() == [])
        // Nobody listens there any more.
        let late = LoopbackSocket(connectedTo: relayed)
        late.write([1])
        #expect((late.receive() ?? []) == [])
        for _ in 0..<200 where standing(relay)?.traffic.upBytes != 2 { pause(milliseconds: 20) }
        #expect(standing(relay)?.traffic.upBytes == 2)
    }

    @Test("The end of the process waits for what data connections carried, and for nothing else")
    func processEnds() throws {
        let lines = LogLines(from: .info)
        let relay = try RelayUnderTest(log: lines.logger) { $0.isTCPAllowed = true }
        let (client, _, data, peer) = try pair(relay)
        // The client's own connection carries the allocation.
        defer { withExtendedLifetime(client) {} }
        data.socket.write([1, 2, 3])
        #expect(peer.receive(bytes: 3) == [1, 2, 3])
        let start = MonotonicTime.now()
        relay.control.stop()
        #expect(MonotonicTime.now() - start < RelayControl.windDownMax / 2)
        let ended = lines.with("An allocation ended")
        #expect(ended.map { $0.facts[LogKey.bytes] } == ["3 up, 0 down"])
    }

    @Test("Refused: peers that may not be, those that do not accept, numbers of others, and what is over a bound")
    func refusals() throws {
        let relay = try relay { $0.connectionsMax = 2 }
        defer { relay.control.stop() }
        let (client, _) = try allocate(relay)
        let listeners = (0..<3).map { _ in LoopbackSocket(listening: ()) }
        let private10 = TransportAddress(v4: 0x0A00_0001, port: 80)
        #expect(try connect(client, private10).errorValue()?.code == .forbidden)
        let closed = LoopbackSocket(listening: ()).address
        #expect(try connect(client, closed).errorValue()?.code == .connectionTimeoutOrFailure)
        let first = try #require(try connect(client, listeners[0].address).number32(.connectionID))
        #expect(try connect(client, listeners[0].address).errorValue()?.code == .connectionAlreadyExists)
        #expect(try connect(client, listeners[1].address).kind == .success)
        #expect(try connect(client, listeners[2].address).errorValue()?.code == .insufficientCapacity)
        let thief = relay.client(user: "other", isStream: true)
        #expect(try thief.code(.connectionBind) { $0.add(.connectionID, number: first) } == 441)
        let datagram = relay.client()
        #expect(try datagram.code(.connectionBind) { $0.add(.connectionID, number: first) } == 400)
        #expect(try datagram.code(.allocate) { $0.add(requestedTransport: 6) } == 400)

        let off = try RelayUnderTest()
        defer { off.control.stop() }
        #expect(try off.client(isStream: true).code(.allocate) { $0.add(requestedTransport: 6) } == 442)
    }

    @Test("A user over its bits per second is slowed and loses nothing")
    func quota() throws {
        let relay = try relay(userRate: RelayRate(bytesPerSecond: 400_000))
        defer { relay.control.stop() }
        let (client, _, data, peer) = try pair(relay)
        let started = MonotonicTime.now()
        // A full bucket has 200,000 bytes.
        let bytes = Array(Self.payload.prefix(600_000))
        var sent = 0
        var received: [UInt8] = []
        while received.count < bytes.count, MonotonicTime.now() - started < .seconds(10) {
            if sent < bytes.count { sent += data.socket.writeNow(Array(bytes[sent...])) }
            if let more = peer.receive(milliseconds: 10) { received += more }
        }
        let isWhole = received == bytes
        #expect(isWhole, "\(received.count) bytes")
        #expect(MonotonicTime.now() - started > .milliseconds(600))
        withExtendedLifetime(client) {}
    }
}

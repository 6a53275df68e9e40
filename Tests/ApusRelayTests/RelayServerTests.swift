import ApusCore
import ApusRelay
import ApusTraversal
import Logging
import Testing

@Suite("A TURN server on the loopback (RFC 8656, D8)")
struct RelayServerTests {
    private let credentials = RelayCredentials(realm: "test", current: Array("a secret".utf8))

    private func start(
        planes: Int = 1, opened: Set<PeerPolicy.Range> = [.loopback], hasV6: Bool = false
    ) throws -> (
        control: RelayControl, endpoint: TransportAddress, streamEndpoint: TransportAddress
    ) {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        var turn = TurnServerConfiguration(credentials: credentials, nonceKey: Array(repeating: 3, count: 32))
        turn.peers = PeerPolicy(opened: opened)
        let server = RelayServer(
            configuration: turn,
            addresses: RelayAddresses(hosts: hasV6 ? [any, TransportAddress(v6High: 0, low: 1, port: 0)] : [any]),
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        let control = try RelayControl(
            planeCount: planes,
            configuration: PlaneConfiguration(datagramAddresses: [any], streamAddresses: [any])
        ) { _, _ in server }
        return (control, control.planes[0].datagramAddresses[0], control.planes[0].streamAddresses[0])
    }

    private var issued: (username: String, password: String) { credentials.issue(user: "u", expiry: 4_000_000_000) }

    @Test(
        "A client allocates, binds a channel and exchanges data, over UDP and over TCP, on one plane and on two",
        arguments: [true, false], [1, 2])
    func channel(isStream: Bool, planes: Int) throws {
        let (control, endpoint, streamEndpoint) = try start(planes: planes)
        defer { control.stop() }
        for _ in 0..<4 {
            let socket = isStream ? LoopbackSocket(connectedTo: streamEndpoint) : LoopbackSocket()
            let client = TurnTestClient(socket, endpoint: isStream ? nil : endpoint, issued)
            let peer = LoopbackSocket()
            let relayed = try client.allocate()
            #expect(relayed.host == TransportAddress(v4: LoopbackSocket.host, port: 0))
            let bound = try client.ask(.channelBind) {
                $0.add(channelNumber: 0x4001)
                $0.add(.xorPeerAddress, xorAddress: peer.address)
            }
            #expect(bound.kind == .success)
            client.send(PlaneHarness.channelData(0x4001, [1, 2, 3, 4]))
            #expect(peer.receive() == [1, 2, 3, 4])
            peer.send([5, 6, 7, 8], to: relayed)
            #expect(client.socket.receive() == PlaneHarness.channelData(0x4001, [5, 6, 7, 8]))
        }
    }

    @Test("A permission lets indications pass both ways; Refresh with 0 ends the allocation and its port")
    func permission() throws {
        let (control, endpoint, _) = try start()
        defer { control.stop() }
        let client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let peer = LoopbackSocket()
        let relayed = try client.allocate()
        let permitted = try client.ask(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer.address) }
        #expect(permitted.kind == .success)
        client.send(PlaneHarness.sendIndication(peer.address, [1, 2, 3]))
        #expect(peer.receive() == [1, 2, 3])
        peer.send([4], to: relayed)
        let data = try StunMessage(try #require(client.socket.receive()))
        #expect(data.type == StunMessageType(.indication, .data))
        #expect(try data.xorAddress(.xorPeerAddress) == peer.address)
        #expect(data.value(of: .data).map(Array.init) == [4])
        #expect(try client.ask(.refresh) { $0.add(.lifetime, number: UInt32(0)) }.kind == .success)
        client.send(PlaneHarness.sendIndication(peer.address, [9]))
        peer.send([4], to: relayed)
        #expect(peer.receive(milliseconds: 50) != [9])
        #expect(client.socket.receive(milliseconds: 50) == nil)
        // The client may allocate anew.
        _ = try client.allocate()
    }

    @Test("An indication with DONT-FRAGMENT goes by control and reaches its peer")
    func dontFragment() throws {
        let (control, endpoint, _) = try start()
        defer { control.stop() }
        let client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let peer = LoopbackSocket()
        _ = try client.allocate()
        _ = try client.ask(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer.address) }
        var writer = StunWriter(StunMessageType(.indication, .send), TransactionID(high: 1, low: 1))
        writer.add(.xorPeerAddress, xorAddress: peer.address)
        writer.add(.dontFragment, [])
        writer.add(.data, [1, 2, 3])
        client.send(writer.bytes)
        #expect(peer.receive() == [1, 2, 3])
    }

    @Test("CVE-2020-26262: loopback peers are refused unless the range is opened")
    func closedByDefault() throws {
        let (control, endpoint, _) = try start(opened: [])
        defer { control.stop() }
        let client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let peer = LoopbackSocket()
        _ = try client.allocate()
        let answer = try client.ask(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer.address) }
        #expect(try answer.errorValue()?.code == .forbidden)
        client.send(PlaneHarness.sendIndication(peer.address, [1]))
        #expect(peer.receive(milliseconds: 50) == nil)
    }

    @Test("EVEN-PORT with reservation: the next port is kept for the client that brings the token (§7.2)")
    func evenPort() throws {
        let (control, endpoint, _) = try start()
        defer { control.stop() }
        let first = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let answer = try first.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.evenPort, [0x80])
        }
        let even = try #require(try answer.xorAddress(.xorRelayedAddress))
        let token = try #require(try answer.number64(.reservationToken))
        #expect(even.port % 2 == 0)
        let second = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let next = try second.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.reservationToken, number: token)
        }
        #expect(try next.xorAddress(.xorRelayedAddress) == even.withPort(even.port + 1))
    }

    @Test("RFC 8016: a client with a ticket goes on from other addresses, whatever plane it comes in at")
    func mobility() throws {
        let (control, endpoint, _) = try start(planes: 2)
        defer { control.stop() }
        let peer = LoopbackSocket()
        var client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let answer = try client.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.mobilityTicket, [])
        }
        let relayed = try #require(try answer.xorAddress(.xorRelayedAddress))
        var ticket = try #require(answer.value(of: .mobilityTicket).map { Array($0) })
        let bound = try client.ask(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(bound.kind == .success)
        for round in 0..<8 as Range<UInt8> {
            client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
            let moved = try client.ask(.refresh) { $0.add(.mobilityTicket, ticket) }
            #expect(moved.kind == .success)
            ticket = try #require(moved.value(of: .mobilityTicket).map { Array($0) })
            client.send(PlaneHarness.channelData(0x4001, [round, 1]))
            #expect(peer.receive() == [round, 1])
            peer.send([round, 2], to: relayed)
            #expect(client.socket.receive() == PlaneHarness.channelData(0x4001, [round, 2]))
        }
    }

    @Test("ADDITIONAL-ADDRESS-FAMILY: one allocation reaches peers of both families, at whatever plane (RFC 8656 §7.2)")
    func bothFamilies() throws {
        let (control, endpoint, _) = try start(planes: 2, hasV6: true)
        defer { control.stop() }
        let (v4, v6) = (LoopbackSocket(), LoopbackSocket(v6: ()))
        var client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
        let answer = try client.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.additionalAddressFamily, family: .v6)
            $0.add(.mobilityTicket, [])
        }
        let relayed = try answer.xorAddresses(.xorRelayedAddress, countMax: 2)
        #expect(relayed.map(\.family) == [.v4, .v6])
        var ticket = try #require(answer.value(of: .mobilityTicket).map { Array($0) })
        for (number, peer) in [(UInt16(0x4001), v4), (0x4002, v6)] {
            let bound = try client.ask(.channelBind) {
                $0.add(channelNumber: number)
                $0.add(.xorPeerAddress, xorAddress: peer.address)
            }
            #expect(bound.kind == .success)
        }
        for round in 0..<6 as Range<UInt8> {
            client.send(PlaneHarness.channelData(0x4001, [round, 4]))
            #expect(v4.receive() == [round, 4])
            client.send(PlaneHarness.channelData(0x4002, [round, 6]))
            #expect(v6.receive() == [round, 6])
            v4.send([round, 14], to: relayed[0])
            #expect(client.socket.receive() == PlaneHarness.channelData(0x4001, [round, 14]))
            v6.sendV6([round, 16], to: relayed[1].port)
            #expect(client.socket.receive() == PlaneHarness.channelData(0x4002, [round, 16]))
            client = TurnTestClient(LoopbackSocket(), endpoint: endpoint, issued)
            let moved = try client.ask(.refresh) { $0.add(.mobilityTicket, ticket) }
            ticket = try #require(moved.value(of: .mobilityTicket).map { Array($0) })
        }
        let without = try start()
        defer { without.control.stop() }
        let other = TurnTestClient(LoopbackSocket(), endpoint: without.endpoint, issued)
        let refused = try other.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.additionalAddressFamily, family: .v6)
        }
        #expect(refused.kind == .success && refused.has(.addressErrorCode))
    }

    @Test("A stream's end ends its allocation")
    func streamEnd() throws {
        let (control, _, streamEndpoint) = try start()
        defer { control.stop() }
        var relayed: TransportAddress?
        do {
            let client = TurnTestClient(LoopbackSocket(connectedTo: streamEndpoint), endpoint: nil, issued)
            relayed = try client.allocate()
        }
        let address = try #require(relayed)
        // The port can be opened again as soon as the allocation has gone.
        var isFree = false
        for _ in 0..<500 where !isFree {
            if let opened = try? RelaySocket.open(address, bufferBytes: 4_096) {
                RelaySocket.close(opened.socket)
                isFree = true
            } else {
                pause(milliseconds: 10)
            }
        }
        #expect(isFree)
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import Logging
import Testing

@Suite("A relay behind a NAT that keeps ports (D8)")
struct ExternalAddressTests {
    private let credentials = RelayCredentials(realm: "test", current: Array("a secret".utf8))
    private let local = TransportAddress(v4: LoopbackSocket.host, port: 0)
    /// 203.0.113.7, which this machine does not have: whatever were sent there would be lost.
    private let external = TransportAddress(v4: 0xcb00_7107, port: 0)

    private func start(planes: Int) throws -> RelayControl {
        let externals = ExternalAddresses([.init(external: external, local: local)])
        var turn = TurnServerConfiguration(credentials: credentials, nonceKey: Array(repeating: 3, count: 32))
        turn.peers = PeerPolicy(opened: [.loopback], own: [local], externals: externals)
        turn.isTCPAllowed = true
        var addresses = RelayAddresses(hosts: [local])
        addresses.externals = externals
        let server = RelayServer(
            configuration: turn, addresses: addresses,
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        var plane = PlaneConfiguration(datagramAddresses: [local], streamAddresses: [local])
        plane.externals = externals
        return try RelayControl(planeCount: planes, configuration: plane) { _, _ in server }
    }

    private func client(_ control: RelayControl) -> TurnTestClient {
        let issued = credentials.issue(user: "u", expiry: 4_000_000_000)
        return TurnTestClient(LoopbackSocket(), endpoint: control.planes[0].datagramAddresses[0], issued)
    }

    @Test(
        "Two clients reach each other by the public address, with indications and channels, on one plane and on two",
        arguments: [1, 2])
    func hairpin(planes: Int) throws {
        let control = try start(planes: planes)
        defer { control.stop() }
        // More than one pair, so that with two planes some meet in the kernel.
        for _ in 0..<4 {
            let (a, b) = (client(control), client(control))
            let (addressOfA, addressOfB) = (try a.allocate(), try b.allocate())
            #expect(addressOfA.host == external && addressOfB.host == external)
            for (client, peer) in [(a, addressOfB), (b, addressOfA)] {
                #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer) } == 0)
            }
            a.send(PlaneHarness.sendIndication(addressOfB, [1, 2, 3, 4]))
            let indication = try StunMessage(try #require(b.socket.receive()))
            #expect(try indication.xorAddress(.xorPeerAddress) == addressOfA)
            #expect(indication.value(of: .data).map { Array($0) } == [1, 2, 3, 4])
            for (client, peer) in [(a, addressOfB), (b, addressOfA)] {
                let code = try client.code(.channelBind) {
                    $0.add(channelNumber: 0x4001)
                    $0.add(.xorPeerAddress, xorAddress: peer)
                }
                #expect(code == 0)
            }
            a.send(PlaneHarness.channelData(0x4001, [5, 6, 7, 8]))
            #expect(b.socket.receive() == PlaneHarness.channelData(0x4001, [5, 6, 7, 8]))
            b.send(PlaneHarness.channelData(0x4001, [9, 9, 9, 9]))
            #expect(a.socket.receive() == PlaneHarness.channelData(0x4001, [9, 9, 9, 9]))
        }
    }

    @Test("The private address is no peer: what has a public name is known by that alone (403)")
    func privateAddress() throws {
        let control = try start(planes: 1)
        defer { control.stop() }
        let client = client(control)
        _ = try client.allocate()
        let peer = local.withPort(50_000)
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer) } == 403)
        let code = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer)
        }
        #expect(code == 403)
        // The public address is this machine's: no peer but at relays' ports.
        let service = external.withPort(22)
        let bound = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: service)
        }
        #expect(bound == 403)
    }

    @Test("A STUN server tells the address that it sees, and silence is an error (21002)")
    func lookup() throws {
        let control = try start(planes: 1)
        defer { control.stop() }
        let server = control.planes[0].datagramAddresses[0]
        let answer = try ExternalLookup.ask(server, from: local, timeout: .seconds(5))
        #expect(answer.seen.host == local && answer.isPortKept)
        let silent = LoopbackSocket()
        let error = #expect(throws: ApusError.self) {
            try ExternalLookup.ask(silent.address, from: local, timeout: .milliseconds(400))
        }
        #expect(error?.code == .answerTimedOut)
        // It asked more than once.
        #expect(silent.receive() != nil)
        #expect(silent.receive() != nil)
    }

    @Test("Addresses are translated with their ports kept, and those of no pair are left alone")
    func translation() {
        let v6 = ExternalAddresses.Pair(
            external: TransportAddress(v6High: 0x2001_0db8_0000_0000, low: 1, port: 0),
            local: TransportAddress(v6High: 0xfd00_0000_0000_0000, low: 1, port: 0))
        let externals = ExternalAddresses([.init(external: external, local: local), v6])
        #expect(externals.external(of: local.withPort(7)) == external.withPort(7))
        #expect(externals.local(of: external.withPort(7)) == local.withPort(7))
        #expect(externals.local(of: v6.external.withPort(9)) == v6.local.withPort(9))
        let other = TransportAddress(v4: 0xc000_0201, port: 5)
        #expect(externals.local(of: other) == other && externals.external(of: other) == other)
        #expect(externals.external(of: external) == external)
    }
}

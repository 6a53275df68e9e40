import ApusCore
import ApusRelay
import ApusTraversal
import Logging
import Testing

@Suite("Lists of peers at a relay on the loopback (D8)")
struct PeerListServerTests {
    @Test("Of a host with a denied port every other port is reached, by indications and by channels")
    func deniedPort() throws {
        let credentials = RelayCredentials(realm: "test", current: Array("a secret".utf8))
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let (open, closed) = (LoopbackSocket(), LoopbackSocket())
        var turn = TurnServerConfiguration(credentials: credentials, nonceKey: Array(repeating: 3, count: 32))
        let rule = try #require(PeerRule("127.0.0.0/8:\(closed.address.port)"))
        turn.peers = PeerPolicy(opened: [.loopback], denied: [rule])
        let server = RelayServer(
            configuration: turn, addresses: RelayAddresses(hosts: [any]),
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        let control = try RelayControl(
            planeCount: 1, configuration: PlaneConfiguration(datagramAddresses: [any], streamAddresses: [any])
        ) { _, _ in server }
        defer { control.stop() }
        let client = TurnTestClient(
            LoopbackSocket(), endpoint: control.planes[0].datagramAddresses[0],
            credentials.issue(user: "u", expiry: 4_000_000_000))
        _ = try client.allocate()
        // A permission is for a host, of which one port is closed.
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: closed.address) } == 0)
        client.send(PlaneHarness.sendIndication(closed.address, [1, 1, 1, 1]))
        client.send(PlaneHarness.sendIndication(open.address, [2, 2, 2, 2]))
        #expect(open.receive() == [2, 2, 2, 2])
        for (number, peer, code) in [(UInt16(0x4000), closed.address, UInt16(403)), (0x4001, open.address, 0)] {
            let answered = try client.code(.channelBind) {
                $0.add(channelNumber: number)
                $0.add(.xorPeerAddress, xorAddress: peer)
            }
            #expect(answered == code)
        }
        client.send(PlaneHarness.channelData(0x4001, [3, 3, 3, 3]))
        #expect(open.receive() == [3, 3, 3, 3])
        // What was sent to the closed port came before all of this.
        #expect(closed.receive(milliseconds: 0) == nil)
    }
}

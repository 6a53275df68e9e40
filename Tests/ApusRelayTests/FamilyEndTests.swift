import ApusRelay
import ApusTraversal
import Testing

@Suite("An allocation of two families that loses one (RFC 8656 §8)")
struct FamilyEndTests {
    @Test("Lifetime 0 for IPv4 or IPv6 closes that relayed address; packets of the other pass", arguments: [1, 2])
    func oneFamily(family: Int) throws {
        let relay = try RelayUnderTest(hosts: [
            TransportAddress(v4: LoopbackSocket.host, port: 0), TransportAddress(v6High: 0, low: 1, port: 0),
        ])
        defer { relay.control.stop() }
        let client = relay.client()
        let answer = try client.ask(.allocate) {
            $0.add(requestedTransport: 17)
            $0.add(.additionalAddressFamily, family: .v6)
        }
        #expect(answer.kind == .success)
        let relayed = try answer.xorAddresses(.xorRelayedAddress, countMax: 2)
        #expect(relayed.count == 2)
        let (four, six) = (LoopbackSocket(), LoopbackSocket(v6: ()))
        for peer in [four.address, TransportAddress(v6High: 0, low: 1, port: six.address.port)] {
            #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer) } == 0)
        }
        let ended: TransportAddress.Family = family == 1 ? .v4 : .v6
        let code = try client.code(.refresh) {
            $0.add(.lifetime, number: UInt32(0))
            $0.add(.requestedAddressFamily, family: ended)
        }
        #expect(code == 0)
        if ended == .v4 { four.send([1], to: relayed[0]) } else { six.sendV6([1], to: relayed[1].port) }
        #expect(client.socket.receive(milliseconds: 100) == nil)
        if ended == .v4 { six.sendV6([2], to: relayed[1].port) } else { four.send([2], to: relayed[0]) }
        let data = try StunMessage(try #require(client.socket.receive()))
        #expect(data.method == .data && data.value(of: .data).map { Array($0) } == [2])
        #expect(try client.code(.refresh) == 0)
    }
}

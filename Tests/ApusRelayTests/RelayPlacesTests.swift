import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Where the cluster's other nodes are, for what may be a peer (D8)")
struct RelayPlacesTests {
    private let node = NodeID(name: NodeName(unchecked: "n2"), incarnation: 1)
    private let lan = TransportAddress(v4: 0x0a00_0005, port: 0)
    private let listener = TransportAddress(v4: 0x0909_0909, port: 443)

    private func places(at address: TransportAddress, incarnation: UInt64 = 1) -> RelayPlaces {
        var places = RelayPlaces()
        let id = NodeID(name: node.name, incarnation: incarnation)
        places.membersChanged([.init(id: id, transport: address, listeners: [listener])])
        return places
    }

    @Test("An address that a node joined with is a claim until this node has a link there")
    func claimed() {
        var places = places(at: lan)
        #expect(places.reached.isEmpty && places.claimed == [lan, listener.host] && places.unreached == [node])
        places.reached(node, at: listener)
        #expect(places.reached.isEmpty, "a link to another address says nothing")
        places.reached(node, at: lan.withPort(7400))
        #expect(places.reached == [lan] && places.claimed == [listener.host] && places.unreached.isEmpty)
    }

    @Test("What was reached is a claim again when the node is at another address, and in another incarnation")
    func changes() {
        let other = TransportAddress(v4: 0x0a00_0006, port: 0)
        var moved = places(at: lan)
        moved.reached(node, at: lan)
        moved.membersChanged([.init(id: node, transport: other, listeners: [])])
        #expect(moved.reached.isEmpty && moved.claimed == [other])
        var anew = places(at: lan)
        anew.reached(node, at: lan)
        let next = NodeID(name: node.name, incarnation: 2)
        anew.membersChanged([.init(id: next, transport: lan, listeners: [])])
        #expect(anew.reached.isEmpty && anew.unreached == [next])
        anew.reached(node, at: lan)
        #expect(anew.reached.isEmpty, "the link is the former incarnation's")
    }
}

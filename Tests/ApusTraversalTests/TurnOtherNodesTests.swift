import ApusCore
import ApusTraversal
import Testing

@Suite("Addresses of the cluster's other nodes are no peers but at the ports of relays (D8)")
struct TurnOtherNodesTests {
    private let node = TransportAddress(v4: 0x0909_0909, port: 0)
    private let ports: ClosedRange<UInt16> = 49_152...65_535

    @Test("A node that comes is refused with 403 but at relays' ports, and is an address as any other when it has gone")
    func comesAndGoes() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        #expect(driver.machine.othersAreAt(reached: [node.withPort(7400)], reported: []).isEmpty)
        #expect(try driver.code(driver.bind(0x4000, node.withPort(7400))) == 403)
        #expect(try driver.code(driver.bind(0x4000, node.withPort(22))) == 403)
        let relay = try driver.bind(0x4000, node.withPort(50_000))
        #expect(try driver.code(relay) == 0, "relay reaches relay")
        #expect(relay.first == .permit(id, node, ports: ports))
        let gone = driver.machine.othersAreAt(reached: [], reported: [])
        #expect(gone == [.revoke(id, node), .permit(id, node, ports: 1...65_535)])
        #expect(try driver.code(driver.bind(0x4001, node.withPort(22))) == 0)
    }

    @Test("What an allocation has of a node that comes is taken back: its channels, and ports that are no relays'")
    func takenBack() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        _ = try driver.bind(0x4000, node.withPort(22))
        _ = try driver.bind(0x4001, node.withPort(50_000))
        _ = try driver.bind(0x4002, peer)
        let come = driver.machine.othersAreAt(reached: [], reported: [node])
        #expect(come == [.unbindChannel(id, 0x4000), .revoke(id, node), .permit(id, node, ports: ports)])
        #expect(driver.machine.othersAreAt(reached: [], reported: [node]).isEmpty, "nothing is new")
        #expect(try driver.code(driver.bind(0x4000, node.withPort(22))) == 403)
        #expect(try driver.code(driver.bind(0x4002, peer)) == 0)
    }

    @Test("Send to a port of a node that is no relay's is dropped, by the machine too")
    func sendIsDropped() throws {
        var driver = TurnDriver()
        try driver.allocate()
        _ = driver.machine.othersAreAt(reached: [node], reported: [])
        _ = try driver.ask(.createPermission) { $0.add(.xorPeerAddress, xorAddress: node.withPort(22)) }
        for (port, isSent) in [(UInt16(22), false), (50_000, true)] {
            var writer = StunWriter(StunMessageType(.indication, .send), driver.transaction())
            writer.add(.xorPeerAddress, xorAddress: node.withPort(port))
            writer.add(.data, [1, 2, 3])
            let actions = driver.send(writer, on: TurnDriver.flow())
            #expect(actions.contains { if case .sendToPeer = $0 { true } else { false } } == isSent)
        }
    }

    @Test("An address in a private range is another node's where this one reaches it; what is told alone opens nothing")
    func privateRanges() throws {
        let (lan, other) = (TransportAddress(v4: 0x0a00_0005, port: 0), TransportAddress(v4: 0x0a00_0006, port: 0))
        var policy = PeerPolicy()
        policy.setOthers(reached: [lan], reported: [other])
        #expect(policy.refusal(of: lan.withPort(50_000)) == nil)
        #expect(policy.refusal(of: lan.withPort(22)) == .own)
        #expect(policy.refusal(of: other.withPort(50_000)) == .special(.private))
        var open = PeerPolicy(opened: [.private])
        open.setOthers(reached: [], reported: [other])
        #expect(open.refusal(of: other.withPort(22)) == .own)
        #expect(open.refusal(of: lan.withPort(22)) == nil)
        open.setOthers(reached: [], reported: [])
        #expect(open.refusal(of: other.withPort(22)) == nil)
    }

    @Test("Of another node's addresses those alone that relay are peers, and channels to the others are taken back")
    func relays() throws {
        let lan = TransportAddress(v4: 0x0a00_0005, port: 0)
        var driver = TurnDriver()
        let id = try driver.allocate()
        _ = driver.machine.othersAreAt(reached: [lan], reported: [node])
        _ = try driver.bind(0x4000, lan.withPort(50_000))
        _ = try driver.bind(0x4001, node.withPort(50_000))
        let known = driver.machine.othersAreAt(reached: [lan], reported: [node], relays: [node])
        #expect(known == [.unbindChannel(id, 0x4000), .revoke(id, lan)])
        #expect(driver.machine.othersAreAt(reached: [lan], reported: [node], relays: [node]).isEmpty)
        #expect(try driver.code(driver.bind(0x4000, lan.withPort(50_000))) == 403)
        #expect(try driver.code(driver.bind(0x4001, node.withPort(50_000))) == 0)
        // Who says that somebody else's address relays opens nothing.
        let outsider = TransportAddress(v4: 0x0a00_0007, port: 50_000)
        _ = driver.machine.othersAreAt(reached: [lan], reported: [node], relays: [node, outsider])
        #expect(try driver.code(driver.bind(0x4002, outsider)) == 403)
    }

    @Test("What a node says of itself opens nothing that this node's lists or ranges close, at no port")
    func tellingOnlyCloses() throws {
        let claimed = try #require(TransportAddress("9.9.9.9", port: 50_000))
        let denied = [try #require(PeerRule("9.9.0.0/16"))]
        var listed = PeerPolicy(denied: denied)
        listed.setOthers(reached: [], reported: [claimed], relays: [claimed])
        #expect(listed.refusal(of: claimed) == .denied && listed.refusal(ofHost: claimed) == .denied)
        listed.setOthers(reached: [claimed], reported: [], relays: [claimed])
        #expect(listed.refusal(of: claimed) == .denied, "nor where it was reached")
        // The operator's own word does.
        let named = PeerPolicy(own: [claimed], denied: denied)
        #expect(named.refusal(of: claimed) == nil && named.refusal(of: claimed.withPort(22)) == .own)

        let lan = TransportAddress(v4: 0x0a00_0006, port: 50_000)
        var oneService = PeerPolicy(allowed: [try #require(PeerRule("10.0.0.6:7000"))])
        oneService.setOthers(reached: [], reported: [lan], relays: [lan])
        #expect(oneService.refusal(of: lan) == .special(.private))
        #expect(oneService.refusal(of: lan.withPort(7_000)) == .own, "and it closes what was open")
        #expect(oneService.ports(of: lan) == PeerPolicy.judgedPorts)

        // An address of this machine at which no allocation is.
        let (relay, other) = (
            TransportAddress(v4: 0x0a00_0005, port: 0), TransportAddress(v4: 0xc0a8_0709, port: 50_000)
        )
        var own = PeerPolicy(opened: [.private], own: [relay, other], relays: [relay])
        own.setOthers(reached: [], reported: [other], relays: [other])
        #expect(own.refusal(of: other) == .own && own.refusal(ofHost: other) == .own)
    }

    @Test("Loopback and unspecified addresses stay as they are: refused, or open where the operator opened them")
    func loopback() throws {
        let other = TransportAddress(v4: 0x7f00_0003, port: 0)
        var policy = PeerPolicy()
        policy.setOthers(reached: [other, TransportAddress(v4: 0, port: 0)], reported: [other])
        #expect(policy.refusal(of: other.withPort(50_000)) == .special(.loopback))
        #expect(policy.refusal(of: TransportAddress(v4: 0, port: 50_000)) == .special(.unspecified))
        var open = PeerPolicy(opened: [.loopback])
        open.setOthers(reached: [other], reported: [other])
        #expect(open.refusal(of: other.withPort(22)) == nil)
    }

    @Test("A node's address inside another address is refused as well (NAT64, 6to4)")
    func embedded() throws {
        var policy = PeerPolicy(opened: [.nat64, .sixToFour])
        policy.setOthers(reached: [node], reported: [])
        for text in ["64:ff9b::9.9.9.9", "2002:909:909::1"] {
            #expect(policy.refusal(of: try #require(TransportAddress(text, port: 50_000))) == .own, "\(text)")
        }
    }
}

@Suite("Allocations that live when the process ends (D8)")
struct TurnShutdownTests {
    @Test("They end a bounded number at a time, each with its life told, and their mirrors stay at the standby")
    func shutDown() throws {
        var driver = TurnDriver {
            $0.node = 1; $0.hasPeers = true
        }
        for port in UInt16(1)...3 {
            let asked = try driver.ask(.allocate, on: TurnDriver.flow(port)) { writer in
                writer.add(requestedTransport: 17)
                writer.add(.mobilityTicket, [])
            }
            _ = driver.open(asked)
        }
        #expect(driver.machine.allocationCount == 3)
        let first = driver.machine.shutDown(countMax: 2, at: driver.now)
        #expect(first.count == 2 && first.allSatisfy { if case .remove = $0 { true } else { false } })
        #expect(driver.machine.allocationCount == 1 && driver.machine.endingCount == 2)
        var counters = RelayCounters()
        counters.bytesUp = 7
        let told = driver.machine.counted(AllocationID(rawValue: 1), counters, isFinal: true)
        guard case .ended(let life) = told.first else {
            Issue.record("its life is not told")
            return
        }
        #expect(life.reason == .shutdown && life.counters.bytesUp == 7)
        _ = driver.machine.shutDown(countMax: .max, at: driver.now)
        let rest = driver.machine.endWaiting()
        #expect(rest.count == 2 && driver.machine.endingCount == 0 && driver.machine.allocationCount == 0)
        #expect(rest.allSatisfy { if case .ended(let life) = $0 { life.reason == .shutdown } else { false } })
    }
}

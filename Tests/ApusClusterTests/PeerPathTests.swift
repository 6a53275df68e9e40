import ApusCluster
import ApusCore
import ApusWire
import Testing

/// Failure detectors with a network between them that can be cut in each direction.
private struct Detectors {
    struct Event: Equatable {
        var at: Int
        var node: NodeID
        var action: MembershipStateMachine.Action
    }

    private struct Datagram {
        var arrival: Int
        var message: HeartbeatMessage
        var sender: NodeID
        var receiver: NodeID
    }

    private var machines: [NodeID: MembershipStateMachine] = [:]
    private var flying: [Datagram] = []
    private var now = 0
    private var random: SeededRandom
    private let delay: Int
    /// Directed pairs whose datagrams are lost.
    var cuts: Set<[NodeID]> = []
    /// Nodes that neither send nor receive.
    var stopped: Set<NodeID> = []
    /// The share of datagrams that are lost.
    var loss = 0.0
    private(set) var log: [Event] = []

    init(_ nodes: [NodeID], delay: Int = 1, seed: UInt64 = 1) {
        (self.delay, random) = (delay, SeededRandom(seed: seed))
        for id in nodes {
            var machine = MembershipStateMachine(local: id)
            _ = machine.handle(.membersChanged(nodes), now: at(0))
            machines[id] = machine
        }
    }

    mutating func cut(_ one: NodeID, _ other: NodeID) { cuts.formUnion([[one, other], [other, one]]) }

    mutating func run(through end: Int) {
        while now < end {
            now += 1
            let arrived = flying.filter { $0.arrival <= now }
            flying.removeAll { $0.arrival <= now }
            for datagram in arrived where !stopped.contains(datagram.receiver) {
                handle(.received(datagram.message, from: datagram.sender), at: datagram.receiver)
            }
            if now.isMultiple(of: 10) {
                for id in machines.keys.sorted() where !stopped.contains(id) { handle(.tick, at: id) }
            }
        }
    }

    private mutating func handle(_ input: MembershipStateMachine.Input, at node: NodeID) {
        for action in machines[node]?.handle(input, now: ApusClusterTests.at(now)) ?? [] {
            guard case .send(let message, let receiver) = action else {
                log.append(Event(at: now, node: node, action: action))
                continue
            }
            let isLost = cuts.contains([node, receiver]) || random.nextUnit() < loss
            if !isLost {
                flying.append(Datagram(arrival: now + delay, message: message, sender: node, receiver: receiver))
            }
        }
    }

    /// The processes of these nodes end, and the members that hear their hosts notice it.
    mutating func kill(_ killed: [NodeID]) {
        stopped.formUnion(killed)
        for node in machines.keys.sorted() where !stopped.contains(node) {
            for id in killed where !cuts.contains([node, id]) && !cuts.contains([id, node]) {
                handle(.linkLost(id), at: node)
                handle(.connectRefused(id), at: node)
            }
        }
    }

    /// The nodes take over a map that has these members alive.
    mutating func adopt(_ members: [NodeID], at nodes: [NodeID]) {
        for node in nodes { handle(.membersChanged(members), at: node) }
    }

    func permissionEnd(of node: NodeID) -> MonotonicTime { machines[node]?.promises.permissionEnd ?? .zero }

    func helper(from node: NodeID, to peer: NodeID) -> NodeID? { machines[node]?.helper(to: peer) }

    /// The events of a node about cut paths and deaths.
    func verdicts(of node: NodeID, after start: Int = 0) -> [Event] {
        log.filter { event in
            guard event.node == node, event.at >= start else { return false }
            switch event.action {
            case .pathCut, .pathRestored, .confirmedDead, .certain: return true
            case .send, .inspect, .suspected, .recovered, .discarded, .half, .uncertain, .confirmMap: return false
            }
        }
    }
}

@Suite("Cut paths between nodes (D4)")
struct PeerPathTests {
    private let a = node("a")
    private let b = node("b")
    private let c = node("c")
    private let d = node("d")

    @Test("A cut path is detected at both ends within 300 ms, and nobody is declared dead")
    func cut() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        #expect(detectors.log.isEmpty)
        detectors.cut(a, b)
        detectors.run(through: 5000)
        for (node, peer) in [(a, b), (b, a)] {
            let verdicts = detectors.verdicts(of: node)
            #expect(verdicts.map(\.action) == [.pathCut(peer, via: c)])
            #expect((verdicts.first?.at ?? .max) <= 1300)
        }
        #expect(detectors.verdicts(of: c).isEmpty)
    }

    @Test("While the path is cut, the peer is not suspected again and again")
    func quiet() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        detectors.cut(a, b)
        detectors.run(through: 10_000)
        #expect(detectors.log.count { $0.action == .suspected(b, .silence) } == 1)
        #expect(detectors.log.count { $0.action == .suspected(a, .silence) } == 1)
    }

    @Test("A path that is cut in one direction is cut for both ends")
    func oneWay() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        detectors.cuts = [[a, b]]
        detectors.run(through: 5000)
        for (node, peer) in [(a, b), (b, a)] {
            #expect(detectors.verdicts(of: node).map(\.action) == [.pathCut(peer, via: c)])
            #expect((detectors.verdicts(of: node).first?.at ?? .max) <= 1400)
        }
    }

    @Test("A healed path is restored, after it worked for a second")
    func healed() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        detectors.cut(a, b)
        detectors.run(through: 3000)
        detectors.cuts = []
        detectors.run(through: 6000)
        for (node, peer) in [(a, b), (b, a)] {
            let verdicts = detectors.verdicts(of: node, after: 3000)
            #expect(verdicts.map(\.action) == [.pathRestored(peer)])
            #expect((4000...5500).contains(verdicts.first?.at ?? 0))
            #expect(detectors.helper(from: node, to: peer) == nil)
        }
    }

    @Test("A path that works now and then stays cut")
    func unsteady() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        for start in stride(from: 1000, to: 9000, by: 800) {
            detectors.cut(a, b)
            detectors.run(through: start + 400)
            detectors.cuts = []
            detectors.run(through: start + 800)
        }
        #expect(detectors.verdicts(of: a).count <= 3)
    }

    @Test("A helper that dies, or whose own path is cut, is replaced within 400 ms", arguments: [true, false])
    func otherHelper(isDead: Bool) {
        var detectors = Detectors([a, b, c, d])
        detectors.run(through: 1000)
        detectors.cut(a, b)
        detectors.run(through: 3000)
        let first = detectors.helper(from: a, to: b)
        #expect(first == c || first == d)
        let other = first == c ? d : c
        if isDead { detectors.stopped = [first ?? c] } else { detectors.cut(first ?? c, b) }
        detectors.run(through: 3400)
        #expect(detectors.verdicts(of: a, after: 3000).contains { $0.action == .pathCut(b, via: other) })
        #expect(detectors.helper(from: a, to: b) == other)
    }

    @Test("Of two nodes without a third, the silent one is dead: there is no helper")
    func two() {
        var detectors = Detectors([a, b])
        detectors.run(through: 1000)
        detectors.cut(a, b)
        detectors.run(through: 2000)
        // Whether it is dead is not certain: each is half of the cluster.
        #expect(detectors.verdicts(of: a).map(\.action) == [.confirmedDead(b, .silence)])
    }

    @Test("A node that is cut off from all others has no helper, and the others have none to it")
    func alone() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        detectors.cut(a, b)
        detectors.cut(a, c)
        detectors.run(through: 2000)
        #expect(
            detectors.verdicts(of: a).map(\.action) == [.confirmedDead(b, .silence), .confirmedDead(c, .silence)])
        for node in [b, c] {
            let verdicts = detectors.verdicts(of: node)
            #expect(verdicts.map(\.action) == [.confirmedDead(a, .silence), .certain(a)])
            #expect((verdicts.last?.at ?? .max) <= 1350)
        }
    }

    @Test("Of five nodes, three without the other two are certain, and the two are not")
    func sides() {
        let nodes = ["a", "b", "c", "d", "e"].map { node($0) }
        var detectors = Detectors(nodes)
        detectors.run(through: 1000)
        for one in nodes[..<3] { for other in nodes[3...] { detectors.cut(one, other) } }
        detectors.run(through: 3000)
        for one in nodes[..<3] {
            let certain = detectors.verdicts(of: one).map(\.action).filter {
                $0 == .certain(d) || $0 == .certain(nodes[4])
            }
            #expect(certain.count == 2)
            #expect((detectors.verdicts(of: one).last?.at ?? .max) <= 1400)
        }
        for one in nodes[3...] {
            #expect(detectors.verdicts(of: one).count == 3)
            #expect(!detectors.verdicts(of: one).contains { if case .certain = $0.action { true } else { false } })
        }
    }

    @Test(
        "A node that hears everybody and is heard by nobody is certain of no death, and is certainly dead to the others"
    )
    func mute() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        detectors.cuts = [[a, b], [a, c]]
        detectors.run(through: 3000)
        // They echo nothing that it sends.
        #expect(
            detectors.verdicts(of: a).map(\.action) == [.confirmedDead(b, .silence), .confirmedDead(c, .silence)])
        for node in [b, c] { #expect(detectors.verdicts(of: node).contains { $0.action == .certain(a) }) }
    }

    @Test(
        "A node that holds promises of members that just died is not certainly dead before they have ended",
        arguments: [1, 50, 100, 150, 250], [false, true])
    func promisesOfTheDead(delay: Int, isMapAdopted: Bool) {
        let nodes = ["a", "b", "c", "d", "e"].map { node($0) }
        let (x, voters, killed) = (nodes[0], [nodes[1], nodes[2]], [nodes[3], nodes[4]])
        var detectors = Detectors(nodes, delay: delay)
        detectors.run(through: 3000)
        // Two of the others do not hear it, the two that will die do: their paths go through those.
        for voter in voters { detectors.cut(x, voter) }
        detectors.run(through: 3500)
        #expect(detectors.permissionEnd(of: x) > at(3500))
        // It hears nobody any more when these two die, so it does not notice their deaths.
        for id in killed { detectors.cut(x, id) }
        detectors.kill(killed)
        if isMapAdopted { detectors.adopt([x] + voters, at: voters) }
        for end in stride(from: 3510, through: 6000, by: 10) {
            detectors.run(through: end)
            let isCertain = voters.contains { voter in
                detectors.verdicts(of: voter, after: 3500).contains { $0.action == .certain(x) }
            }
            guard isCertain else { continue }
            #expect(detectors.permissionEnd(of: x) <= at(end), "it may answer, and is dead since \(end) ms")
            #expect(end <= 5000)
            return
        }
        Issue.record("it is never declared dead")
    }

    @Test("A node that most others hear is not declared dead by the one that hears neither it nor a helper's answer")
    func wrongAlone() {
        var detectors = Detectors([a, b, c])
        detectors.run(through: 1000)
        // What A sends to B is lost too, so B cannot help A to reach C.
        detectors.cut(a, c)
        detectors.cuts.insert([a, b])
        detectors.run(through: 3000)
        for node in [a, b, c] {
            #expect(!detectors.verdicts(of: node).contains { [.certain(b), .certain(c)].contains($0.action) })
        }
    }

    @Test("Loss of 10 % cuts hardly any path in ten minutes, and none for long", arguments: 1...3)
    func loss(seed: Int) {
        var detectors = Detectors([a, b, c], seed: UInt64(seed))
        detectors.loss = 0.1
        detectors.run(through: 600_000)
        let cutCount = detectors.log.count { event in
            if case .pathCut = event.action { true } else { false }
        }
        #expect(cutCount <= 2)
        #expect(detectors.helper(from: a, to: b) == nil)
    }
}

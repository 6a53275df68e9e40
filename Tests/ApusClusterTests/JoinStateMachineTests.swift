import ApusCluster
import ApusCore
import Testing

@Suite("When a node that starts may join (D4)")
struct JoinStateMachineTests {
    private typealias Machine = JoinStateMachine

    private static let own = addresses("own").transport
    private static let configuration = Machine.Configuration()

    private func machine(_ incarnation: UInt64 = 2, isRestart: Bool = false) -> Machine {
        Machine(local: node("a", incarnation), address: Self.own, isRestart: isRestart)
    }

    /// A map with the incarnation before, at another address or at this process's own.
    private func former(isOwn: Bool = false) throws -> ClusterMap {
        try map(.join(node("a"), addresses: isOwn ? addresses("own") : addresses("other"), weight: 100), join("b"))
    }

    @Test("A name that is new, that left, or whose address is this process's own, joins at once")
    func atOnce() throws {
        for map in [
            try map(join("b")), try map(join("a"), join("b"), .leave(node("a"))), try former(isOwn: true),
        ] {
            var machine = machine()
            #expect(machine.mapRead(map, now: at(0)) == .join)
        }
    }

    @Test("Where the incarnation before accepts a link, a node waits, longer each time, and joins when it has ended")
    func duplicate() throws {
        var machine = machine()
        let map = try former()
        let other = try #require(map.member(named: node("a").name))
        var waits: [Duration] = []
        for round in 0..<6 {
            #expect(machine.mapRead(map, now: at(round)) == .reach([other]))
            guard case .wait(.duplicate(other), let pause) = machine.answered([(other, .accepted)]) else {
                Issue.record("it does not wait")
                return
            }
            waits.append(pause)
        }
        #expect(waits == [.milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(4), .seconds(4)])
        #expect(machine.mapRead(map, now: at(10)) == .reach([other]))
        #expect(machine.answered([(other, .refused)]) == .join)
    }

    @Test("An address where another incarnation answers, or nobody, has no process of the incarnation before")
    func ended() throws {
        for answer in [Machine.Answer.refused, .another] {
            var machine = machine()
            let map = try former()
            let other = try #require(map.member(named: node("a").name))
            #expect(machine.mapRead(map, now: at(0)) == .reach([other]))
            #expect(machine.answered([(other, answer)]) == .join)
        }
    }

    @Test(
        "A former incarnation that is silent, or refuses the certificate, runs while it holds a lease",
        arguments: [JoinStateMachine.Answer.silent, .unwelcome])
    func lease(answer: JoinStateMachine.Answer) throws {
        var machine = machine()
        let map = try former()
        let other = try #require(map.member(named: node("a").name))
        #expect(machine.mapRead(map, now: at(0)) == .reach([other]))
        #expect(machine.answered([(other, answer)]) == .readLeases)
        #expect(
            machine.leasesRead([node("a"), node("b")], now: at(1)) == .wait(.duplicate(other), .milliseconds(500)))
        _ = machine.mapRead(map, now: at(501))
        #expect(machine.answered([(other, answer)]) == .readLeases)
        #expect(machine.leasesRead([node("b")], now: at(502)) == .join)
    }

    @Test("A process that a twin with its own address ended waits until the twin has had no lease for a lease's time")
    func yields() throws {
        var machine = machine(isRestart: true)
        let map = try former(isOwn: true)
        let other = try #require(map.member(named: node("a").name))
        // The twin joined a moment ago, and has not renewed its lease yet.
        #expect(machine.mapRead(map, now: at(0)) == .readLeases)
        #expect(machine.leasesRead([], now: at(1)) == .wait(.duplicate(other), .milliseconds(500)))
        #expect(machine.mapRead(map, now: at(3000)) == .readLeases)
        #expect(machine.leasesRead([node("a")], now: at(3001)) == .wait(.duplicate(other), .seconds(1)))
        #expect(machine.mapRead(map, now: at(4000)) == .readLeases)
        #expect(machine.leasesRead([], now: at(4001)) == .join)
    }

    @Test("A process whose incarnation another one took in the meantime starts again")
    func taken() throws {
        var machine = machine()
        let before = try former()
        let other = try #require(before.member(named: node("a").name))
        _ = machine.mapRead(before, now: at(0))
        _ = machine.answered([(other, .accepted)])
        #expect(machine.mapRead(try before.after(join("a", 2)), now: at(600)) == .fenced)
    }

    @Test("A node that was declared dead waits while no other member accepts a link and one may be alive")
    func unreachable() throws {
        let map = try map(join("a"), join("b"), join("c"), .declareDead([node("a")]))
        let others = map.members.filter { $0.id.name != node("a").name }
        let (b, c) = (others[0], others[1])
        typealias Case = (
            answers: [(member: Member, answer: Machine.Answer)], holders: Set<NodeID>, expected: Machine.Action
        )
        let retry = Self.configuration.retryInterval
        let cases: [Case] = [
            ([(b, .silent), (c, .accepted)], [], .join), ([(c, .another)], [], .join),
            ([(b, .refused), (c, .refused)], [], .join), ([(b, .silent), (c, .refused)], [], .join),
            (
                [(b, .silent), (c, .refused)], [node("b")],
                .wait(.unreachable(unwelcome: [], silent: [b]), retry)
            ),
            (
                [(b, .unwelcome), (c, .silent)], [], .wait(.unreachable(unwelcome: [b], silent: [c]), retry)
            ),
        ]
        for (answers, holders, expected) in cases {
            var machine = machine()
            #expect(machine.mapRead(map, now: at(0)) == .reach(others))
            var action = machine.answered(answers)
            if action == .readLeases { action = machine.leasesRead(holders, now: at(1)) }
            #expect(action == expected, "\(answers)")
        }
    }
}

import ApusCluster
import ApusCore
import Testing

@Suite("When a node that starts may join (D4)")
struct JoinStateMachineTests {
    private typealias Machine = JoinStateMachine

    private static let own = addresses("own").transport
    private static let configuration = Machine.Configuration()

    private func machine(_ incarnation: UInt64 = 2, ended: Set<UInt64> = []) -> Machine {
        Machine(local: node("a", incarnation), address: Self.own, endedProcesses: ended)
    }

    /// A map with the incarnation before, which is process 7, at another address or at this process's own, and with two
    /// other members.
    private func former(isOwn: Bool = false) throws -> ClusterMap {
        try map(
            .join(node("a"), addresses: isOwn ? addresses("own") : addresses("other"), weight: 100, process: 7),
            join("b"), join("c"))
    }

    /// Looks once more. At an address of its own the former incarnation is not asked.
    private func look(
        _ machine: inout Machine, _ map: ClusterMap, answer: Machine.Answer = .silent, holders: Set<NodeID>,
        at time: Int
    ) throws -> Machine.Action {
        let other = try #require(map.member(named: node("a").name))
        var action = machine.mapRead(map)
        if action == .reach([other]) { action = machine.answered([(other, answer)]) }
        guard action == .readLeases else { return action }
        return machine.leasesRead(holders, now: at(time))
    }

    @Test("A name that is new, that left, or whose process has ended as this machine knows, joins at once")
    func atOnce() throws {
        for map in [try map(join("b")), try map(join("a"), join("b"), .leave(node("a")))] {
            var machine = machine()
            #expect(machine.mapRead(map) == .join)
        }
        for isOwn in [false, true] {
            var machine = machine(ended: [3, 7])
            #expect(machine.mapRead(try former(isOwn: isOwn)) == .join)
        }
        // A node of an earlier version has written the map.
        var machine = machine(ended: [0])
        #expect(machine.mapRead(try map(join("a"), join("b"))) != .join)
    }

    @Test("Where the incarnation before accepts a link, a node waits, longer each time")
    func duplicate() throws {
        var machine = machine()
        let map = try former()
        let other = try #require(map.member(named: node("a").name))
        var waits: [Duration] = []
        for _ in 0..<6 {
            try #require(machine.mapRead(map) == .reach([other]))
            guard case .wait(.duplicate(other), let pause) = machine.answered([(other, .accepted)]) else {
                Issue.record("it does not wait")
                return
            }
            waits.append(pause)
        }
        #expect(waits == [.milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(4), .seconds(4)])
    }

    @Test(
        "Nothing but a process's own record shows that the incarnation before has ended while it holds a lease",
        arguments: [JoinStateMachine.Answer.another, .refused, .silent, .unwelcome, nil])
    func lease(answer: JoinStateMachine.Answer?) throws {
        var machine = machine(ended: [3])
        let map = try former(isOwn: answer == nil)
        let other = try #require(map.member(named: node("a").name))
        let action = try look(&machine, map, answer: answer ?? .silent, holders: [node("a")], at: 0)
        #expect(action == .wait(.duplicate(other), .milliseconds(500)))
    }

    @Test("Without a lease it has ended, once too few others have one to decide that, for as long as a lease lasts")
    func undecided() throws {
        let map = try former()
        let other = try #require(map.member(named: node("a").name))
        for answer in [Machine.Answer.refused, .accepted] {
            var machine = machine()
            for round in 0..<5 {
                let action = try look(&machine, map, holders: [node("b")], at: round * 500)
                #expect(action == .wait(.unended(other), .milliseconds(500)), "\(round)")
            }
            // It is asked once more.
            #expect(try look(&machine, map, holders: [node("b")], at: 2500) == .reach([other]))
            let last = machine.answered([(other, answer)])
            #expect(answer == .refused ? last == .join : last == .wait(.duplicate(other), .milliseconds(500)))
        }
        // At the own address there is nobody to ask.
        var machine = machine()
        let own = try former(isOwn: true)
        for round in 0..<5 { _ = try look(&machine, own, holders: [], at: round * 500) }
        #expect(try look(&machine, own, holders: [], at: 2500) == .join)
    }

    @Test("Half of the members decide whether one without a lease has ended; if they cannot, it has after 30 s")
    func decided() throws {
        var machine = machine()
        let map = try former(isOwn: true)
        let other = try #require(map.member(named: node("a").name))
        for round in 0..<60 {
            let action = try look(&machine, map, holders: [node("b"), node("c")], at: round * 500)
            #expect(action == .wait(.unended(other), .milliseconds(500)), "\(round)")
        }
        #expect(try look(&machine, map, holders: [node("b"), node("c")], at: 30_000) == .join)
    }

    @Test("A lease that it held for a moment, or a store that could not be read, begins the wait again")
    func interrupted() throws {
        let map = try former(isOwn: true)
        let other = try #require(map.member(named: node("a").name))
        let wait = Machine.Action.wait(.unended(other), .milliseconds(500))
        var machine = machine()
        for round in 0..<5 { _ = try look(&machine, map, holders: [], at: round * 500) }
        #expect(try look(&machine, map, holders: [node("a")], at: 2500) == .wait(.duplicate(other), .milliseconds(500)))
        for round in 6..<11 { #expect(try look(&machine, map, holders: [], at: round * 500) == wait) }
        #expect(try look(&machine, map, holders: [], at: 9000) == wait)
        // Two looks that are far apart count as a second.
        #expect(try look(&machine, map, holders: [], at: 11_000) == wait)
        #expect(try look(&machine, map, holders: [], at: 13_000) == wait)
        #expect(try look(&machine, map, holders: [], at: 13_500) == .join)
    }

    @Test("A process whose incarnation another one took in the meantime starts again")
    func taken() throws {
        var machine = machine()
        let before = try former()
        let other = try #require(before.member(named: node("a").name))
        _ = machine.mapRead(before)
        _ = machine.answered([(other, .accepted)])
        #expect(machine.mapRead(try before.after(join("a", 2))) == .fenced)
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
            #expect(machine.mapRead(map) == .reach(others))
            var action = machine.answered(answers)
            if action == .readLeases { action = machine.leasesRead(holders, now: at(1)) }
            #expect(action == expected, "\(answers)")
        }
    }
}

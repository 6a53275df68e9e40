import ApusCore
import ApusSessions
import Testing

@Suite("When identities of a node are asked again (D6)")
struct IdentityAlarmsTests {
    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: milliseconds * 1_000_000)
    }

    @Test("The earliest time is waited for, and the ones of one step together")
    func steps() throws {
        var alarms = IdentityAlarms<String>()
        let first = try required(alarms.wake("a", at: time(101)))
        #expect(first == time(120))
        #expect(alarms.wake("b", at: time(119)) == nil, "the same step")
        #expect(alarms.wake("c", at: time(150)) == nil, "later")
        let look = try required(alarms.look(at: first, now: first))
        #expect(look.due == ["a", "b"] && look.lost.isEmpty)
        let next = try required(alarms.nextLook())
        #expect(next == time(160))
        #expect(alarms.nextLook() == nil, "it is waited for")
        #expect(alarms.look(at: next, now: time(1000))?.due == ["c"])
        #expect(alarms.nextLook() == nil)
    }

    @Test("An earlier look replaces the one that is waited for")
    func replaced() throws {
        var alarms = IdentityAlarms<String>()
        let late = try required(alarms.wake("late", at: time(500)))
        let early = try required(alarms.wake("early", at: time(100)))
        #expect(early < late)
        #expect(alarms.look(at: early, now: early)?.due == ["early"])
        let again = try required(alarms.nextLook())
        #expect(again == late)
        #expect(alarms.look(at: late, now: late)?.due == ["late"])
        #expect(alarms.look(at: late, now: late) == nil, "the look that was replaced")
    }

    @Test("What is overdue comes in the order of its times")
    func overdue() throws {
        var alarms = IdentityAlarms<Int>()
        for number in [3, 1, 2] { _ = alarms.wake(number, at: time(UInt64(number) * 100)) }
        let first = time(120)
        #expect(alarms.look(at: first, now: time(900))?.due == [1, 2, 3])
    }

    @Test("Nodes that died are looked at at once, together and once")
    func nodesLost() throws {
        let nodes = ["n1", "n2"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
        var alarms = IdentityAlarms<String>()
        _ = alarms.wake("a", at: time(500))
        #expect(alarms.nodesLost([], now: time(10)) == nil)
        let look = try required(alarms.nodesLost([nodes[0]], now: time(10)))
        #expect(look == time(10))
        #expect(alarms.nodesLost([nodes[1]], now: time(11)) == nil)
        let found = try required(alarms.look(at: look, now: time(12)))
        #expect(found.lost == nodes && found.due.isEmpty)
        let next = try required(alarms.nextLook())
        #expect(alarms.look(at: next, now: next)?.lost.isEmpty == true)
    }
}

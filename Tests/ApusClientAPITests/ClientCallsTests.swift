import ApusClientAPI
import ApusCore
import Testing

@Suite("Requests of one connection (D17)")
struct ClientCallsTests {
    private typealias Machine = ClientCallsStateMachine<String>

    private static func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: milliseconds * 1_000_000)
    }

    private func started(_ result: Machine.OnRequest) -> String? {
        if case .start(let work) = result { work } else { nil }
    }

    private func refusal(_ result: Machine.OnRequest) -> ErrorCode? {
        if case .refuse(let error) = result { error.code } else { nil }
    }

    @Test("A slow request holds up no other")
    func sideBySide() {
        var machine = Machine(callsMax: 8)
        let outcome1 = machine.received(1, key: nil, deadline: Self.time(1000), "slow")
        #expect(started(outcome1) == "slow")
        let outcome2 = machine.received(2, key: nil, deadline: Self.time(1000), "quick")
        #expect(started(outcome2) == "quick")
        let outcome3 = machine.ended(2)
        #expect(outcome3.answers)
        #expect(machine.count == 1)
    }

    @Test("Requests with one key are carried out one after the other, in their order; another key goes beside them")
    func order() {
        var machine = Machine(callsMax: 8)
        let outcome4 = machine.received(1, key: "a", deadline: Self.time(1000), "first")
        #expect(started(outcome4) == "first")
        let outcome5 = machine.received(2, key: "a", deadline: Self.time(1000), "second")
        #expect(started(outcome5) == nil)
        let outcome6 = machine.received(3, key: "a", deadline: Self.time(1000), "third")
        #expect(started(outcome6) == nil)
        let outcome7 = machine.received(4, key: "b", deadline: Self.time(1000), "other")
        #expect(started(outcome7) == "other")
        let first = machine.ended(1)
        #expect(first.answers && first.next?.id == 2 && first.next?.work == "second")
        let outcome8 = machine.ended(4)
        #expect(outcome8.next == nil)
        let outcome9 = machine.ended(2)
        #expect(outcome9.next?.work == "third")
        let outcome10 = machine.ended(3)
        #expect(outcome10.next == nil)
        let outcome11 = machine.received(5, key: "a", deadline: Self.time(1000), "again")
        #expect(started(outcome11) == "again")
    }

    @Test("One request more than the bound is refused with 10007, and one number twice with 21031")
    func bounds() {
        var machine = Machine(callsMax: 2)
        _ = machine.received(1, key: nil, deadline: Self.time(1), "")
        let outcome12 = machine.received(1, key: nil, deadline: Self.time(1), "")
        #expect(refusal(outcome12) == .badParameter)
        _ = machine.received(2, key: nil, deadline: Self.time(1), "")
        let outcome13 = machine.received(3, key: nil, deadline: Self.time(1), "")
        #expect(refusal(outcome13) == .overloaded)
    }

    @Test("A cancelled request is not answered, and keeps its place until it has ended")
    func cancelled() {
        var machine = Machine(callsMax: 1)
        _ = machine.received(1, key: nil, deadline: Self.time(1000), "")
        let outcome14 = machine.cancelled(1)
        #expect(outcome14)
        let outcome15 = machine.cancelled(1)
        #expect(!outcome15)
        let outcome16 = machine.received(2, key: nil, deadline: Self.time(1000), "")
        #expect(refusal(outcome16) == .overloaded)
        let outcome17 = machine.ended(1)
        #expect(!outcome17.answers)
        let outcome18 = machine.received(2, key: nil, deadline: Self.time(1000), "next")
        #expect(started(outcome18) == "next")
    }

    @Test("A cancelled request that waits is dropped, and those behind it keep their order")
    func cancelledWaiting() {
        var machine = Machine(callsMax: 8)
        for id in UInt32(1)...3 { _ = machine.received(id, key: "a", deadline: Self.time(1000), "\(id)") }
        let outcome19 = machine.cancelled(2)
        #expect(!outcome19)
        let outcome20 = machine.ended(1)
        #expect(outcome20.next?.work == "3")
    }

    @Test("A request whose deadline has passed is answered once, and its late end with nothing")
    func overdue() {
        var machine = Machine(callsMax: 8)
        _ = machine.received(1, key: "a", deadline: Self.time(100), "runs")
        _ = machine.received(2, key: "a", deadline: Self.time(50), "waits")
        _ = machine.received(3, key: nil, deadline: Self.time(200), "later")
        #expect(machine.nextDeadline == Self.time(50))
        let overdue = machine.overdue(now: Self.time(150))
        #expect(overdue.map(\.id) == [1, 2] && overdue.map(\.runs) == [true, false])
        let outcome21 = machine.overdue(now: Self.time(150))
        #expect(outcome21.isEmpty)
        #expect(machine.nextDeadline == Self.time(200))
        let late = machine.ended(1)
        #expect(!late.answers && late.next == nil)
    }

    @Test("When the connection is gone, what runs is cancelled and nothing is answered")
    func closed() {
        var machine = Machine(callsMax: 8)
        _ = machine.received(1, key: "a", deadline: Self.time(100), "")
        _ = machine.received(2, key: "a", deadline: Self.time(100), "")
        _ = machine.received(3, key: nil, deadline: Self.time(100), "")
        let outcome22 = machine.closed()
        #expect(outcome22 == [1, 3])
        let outcome23 = machine.ended(1)
        let outcome24 = machine.ended(3)
        #expect(outcome23.next == nil && !outcome24.answers)
        #expect(machine.count == 0)
    }
}

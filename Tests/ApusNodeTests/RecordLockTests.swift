import ApusCluster
import Testing

@Suite("Who is ended while it keeps others from writing records (docs/decisions/21)")
struct RecordLockTests {
    private func holder(process: Int32, mark: UInt64, turn: UInt16 = 1) -> RecordLockStateMachine.Holder {
        RecordLockStateMachine.Holder(process: process, mark: mark, turn: turn)
    }

    @Test("A dead incarnation that holds the lock at two looks is ended; a live one and a program never are")
    func twoLooks() {
        var machine = RecordLockStateMachine()
        #expect(!machine.isWatching)
        machine.died("n2#7", mark: 7)
        #expect(machine.isWatching)
        for mark in [0, 8] as [UInt64] {
            for _ in 0..<5 { #expect(machine.looked(holder(process: 50, mark: mark)) == nil) }
        }
        #expect(machine.looked(holder(process: 42, mark: 7)) == nil)
        // Another one in between: the dead one's commit came to its end.
        #expect(machine.looked(nil) == nil)
        #expect(machine.looked(holder(process: 42, mark: 7)) == nil)
        let ended = machine.looked(holder(process: 42, mark: 7))
        #expect(ended?.process == 42 && ended?.node == "n2#7")
    }

    @Test("One that goes on and takes one turn after the other is left alone")
    func turns() {
        var machine = RecordLockStateMachine()
        machine.died("n2#7", mark: 7)
        for turn in 1...50 as ClosedRange<UInt16> {
            #expect(machine.looked(holder(process: 42, mark: 7, turn: turn)) == nil)
        }
        #expect(machine.looked(holder(process: 42, mark: 7, turn: 50))?.process == 42)
    }

    @Test("One that takes the lock long after its death, or held the gate behind a live one, is ended then")
    func later() {
        var machine = RecordLockStateMachine()
        machine.died("n2#7", mark: 7)
        // At its death a live process writes; the dead one waits for it with the gate.
        for _ in 0..<100 { #expect(machine.looked(holder(process: 50, mark: 9)) == nil) }
        #expect(machine.looked(holder(process: 42, mark: 7)) == nil)
        #expect(machine.looked(holder(process: 42, mark: 7))?.process == 42)
        // What was killed and still stands there is ended once more.
        #expect(machine.looked(holder(process: 42, mark: 7)) == nil)
        #expect(machine.looked(holder(process: 42, mark: 7))?.process == 42)
    }

    @Test("The newest deaths are remembered, up to a bound")
    func bound() {
        var machine = RecordLockStateMachine()
        for number in 0...RecordLockStateMachine.deadCountMax { machine.died("n\(number)", mark: UInt64(number + 1)) }
        func isEnded(_ mark: UInt64) -> Bool {
            _ = machine.looked(holder(process: 1, mark: mark))
            return machine.looked(holder(process: 1, mark: mark)) != nil
        }
        #expect(!isEnded(1))
        #expect(isEnded(2) && isEnded(UInt64(RecordLockStateMachine.deadCountMax + 1)))
    }
}

import ApusStorage
import Testing

@Suite("Which steps become one commit (D16)")
struct GroupCommitStateMachineTests {
    private func machine(
        steps: Int = 100, bytes: Int = 1000, batch: Int = 4
    ) -> GroupCommitStateMachine<String> {
        var limits = RecordStoreLimits()
        (limits.waitingStepCountMax, limits.waitingByteCountMax, limits.batchStepCountMax) = (steps, bytes, batch)
        return GroupCommitStateMachine(limits: limits)
    }

    @Test("The first caller starts a commit; what comes while it runs is the next one, in order")
    func groups() {
        var machine = machine()
        #expect(machine.submitted("a", stepCount: 1, byteCount: 1) == .waitsForRun)
        #expect(machine.nextCommit() == ["a"])
        #expect(machine.submitted("b", stepCount: 1, byteCount: 1) == .waits)
        #expect(machine.submitted("c", stepCount: 2, byteCount: 1) == .waits)
        #expect(machine.waitingStepCount == 3 && machine.waitingByteCount == 2)
        #expect(machine.nextCommit() == ["b", "c"])
        #expect(machine.waitingStepCount == 0 && machine.waitingByteCount == 0)
        #expect(machine.nextCommit() == nil)
        #expect(machine.submitted("d", stepCount: 1, byteCount: 1) == .waitsForRun)
    }

    @Test("A commit has a bound, but steps that were handed in together are never parted")
    func bounds() {
        var machine = machine(batch: 4)
        _ = machine.submitted("a", stepCount: 3, byteCount: 1)
        _ = machine.submitted("b", stepCount: 2, byteCount: 1)
        _ = machine.submitted("c", stepCount: 9, byteCount: 1)
        _ = machine.submitted("d", stepCount: 1, byteCount: 1)
        #expect(machine.nextCommit() == ["a"])
        #expect(machine.nextCommit() == ["b"])
        #expect(machine.nextCommit() == ["c"])
        #expect(machine.nextCommit() == ["d"])
        #expect(machine.nextCommit() == nil)
    }

    @Test("Too many steps or bytes are refused, and what waits stays")
    func overload() {
        var machine = machine(steps: 3, bytes: 10)
        #expect(machine.submitted("a", stepCount: 4, byteCount: 1) == .refused)
        #expect(machine.submitted("a", stepCount: 1, byteCount: 11) == .refused)
        #expect(machine.submitted("b", stepCount: 2, byteCount: 6) == .waitsForRun)
        #expect(machine.submitted("c", stepCount: 2, byteCount: 1) == .refused)
        #expect(machine.submitted("c", stepCount: 1, byteCount: 5) == .refused)
        #expect(machine.submitted("d", stepCount: 1, byteCount: 4) == .waits)
        #expect(machine.nextCommit() == ["b", "d"])
        #expect(machine.submitted("e", stepCount: 3, byteCount: 10) == .waits)
    }

    @Test("Where a commit fails whole, what waits fails with it, and the next caller starts anew")
    func failed() {
        var machine = machine()
        _ = machine.submitted("a", stepCount: 1, byteCount: 1)
        #expect(machine.nextCommit() == ["a"])
        _ = machine.submitted("b", stepCount: 1, byteCount: 1)
        #expect(machine.commitFailed() == ["b"])
        #expect(machine.nextCommit() == nil)
        #expect(machine.submitted("c", stepCount: 100, byteCount: 1000) == .waitsForRun)
    }

    @Test("Once closed, what waits is still committed, and nothing more is taken")
    func closed() {
        var machine = machine()
        _ = machine.submitted("a", stepCount: 1, byteCount: 1)
        machine.closed()
        #expect(machine.submitted("b", stepCount: 1, byteCount: 1) == .isClosed)
        #expect(machine.nextCommit() == ["a"])
        #expect(machine.nextCommit() == nil)
        #expect(machine.submitted("c", stepCount: 1, byteCount: 1) == .isClosed)
    }

    @Test("After a commit of several the next one waits for them, beside those who wait; a lone one waits for nobody")
    func worthWaiting() {
        var machine = machine(batch: 8)
        #expect(!machine.isWorthWaiting)
        #expect(machine.submitted("a", stepCount: 1, byteCount: 1) == .waitsForRun)
        #expect(machine.nextCommit() == ["a"])
        for item in ["b", "c"] { #expect(machine.submitted(item, stepCount: 1, byteCount: 1) == .waits) }
        machine.committed()
        #expect(!machine.isWorthWaiting, "a lone caller waits for nobody")
        #expect(machine.nextCommit() == ["b", "c"])
        for item in ["d", "e"] { #expect(machine.submitted(item, stepCount: 1, byteCount: 1) == .waits) }
        #expect(!machine.isWorthWaiting, "the commit runs")
        machine.committed()
        #expect(machine.isWorthWaiting, "two wait, and two were answered")
        #expect(machine.submitted("b", stepCount: 1, byteCount: 1) == .waits)
        #expect(machine.isWorthWaiting, "one of them is back")
        #expect(machine.submitted("c", stepCount: 1, byteCount: 1) == .waits)
        #expect(!machine.isWorthWaiting)
        #expect(machine.nextCommit() == ["d", "e", "b", "c"], "halves that take turns become one")
        machine.committed()
        #expect(machine.isWorthWaiting)
        machine.closed()
        #expect(!machine.isWorthWaiting)
    }

    @Test("A full batch waits for nobody")
    func fullBatch() {
        var machine = machine(batch: 3)
        #expect(machine.submitted("a", stepCount: 1, byteCount: 1) == .waitsForRun)
        #expect(machine.submitted("b", stepCount: 1, byteCount: 1) == .waits)
        #expect(machine.nextCommit() == ["a", "b"])
        machine.committed()
        for item in ["c", "d"] { #expect(machine.submitted(item, stepCount: 1, byteCount: 1) == .waits) }
        #expect(!machine.isWorthWaiting, "those who were answered are back")
        #expect(machine.nextCommit() == ["c", "d"])
        for item in ["e", "f", "g"] { #expect(machine.submitted(item, stepCount: 1, byteCount: 1) == .waits) }
        machine.committed()
        #expect(!machine.isWorthWaiting, "two were answered, but there is no room for them")
    }

    @Test("After a commit of one caller with many steps nobody is waited for")
    func oneCaller() {
        var machine = machine()
        #expect(machine.submitted("many", stepCount: 50, byteCount: 1) == .waitsForRun)
        #expect(machine.nextCommit() == ["many"])
        machine.committed()
        #expect(!machine.isWorthWaiting)
    }
}

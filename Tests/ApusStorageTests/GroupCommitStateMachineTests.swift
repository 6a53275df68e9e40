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

    @Test("After a commit of several the next one is worth a moment, until as many wait; after a lone one it is not")
    func worthWaiting() {
        var limits = RecordStoreLimits()
        limits.batchStepCountMax = 3
        var machine = GroupCommitStateMachine<String>(limits: limits)
        #expect(!machine.isWorthWaiting)
        #expect(machine.submitted("a", stepCount: 1, byteCount: 1) == .waitsForRun)
        #expect(machine.nextCommit() == ["a"])
        #expect(!machine.isWorthWaiting, "a lone caller waits for nobody")
        for item in ["b", "c", "d", "e", "f"] { #expect(machine.submitted(item, stepCount: 1, byteCount: 1) == .waits) }
        #expect(machine.nextCommit() == ["b", "c", "d"])
        #expect(machine.isWorthWaiting, "two wait, and three were answered")
        #expect(machine.submitted("g", stepCount: 1, byteCount: 1) == .waits)
        #expect(!machine.isWorthWaiting)
        #expect(machine.nextCommit() == ["e", "f", "g"])
        #expect(machine.isWorthWaiting)
        machine.closed()
        #expect(!machine.isWorthWaiting)
    }

    @Test("After a commit of one caller with many steps nobody is waited for")
    func oneCaller() {
        var machine = machine()
        #expect(machine.submitted("many", stepCount: 50, byteCount: 1) == .waitsForRun)
        #expect(machine.nextCommit() == ["many"])
        #expect(!machine.isWorthWaiting)
    }
}

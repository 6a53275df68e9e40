import DequeModule

/// Decides which steps become one commit, and which must be refused.
///
/// One commit at a time. What comes while it runs waits, in order, and is the next one. So a commit takes as many steps
/// as there are callers, and a lone caller waits for nobody. Callers that were answered together come back together:
/// the next commit waits a moment for them (``isWorthWaiting``), beside those who wait already. Else the first one back
/// would have a commit of its own, or two halves of the callers would take turns. Pure; `Item` is what the shell keeps
/// of some steps.
package struct GroupCommitStateMachine<Item> {
    /// What becomes of steps that were handed in.
    package enum OnSubmit: Equatable {
        /// They wait for the commit that runs.
        case waits
        /// They wait, and nobody commits: the shell is to.
        case waitsForRun
        /// Too many wait.
        case refused
        case isClosed
    }

    private enum State {
        case idle
        case committing
        case closed
    }

    private struct Waiting {
        var item: Item
        var stepCount: Int
        var byteCount: Int
    }

    private let limits: RecordStoreLimits
    private var state = State.idle
    private var waiting: Deque<Waiting> = []
    package private(set) var waitingStepCount = 0
    package private(set) var waitingByteCount = 0
    /// Callers of the commit that began last.
    private var callerCount = 0
    /// Those who are waiting once all whom the last commit answered have handed in more.
    private var expectedCount = 0

    package init(limits: RecordStoreLimits) { self.limits = limits }

    /// Steps came that are to be committed in one commit, each on its own.
    package mutating func submitted(_ item: Item, stepCount: Int, byteCount: Int) -> OnSubmit {
        switch state {
        case .closed: return .isClosed
        case .idle, .committing: break
        }
        guard waitingStepCount + stepCount <= limits.waitingStepCountMax,
            waitingByteCount + byteCount <= limits.waitingByteCountMax
        else { return .refused }
        waiting.append(Waiting(item: item, stepCount: stepCount, byteCount: byteCount))
        waitingStepCount += stepCount
        waitingByteCount += byteCount
        guard case .idle = state else { return .waits }
        state = .committing
        return .waitsForRun
    }

    /// The commit before this one is over, or there was none: the next one, or nil if nothing waits.
    package mutating func nextCommit() -> [Item]? {
        var items: [Item] = []
        var stepCount = 0
        while let next = waiting.first, items.isEmpty || stepCount + next.stepCount <= limits.batchStepCountMax {
            stepCount += next.stepCount
            items.append(next.item)
            remove(waiting.removeFirst())
        }
        (callerCount, expectedCount) = (items.count, 0)
        guard items.isEmpty else { return items }
        if case .committing = state { state = .idle }
        return nil
    }

    /// The commit that ``nextCommit()`` gave is durable, and its callers are about to be answered.
    package mutating func committed() {
        guard callerCount > 1, case .committing = state else { return }
        expectedCount = waiting.count + callerCount
    }

    /// The commit that just ended had several callers, and not all of them are back: they are about to hand in more.
    package var isWorthWaiting: Bool {
        guard case .committing = state else { return false }
        return waiting.count < expectedCount && waitingStepCount < limits.batchStepCountMax
    }

    /// A commit failed whole: what waits would wait for the same again, and fails with it.
    package mutating func commitFailed() -> [Item] {
        defer {
            waiting = []
            (waitingStepCount, waitingByteCount) = (0, 0)
        }
        return waiting.map(\.item)
    }

    /// Nothing is taken from now on; what waits is still committed.
    package mutating func closed() { state = .closed }

    private mutating func remove(_ removed: Waiting) {
        waitingStepCount -= removed.stepCount
        waitingByteCount -= removed.byteCount
    }
}

import DequeModule

/// Decides which steps become one commit, and which are refused.
///
/// There is one commit at a time. Steps that arrive while it runs wait, in order, and form the next one. A commit thus
/// has as many steps as there are callers, and a single caller does not wait for others. Callers that were answered
/// together usually return together, so the next commit waits a moment for them (``isWorthWaiting``), beside those that
/// wait already. Otherwise the first one to return would have a commit of its own, or two halves of the callers would
/// alternate.
///
/// Pure value. `Item` is what the shell stores for some steps.
package struct GroupCommitStateMachine<Item> {
    /// The result of a submission.
    package enum OnSubmit: Equatable {
        /// They wait for the current commit.
        case waits
        /// They wait, and no commit runs: the shell must start one.
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
    /// The number of waiting callers once all callers of the last commit have submitted again.
    private var expectedCount = 0

    package init(limits: RecordStoreLimits) { self.limits = limits }

    /// Steps were submitted. They go into one commit, and each succeeds or fails on its own.
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

    /// The last commit has ended, or there was none. Returns the next commit; nil if nothing waits.
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

    /// The commit from ``nextCommit()`` is durable, and its callers are about to be answered.
    package mutating func committed() {
        guard callerCount > 1, case .committing = state else { return }
        expectedCount = waiting.count + callerCount
    }

    /// True if the commit that just ended had several callers, and some have not submitted again yet.
    package var isWorthWaiting: Bool {
        guard case .committing = state else { return false }
        return waiting.count < expectedCount && waitingStepCount < limits.batchStepCountMax
    }

    /// A commit failed as a whole. The waiting steps would meet the same failure, and fail with it.
    package mutating func commitFailed() -> [Item] {
        defer {
            waiting = []
            (waitingStepCount, waitingByteCount) = (0, 0)
        }
        return waiting.map(\.item)
    }

    /// No steps are accepted from now on. Waiting steps are still committed.
    package mutating func closed() { state = .closed }

    private mutating func remove(_ removed: Waiting) {
        waitingStepCount -= removed.stepCount
        waitingByteCount -= removed.byteCount
    }
}

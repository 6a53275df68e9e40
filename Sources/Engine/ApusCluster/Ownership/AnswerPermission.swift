package import ApusCore
import CoreMetrics
import Synchronization

/// Whether this node may answer for entities with kept state, as its promises allow (``PromiseStateMachine``).
///
/// A check costs a load and a reading of the clock. Answers that are ready without permission wait with their entities,
/// which ask to be woken (``wait(_:)``).
///
/// Concurrency model: any thread. The time is an `Atomic`, written by the heartbeat thread; the waiters are behind a
/// `Mutex`.
package final class AnswerPermission: Sendable {
    private struct State {
        var waiters: [@Sendable () -> Void] = []
        var isClosed = false
    }

    private let until = Atomic<UInt64>(.max)
    private let waiterCount = Atomic<Int>(0)
    private let refusalNanoseconds = Atomic<UInt64>(1_000_000_000)
    private let state = Mutex(State())
    /// Answers that had to wait.
    private let heldCount = Counter(label: "apus_cluster_answers_held_total")

    package init() {}

    /// True if the node may answer now.
    package func isGranted(now: MonotonicTime) -> Bool { now.nanoseconds < until.load(ordering: .acquiring) }

    /// True if the permission has been away for so long that new requests are refused.
    package func refuses(now: MonotonicTime) -> Bool {
        let end = until.load(ordering: .relaxed)
        return now.nanoseconds > end && now.nanoseconds - end > refusalNanoseconds.load(ordering: .relaxed)
    }

    /// True if entities wait.
    package var hasWaiters: Bool { waiterCount.load(ordering: .acquiring) > 0 }

    /// Calls the closure when the permission may be back. It must not wait. Check the permission once more afterwards:
    /// it may have come back in the meantime.
    package func wait(_ wake: @escaping @Sendable () -> Void) {
        state.withLock { state in
            state.waiters.append(wake)
            waiterCount.store(state.waiters.count, ordering: .releasing)
        }
    }

    /// Counts an answer that has to wait.
    package func countHeld() { heldCount.increment() }

    /// Calls all who wait.
    package func wakeAll() {
        let waiters = state.withLock { state in
            defer { state.waiters = [] }
            waiterCount.store(0, ordering: .releasing)
            return state.waiters
        }
        for wake in waiters { wake() }
    }

    /// The node takes part in a cluster from now on: it needs promises.
    package func begin(refusalDelay: Duration, now: MonotonicTime) {
        refusalNanoseconds.store(UInt64(clamping: refusalDelay.nanoseconds), ordering: .relaxed)
        until.store(now.nanoseconds, ordering: .releasing)
    }

    /// Sets the time before which the node may answer.
    package func publish(_ time: MonotonicTime) {
        guard until.load(ordering: .relaxed) != time.nanoseconds else { return }
        state.withLock { state in
            if !state.isClosed { until.store(time.nanoseconds, ordering: .releasing) }
        }
    }

    /// The node is no member any more. It never answers again.
    package func close(now: MonotonicTime) {
        state.withLock { state in
            guard !state.isClosed else { return }
            state.isClosed = true
            until.store(min(now.nanoseconds, until.load(ordering: .relaxed)), ordering: .releasing)
        }
    }
}

import Synchronization

/// Work of a task that another thread can cancel, without a task of its own.
///
/// A child of a task group cannot be cancelled by itself, and a task beside all groups would have no owner. This
/// cancels the task that runs the work, which must do nothing afterwards that its cancellation would harm.
///
/// Concurrency model: ``cancel()`` may be called from any thread, before, while and after the work runs.
package final class CancellableWork: Sendable {
    // The task is used under the lock, and `run` takes it away before its closure ends.
    private enum State: @unchecked Sendable {  // SAFETY: see above.
        case waiting
        case running(UnsafeCurrentTask)
        case cancelled
        case ended
    }

    private let state = Mutex(State.waiting)

    package init() {}

    /// Runs the work. Its task is cancelled from the start where ``cancel()`` was called before.
    package func run<Result: Sendable>(_ body: @Sendable () async -> Result) async -> Result {
        await withUnsafeCurrentTask { @Sendable task in
            if let task {
                nonisolated(unsafe) let task = task  // SAFETY: see `State`.
                state.withLock { state in
                    if case .cancelled = state { task.cancel() } else { state = .running(task) }
                }
            }
            defer { state.withLock { $0 = .ended } }
            return await body()
        }
    }

    package func cancel() {
        state.withLock { state in
            switch state {
            case .running(let task): task.cancel()
            case .waiting: state = .cancelled
            case .cancelled, .ended: break
            }
        }
    }
}

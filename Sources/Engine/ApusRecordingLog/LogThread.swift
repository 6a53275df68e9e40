import ApusCore
import ApusThreads
import DequeModule
import Dispatch
import Synchronization

/// A thread for blocking calls, one after another.
///
/// Concurrency model: any task or thread calls it. A `Mutex` guards the queue. The thread ends at ``stop()``, after
//what / was added before.
final class LogThread: Sendable {
    private final class Jobs: Sendable {
        private struct State {
            var jobs: Deque<@Sendable () -> Void> = []
            var isStopped = false
            var isEnded = false
            var waiting: [CheckedContinuation<Void, Never>] = []
        }

        private let state = Mutex(State())
        private let signal = DispatchSemaphore(value: 0)

        /// - Returns: false after ``stop()``.
        func add(_ job: @escaping @Sendable () -> Void) -> Bool {
            let isAdded = state.withLock { state in
                guard !state.isStopped else { return false }
                state.jobs.append(job)
                return true
            }
            if isAdded { signal.signal() }
            return isAdded
        }

        func stop() {
            state.withLock { $0.isStopped = true }
            signal.signal()
        }

        func run() {
            while true {
                signal.wait()
                guard let job = state.withLock({ $0.jobs.popFirst() }) else { break }
                job()
            }
            let waiting = state.withLock { state in
                state.isEnded = true
                return state.waiting
            }
            for continuation in waiting { continuation.resume() }
        }

        func ended() async {
            await withCheckedContinuation { continuation in
                let isEnded = state.withLock { state in
                    if !state.isEnded { state.waiting.append(continuation) }
                    return state.isEnded
                }
                if isEnded { continuation.resume() }
            }
        }
    }

    private let jobs: Jobs
    private let thread: OSThread

    /// - Throws: 10018 if the system cannot create a thread.
    init(name: String) throws(ApusError) {
        let jobs = Jobs()
        self.jobs = jobs
        thread = try OSThread(name: name) { jobs.run() }
    }

    deinit { jobs.stop() }

    /// Does the work on the thread, and waits for it. The task's cancellation does not end the wait.
    ///
    /// - Throws: 10021 after ``stop()``, and what the work throws.
    func run<Value: Sendable>(
        _ work: @escaping @Sendable () throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        let result: Result<Value, ApusError> = await withCheckedContinuation { continuation in
            let isAdded = jobs.add { continuation.resume(returning: Result { () throws(ApusError) in try work() }) }
            if !isAdded {
                continuation.resume(returning: .failure(ApusError(.storageFailed, "the recording log was closed")))
            }
        }
        return try result.get()
    }

    /// No more work is taken.
    func stop() { jobs.stop() }

    /// Waits until the work that was added before ``stop()`` is done.
    func ended() async { await jobs.ended() }
}

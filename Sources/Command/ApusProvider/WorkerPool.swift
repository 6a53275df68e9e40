import ApusCore
import ApusThreads
import Dispatch
import Synchronization

/// Threads that perform jobs, and a bounded queue of jobs before them.
///
/// Concurrency model: any thread may submit; ``stop()`` is called once.
final class WorkerPool: Sendable {
    private struct State {
        var waiting: [@Sendable () -> Void] = []
        var runningCount = 0
        var isStopped = false
    }

    private let state = Mutex(State())
    /// One signal for each waiting job, and one for each thread at the end.
    private let jobs = DispatchSemaphore(value: 0)
    private let threads = Mutex<[OSThread]>([])
    private let workerCount: Int
    private let queueMax: Int

    /// - Throws: 10018 if a thread cannot be created.
    init(name: String, workerCount: Int, queueMax: Int) throws(ApusError) {
        (self.workerCount, self.queueMax) = (workerCount, queueMax)
        for index in 0..<workerCount {
            let thread = try OSThread(name: "\(name)-\(index)") { [self] in perform() }
            threads.withLock { $0.append(thread) }
        }
    }

    /// The jobs that are running or waiting.
    var count: Int { state.withLock { $0.waiting.count + $0.runningCount } }

    /// Leaves a job to the threads. False if as many wait as may, or after ``stop()``.
    func submit(_ job: @escaping @Sendable () -> Void) -> Bool {
        let isTaken = state.withLock { state in
            let isFree = state.runningCount + state.waiting.count < workerCount + queueMax
            guard isFree, !state.isStopped else { return false }
            state.waiting.append(job)
            return true
        }
        if isTaken { jobs.signal() }
        return isTaken
    }

    private func perform() {
        while true {
            jobs.wait()
            let job: (@Sendable () -> Void)? = state.withLock { state in
                guard !state.waiting.isEmpty else { return nil }
                state.runningCount += 1
                return state.waiting.removeFirst()
            }
            guard let job else { return }
            job()
            state.withLock { $0.runningCount -= 1 }
        }
    }

    /// Performs what waits, and ends the threads. Blocks until they have ended.
    func stop() {
        state.withLock { $0.isStopped = true }
        for _ in 0..<workerCount { jobs.signal() }
        for thread in threads.withLock({ $0 }) { thread.join() }
    }
}

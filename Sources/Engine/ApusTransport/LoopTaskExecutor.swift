package import NIOCore

/// Runs tasks on one event loop, in the order in which they became ready.
///
/// A handler that starts and goes on there needs no other thread: its reply leaves with the loop's
/// next flush. Measured beside the shared pool at 64 callers: 2.3 against 3.8 µs of CPU per call (D1).
package final class LoopTaskExecutor: TaskExecutor {
    private let loop: any EventLoop

    package init(_ loop: any EventLoop) { self.loop = loop }

    package func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        let executor = asUnownedTaskExecutor()
        loop.execute { job.runSynchronously(on: executor) }
    }
}

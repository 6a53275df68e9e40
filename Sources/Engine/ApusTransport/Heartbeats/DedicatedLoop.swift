import Dispatch
package import NIOCore
import NIOPosix

/// One OS thread with an event loop that nothing else runs on.
///
/// Detection and decisions run on such threads: on the shared pool a 50 ms timer was measured 800 to 1,000 ms
/// late under load, on a thread of its own 50 to 54 ms (D4).
package final class DedicatedLoop: Sendable {
    package let loop: any EventLoop
    /// Runs tasks on the thread.
    package let executor: LoopTaskExecutor
    private let group: MultiThreadedEventLoopGroup

    package init() {
        group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        loop = group.next()
        executor = LoopTaskExecutor(loop)
    }

    /// The thread ends when nobody holds it any more, so that a late caller never meets a loop that is gone.
    deinit { group.shutdownGracefully(queue: .global()) { _ in } }
}

import Dispatch
package import NIOCore
import NIOPosix

/// One OS thread with an event loop for one purpose.
///
/// Failure detection and decisions run on such threads. Under load a 50 ms timer was measured 800 to 1,000 ms late on
/// the shared pool, and 50 to 54 ms on a thread of its own (D4).
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

    /// The thread ends when the last reference is released, so a late caller never uses a loop that has ended.
    deinit { group.shutdownGracefully(queue: .global()) { _ in } }
}

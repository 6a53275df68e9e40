import ApusCore
import Foundation
import Synchronization

/// How late this machine's timers are while a test runs. A test adds it to a bound on time that other load would break.
///
/// A thread sleeps for ten milliseconds at a time until ``stop()``.
final class TimerLateness: Sendable {
    private let longest = Mutex(Duration.zero)
    private let isStopped = Atomic(false)

    init() {
        Thread.detachNewThread { [self] in
            while !isStopped.load(ordering: .relaxed) {
                let due = MonotonicTime.now() + .milliseconds(10)
                Thread.sleep(forTimeInterval: 0.01)
                let late = MonotonicTime.now() - due
                longest.withLock { $0 = max($0, late) }
            }
        }
    }

    /// The longest delay of a timer so far. Ends the measurement.
    func stop() -> Duration {
        isStopped.store(true, ordering: .relaxed)
        return longest.withLock { $0 }
    }
}

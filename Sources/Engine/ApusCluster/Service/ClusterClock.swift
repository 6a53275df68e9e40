import ApusCore
import Synchronization

/// The wall clock by which tokens, tickets and grants are validated: this machine's clock, or, if it differs from the
/// cluster's, the median of the cluster's clocks (``ClockStateMachine``).
///
/// Concurrency: any thread.
package final class ClusterClock: Sendable {
    private let adjustmentMilliseconds = Atomic<Int64>(0)

    package init() {}

    /// True if this machine's clock agrees with the cluster's, as far as this node can tell.
    package var isTrusted: Bool { adjustmentMilliseconds.load(ordering: .relaxed) == 0 }

    /// The cluster's time, in Unix seconds.
    package func wallSeconds() -> Int64 { wallMilliseconds() / 1000 }

    /// The cluster's time, in Unix milliseconds.
    package func wallMilliseconds() -> Int64 {
        WallClock.milliseconds() + adjustmentMilliseconds.load(ordering: .relaxed)
    }

    func adjust(by span: Duration) {
        adjustmentMilliseconds.store(span.nanoseconds / 1_000_000, ordering: .relaxed)
    }
}

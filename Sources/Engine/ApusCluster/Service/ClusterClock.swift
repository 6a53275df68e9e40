import ApusCore
import Synchronization

/// The wall clock by which tokens, tickets, grants and times of entities are judged: this machine's clock, or, if it
/// differs from the cluster's, the median of the cluster's clocks (``ClockStateMachine``).
///
/// Between two judgements it advances with the monotonic clock, so a step of the machine's clock changes nothing before
/// the other nodes' clocks were compared with it.
///
/// Concurrency: any thread.
package final class ClusterClock: Sendable {
    private let time: Mutex<ClusterTime>
    /// ``ClusterTime/base``, for readers.
    private let base: Atomic<Int64>
    private let isAdjusted = Atomic(false)

    package init() {
        let time = ClusterTime(wall: WallClock.milliseconds(), now: Self.now())
        base = Atomic(time.base)
        self.time = Mutex(time)
    }

    /// True if this machine's clock agrees with the cluster's, as far as this node can tell.
    package var isTrusted: Bool { !isAdjusted.load(ordering: .relaxed) }

    /// The cluster's time, in Unix seconds.
    package func wallSeconds() -> Int64 { wallMilliseconds() / 1000 }

    /// The cluster's time, in Unix milliseconds.
    package func wallMilliseconds() -> Int64 { Self.now() + base.load(ordering: .relaxed) }

    /// The clocks were compared.
    func judged(_ report: ClockStateMachine.Report) {
        let adjustment = report.adjustment.nanoseconds / 1_000_000
        isAdjusted.store(adjustment != 0, ordering: .relaxed)
        let newBase = time.withLock { time in
            time.judged(
                wall: WallClock.milliseconds() + adjustment, now: Self.now(), isCompared: report.offsets.count > 1)
            return time.base
        }
        base.store(newBase, ordering: .relaxed)
    }

    /// The monotonic clock, in milliseconds.
    private static func now() -> Int64 { Int64(MonotonicTime.now().nanoseconds / 1_000_000) }
}

/// The cluster's time at one node, relative to its monotonic clock.
///
/// A small change of the wall clock is followed, since clocks are slewed. A step is followed if the clock was compared
/// with those of two other nodes, or if it stays for ``doubtMax`` judgements: a node of a cluster of one or two has
/// nobody to ask.
///
/// Pure value. Times are in milliseconds.
package struct ClusterTime: Sendable, Equatable {
    /// The smallest change that counts as a step.
    package static let stepMin: Int64 = 500
    /// Judgements, which come every second, for which a step that nobody confirms is not followed.
    package static let doubtMax = 3

    /// The cluster's time minus the monotonic one.
    package private(set) var base: Int64
    private var doubts = 0

    package init(wall: Int64, now: Int64) { base = wall - now }

    /// - Parameters:
    ///   - wall: the machine's clock, corrected by what is known of the others'.
    ///   - isCompared: the clocks of two other nodes or more were known.
    package mutating func judged(wall: Int64, now: Int64, isCompared: Bool) {
        let found = wall - now
        let isStep = (found - base).magnitude > UInt64(Self.stepMin)
        guard isStep, !isCompared, doubts < Self.doubtMax else {
            (base, doubts) = (found, 0)
            return
        }
        doubts += 1
    }
}

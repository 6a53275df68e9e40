#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A point on the machine's monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds.
///
/// State machines receive the time as this value. Wall clocks never decide anything (D4).
public struct MonotonicTime: Sendable, Hashable, Comparable, CustomStringConvertible {
    public var nanoseconds: UInt64

    public init(nanoseconds: UInt64) { self.nanoseconds = nanoseconds }

    /// The current time. Only shells call this; state machines receive the time.
    public static func now() -> MonotonicTime {
        var time = timespec()
        clock_gettime(CLOCK_MONOTONIC, &time)
        return MonotonicTime(nanoseconds: UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec))
    }

    /// The CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
    public static func usedByThisThread() -> Duration {
        var time = timespec()
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return .seconds(time.tv_sec) + .nanoseconds(time.tv_nsec)
    }

    /// Zero: the clock's start.
    public static let zero = MonotonicTime(nanoseconds: 0)

    public static func < (left: Self, right: Self) -> Bool { left.nanoseconds < right.nanoseconds }

    public static func + (time: Self, span: Duration) -> Self {
        Self(nanoseconds: time.nanoseconds &+ UInt64(bitPattern: span.nanoseconds))
    }

    /// The duration from `right` to `left`; negative if `left` is earlier.
    public static func - (left: Self, right: Self) -> Duration {
        .nanoseconds(Int64(bitPattern: left.nanoseconds &- right.nanoseconds))
    }

    /// The time until this one.
    ///
    /// - Throws: 10005 if it has passed.
    public func timeLeft(from now: MonotonicTime = .now()) throws(ApusError) -> Duration {
        guard now < self else { throw ApusError(.deadlineExceeded) }
        return self - now
    }

    public var description: String { "\(nanoseconds)ns" }
}

/// The machine's wall clock. It may be wrong and may jump; only tokens and reports use it.
public enum WallClock {
    /// Unix milliseconds.
    public static func milliseconds() -> Int64 {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }
}

extension Duration {
    /// The duration in whole nanoseconds. Durations over 292 years are clamped.
    public var nanoseconds: Int64 {
        let (seconds, attoseconds) = components
        let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
        return overflow ? (seconds < 0 ? .min : .max) : product &+ attoseconds / 1_000_000_000
    }

    /// The duration in milliseconds, with fractions.
    public var milliseconds: Double { Double(nanoseconds) / 1_000_000 }
}

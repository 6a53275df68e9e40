/// The waits between attempts that fail: the first one, then twice as long each time, up to the longest.
///
/// Pure value. A caller that spreads its attempts multiplies the wait by a random number.
package struct Backoff: Sendable, Equatable {
    /// How often ``wait(after:first:longest:)`` doubles at most, so that no series of failures overflows.
    private static let doublingsMax = 16

    private let first: Duration
    private let longest: Duration
    private var wait: Duration

    package init(first: Duration, longest: Duration) { (self.first, self.longest, wait) = (first, longest, first) }

    /// True if the next wait is the first one.
    package var isFirst: Bool { wait == first }

    /// The wait after one more failure.
    package mutating func next() -> Duration {
        defer { wait = min(wait * 2, longest) }
        return wait
    }

    /// An attempt has succeeded: the next wait is the first one again.
    package mutating func reset() { wait = first }

    /// The wait after so many failures in a row, of which there is at least one.
    package static func wait(after failures: Int, first: Duration, longest: Duration) -> Duration {
        min(first * (1 << doublings(failures)), longest)
    }

    /// The same in milliseconds, for times that are stored.
    package static func wait(after failures: Int, first: Int64, longest: Int64) -> Int64 {
        min(first << doublings(failures), longest)
    }

    private static func doublings(_ failures: Int) -> Int { min(max(failures, 1) - 1, doublingsMax) }
}

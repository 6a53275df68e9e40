import ApusCore

/// The wait of an input before it tries again: doubling, bounded, with jitter, so that many agents that lost one camera
/// host do not return at once. Pure value.
package struct Reconnect: Sendable {
    package static let waitMin = Duration.milliseconds(500)
    package static let waitMax = Duration.seconds(15)
    /// After a connection that lasted this long, the next wait is the shortest again.
    package static let goodAfter = Duration.seconds(30)

    private var backoff: Backoff

    package init(from shortest: Duration = Self.waitMin, to longest: Duration = Self.waitMax) {
        backoff = Backoff(first: shortest, longest: longest)
    }

    /// The wait after a failure.
    ///
    /// - Parameters:
    ///   - lasted: the duration for which the connection delivered media.
    ///   - unit: a random number from 0 up to 1.
    package mutating func nextWait(lasted: Duration, unit: Double) -> Duration {
        if lasted >= Self.goodAfter { backoff.reset() }
        return .nanoseconds(Int64(Double(backoff.next().nanoseconds) * (0.75 + unit / 2)))
    }
}

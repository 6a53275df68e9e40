/// The pause of a listener when the system has no descriptor or memory for another connection.
///
/// The first pause is short, so that service resumes at once when a descriptor is free. Each further one is twice as
/// long, up to ``delayMax``, so that a listener at the limit uses little CPU. After ``delayMax`` without an error the
/// pauses start again with the shortest one.
///
/// Pure value; the time is passed in.
package struct AcceptBackoff: Sendable {
    package static let delayMin = Duration.milliseconds(50)
    package static let delayMax = Duration.milliseconds(500)

    private var backoff = Backoff(first: delayMin, longest: delayMax)
    /// The end of the last pause; nil before the first.
    private var pausedUntil: MonotonicTime?

    package init() {}

    /// The system refused a connection. Returns the time for the next attempt.
    package mutating func exhausted(at now: MonotonicTime) -> MonotonicTime {
        if let pausedUntil, now - pausedUntil >= Self.delayMax { backoff.reset() }
        let next = now + backoff.next()
        pausedUntil = next
        return next
    }
}

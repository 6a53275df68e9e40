import ApusCore

/// An estimate of the answer time of one kind of message on a client's connection, smoothed as in RFC 6298 §2.
///
/// Pure value.
struct LineEstimate: Sendable {
    private var smoothed: Duration?
    private var variation = Duration.zero
    /// Doubles with each answer that did not come (RFC 6298 §5.5), until one comes.
    private var backoff = 1

    /// True after the first measurement.
    var isMeasured: Bool { smoothed != nil }

    mutating func measured(_ span: Duration) {
        backoff = 1
        guard let smoothed else {
            self.smoothed = span
            variation = span / 2
            return
        }
        let difference = span > smoothed ? span - smoothed : smoothed - span
        variation = (variation * 3 + difference) / 4
        self.smoothed = (smoothed * 7 + span) / 8
    }

    mutating func timedOut() { backoff = min(backoff * 2, Self.backoffMax) }
    private static let backoffMax = 64

    /// The time after which an alternative is tried; nil without a measurement.
    var delay: Duration? { smoothed.map { ($0 + variation * 4) * backoff } }
}

/// Observes the connection between a client and its node: the round trip, and how late bytes arrive.
///
/// Pure value.
struct LineWatch: Sendable {
    /// The shortest round trip on this connection, so that delays of a busy node do not count.
    private(set) var roundTrip: Duration
    /// The recent maximum of the silence beyond the keepalive.
    private(set) var jitter: Duration

    init(roundTrip: Duration, jitter: Duration) {
        self.roundTrip = roundTrip
        self.jitter = jitter
    }

    mutating func measured(roundTrip: Duration) { self.roundTrip = min(self.roundTrip, roundTrip) }

    /// Bytes arrived after a gap. With a stream open, the node sends at least every `keepalive`.
    mutating func heard(after gap: Duration, keepalive: Duration) {
        // A maximum decays slowly: a gap of a second within a minute.
        jitter = max(gap - keepalive, jitter - gap / 64, .zero)
    }
}

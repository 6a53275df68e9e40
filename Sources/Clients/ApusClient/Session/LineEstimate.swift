import ApusCore

/// How long one kind of answer takes on a client's line, smoothed as RFC 6298 §2 smooths round trips.
///
/// Pure.
struct LineEstimate: Sendable {
    private var smoothed: Duration?
    private var variation = Duration.zero
    /// Doubles with each answer that never came (RFC 6298 §5.5), until one comes.
    private var backoff = 1

    /// True once something was measured.
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

    /// How long an answer may take before something else is tried; nil if nothing was measured.
    var delay: Duration? { smoothed.map { ($0 + variation * 4) * backoff } }
}

/// What is seen of the line between a client and the node that it is connected to: its round trip, and how much later
/// than promised bytes come.
///
/// Pure.
struct LineWatch: Sendable {
    /// The shortest that was seen on this connection: what a busy node adds does not count.
    private(set) var roundTrip: Duration
    /// How much longer than the keepalive the line was silent, lately and at worst.
    private(set) var jitter: Duration

    init(roundTrip: Duration, jitter: Duration) {
        self.roundTrip = roundTrip
        self.jitter = jitter
    }

    mutating func measured(roundTrip: Duration) { self.roundTrip = min(self.roundTrip, roundTrip) }

    /// Bytes came after a gap; with a stream open the node lets none be longer than `keepalive`.
    mutating func heard(after gap: Duration, keepalive: Duration) {
        // What was seen once is forgotten slowly: a gap of a second in the course of a minute.
        jitter = max(gap - keepalive, jitter - gap / 64, .zero)
    }
}

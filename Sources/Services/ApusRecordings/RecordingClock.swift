/// Maps a publisher's time to UTC: the cluster's clock at the arrival of a frame less its presentation time, by the
/// frames that arrived with the least delay.
///
/// A publisher may begin with a burst of past frames, so the smallest distance of the first seconds counts. Later the
/// clock follows the arrivals by at most 500 ppm, so that a device's drift does not add up and a late frame moves no
/// other. A distance of more than a second that lasts is a step.
///
/// Pure value. All times are microseconds.
package struct RecordingClock: Sendable, Equatable {
    /// How long the smallest distance replaces the first one.
    package static let settleTime: Int64 = 3_000_000
    /// The fastest correction: 500 µs each second.
    package static let correctionMax: Int64 = 500
    /// A larger distance is a step if it lasts for two segments.
    package static let stepMin: Int64 = 1_000_000

    /// UTC less the publisher's time.
    package private(set) var offset: Int64
    /// The clock has made a step: the next run begins with a new clock.
    package private(set) var hasStepped = false
    private var settlesUntil: Int64?
    private var smallest: Int64?
    private var stepCount = 0

    /// A clock that begins with a frame.
    package init(pts: Int64, received: Int64) {
        offset = received &- pts
        settlesUntil = received &+ Self.settleTime
    }

    /// A clock that goes on.
    package init(offset: Int64) { self.offset = offset }

    /// A frame arrived.
    package mutating func observe(pts: Int64, received: Int64) {
        let distance = received &- pts
        if let until = settlesUntil {
            if received <= until { offset = min(offset, distance) } else { settlesUntil = nil }
        }
        smallest = min(smallest ?? distance, distance)
    }

    /// A segment has ended.
    package mutating func endSegment(duration: Int64) {
        guard settlesUntil == nil, let smallest else { return }
        self.smallest = nil
        let distance = smallest &- offset
        if distance.magnitude > UInt64(Self.stepMin) {
            stepCount += 1
            hasStepped = stepCount > 1
            return
        }
        stepCount = 0
        let most = max(0, duration) / 1_000_000 * Self.correctionMax
        offset += max(-most, min(most, distance))
    }
}

import ApusMedia

/// The times of one track of a camera's connection, from its RTP timestamps and from when the packets arrive.
///
/// Times are microseconds since the connection's first packet. A track begins when its first packet arrives, so sound
/// that comes later is not early. Then the timestamps count, also over pauses, because a network delivers late and in
/// bursts. Arrival times decide where both cannot be true:
/// - a step forward that arrives sooner than it says, or a step far back, is a jump of the camera's clock;
/// - packets that stay late for longer than a network delays them say that the camera's clock stood still.
///
/// The time then continues with what has passed by arrival. Pure value.
package struct RTPClock: Sendable {
    /// A smaller step of the media's time, in microseconds, is believed.
    static let jumpMin: Int64 = 5_000_000
    /// How much media and arrival may differ, in microseconds.
    static let tolerance: Int64 = 2_000_000
    /// Packets that are late for this long, in microseconds, are not late any more.
    static let lateMax: Int64 = 5_000_000

    private struct Last {
        var timestamp: UInt32
        /// Units of the clock since the first packet.
        var units: Int64
        var time: Int64
        var arrival: Int64
    }

    private let rate: Int64
    private var last: Last?
    /// The last packet before the timestamps started again.
    private var restarted: Last?
    /// The time of the first packet's timestamp.
    private var base: Int64 = 0
    /// The shortest delay so far: arrival minus time.
    private var delayMin: Int64 = .max
    /// Since when, how often, and at least how much packets are later than that.
    private var late: (since: Int64, count: Int, excess: Int64)?
    /// What a sender report said: the difference between the camera's wall clock and this clock.
    private(set) var wallOffset: Int64?

    /// - Parameter rate: units a second, above 0.
    package init(rate: UInt32) { self.rate = Int64(max(rate, 1)) }

    /// The time of a packet.
    ///
    /// - Parameter arrival: microseconds since the connection's first packet.
    package mutating func time(of timestamp: UInt32, arrival: Int64) -> Int64 {
        guard let last else {
            base = restarted.map { $0.time + max(arrival - $0.arrival, 1) } ?? arrival
            self.last = Last(timestamp: timestamp, units: 0, time: base, arrival: arrival)
            delayMin = arrival - base
            return base
        }
        var units = last.units + Int64(Int32(bitPattern: timestamp &- last.timestamp))
        var time = base + microseconds(units)
        let (step, passed) = (time - last.time, max(arrival - last.arrival, 0))
        let isAhead = step > Self.jumpMin && arrival - time < delayMin - Self.tolerance
        if isAhead || step < -Self.jumpMin {
            time = last.time + max(passed, 1)
            // From here on, so that no number of jumps adds up.
            (units, base, delayMin) = (0, time, arrival - time)
            (late, wallOffset) = (nil, nil)
        } else {
            let excess = noteDelay(arrival - time, arrival)
            moveBase(by: excess)
            time += excess
        }
        self.last = Last(timestamp: timestamp, units: units, time: time, arrival: arrival)
        return time
    }

    /// The track's timestamps start again, at any value.
    package mutating func restart() {
        guard let before = last else { return }
        restarted = before
        (last, delayMin, late, wallOffset) = (nil, .max, nil, nil)
    }

    /// The time of a frame some units after a packet's.
    func time(_ time: Int64, plus units: Int64) -> Int64 { time + microseconds(units) }

    /// Notes a sender report of the track.
    package mutating func take(_ report: RTPSenderReport) {
        guard let last else { return }
        let units = last.units + Int64(Int32(bitPattern: report.timestamp &- last.timestamp))
        wallOffset = report.wallMicroseconds - (base + microseconds(units))
    }

    /// Moves the clock so that it agrees with that of another track, as both cameras' reports say. A small difference
    /// is not heard, and a large one is an error of the reports: then the arrival counts.
    package mutating func follow(_ other: RTPClock) {
        guard let mine = wallOffset, let theirs = other.wallOffset else { return }
        let difference = mine - theirs
        guard (Self.skewMin...Self.tolerance).contains(abs(difference)) else { return }
        moveBase(by: difference)
        last?.time += difference
        if delayMin != .max { delayMin -= difference }
        wallOffset = theirs
    }
    /// A smaller difference of the tracks, in microseconds, is not corrected.
    static let skewMin: Int64 = 40_000

    private func microseconds(_ units: Int64) -> Int64 {
        units.multipliedReportingOverflow(by: 1_000_000).overflow
            ? MediaTimeline.lineMax : units * 1_000_000 / rate
    }

    private mutating func moveBase(by difference: Int64) {
        base += difference
        if difference != 0 { wallOffset = nil }
    }

    /// - Returns: by how much the clock stood still.
    private mutating func noteDelay(_ delay: Int64, _ arrival: Int64) -> Int64 {
        if delay < delayMin { delayMin = delay }
        let excess = delay - delayMin
        guard excess > Self.tolerance else {
            late = nil
            return 0
        }
        var now = late ?? (arrival, 0, excess)
        now.count += 1
        now.excess = min(now.excess, excess)
        late = now
        // One late packet says nothing, however long it took.
        guard arrival - now.since >= Self.lateMax, now.count > 2 else { return 0 }
        late = nil
        return now.excess
    }
}

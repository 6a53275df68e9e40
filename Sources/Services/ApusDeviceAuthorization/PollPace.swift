package import ApusCore

/// How often the devices that wait for their token ask (RFC 8628 §3.5). One that asks too early is to ask less often
/// from then on: its interval grows by five seconds each time.
///
/// A node counts what it has answered itself. At another node a device begins with the first interval again.
///
/// Pure: time comes in.
package struct PollPace: Sendable {
    private struct Entry: Sendable {
        var next: MonotonicTime
        var interval: Duration
        var end: MonotonicTime
    }

    private static let step = Duration.seconds(5)

    private let interval: Duration
    private let lifetime: Duration
    private let countMax: Int
    /// By the first bytes of the hash of the device code.
    private var entries: [UInt64: Entry] = [:]

    /// - Parameters:
    ///   - interval: the first interval.
    ///   - lifetime: that of a code.
    ///   - countMax: codes that are counted at once. One more is asked to be slower.
    package init(interval: Duration, lifetime: Duration, countMax: Int = 65_536) {
        (self.interval, self.lifetime, self.countMax) = (interval, lifetime, countMax)
    }

    package var count: Int { entries.count }

    /// False if the device asks too early.
    package mutating func poll(_ code: UInt64, at now: MonotonicTime) -> Bool {
        guard var entry = entries[code] else {
            if entries.count >= countMax { entries = entries.filter { $0.value.end > now } }
            guard entries.count < countMax else { return false }
            entries[code] = Entry(next: now + interval, interval: interval, end: now + lifetime)
            return true
        }
        let isInTime = now >= entry.next
        if !isInTime { entry.interval = min(entry.interval + Self.step, lifetime) }
        entry.next = now + entry.interval
        entries[code] = entry
        return isInTime
    }

    /// The code is not asked about any more.
    package mutating func forget(_ code: UInt64) { entries[code] = nil }
}

package import ApusCore

/// Finds the days of a zone that have recordings (IV-E3), without reading all hours: once a day is known to have one,
/// the rest of its hours is skipped.
///
/// The owner reads ``pageHours`` hours from ``next`` on, and passes them to ``add(_:isLast:)``, until there is no next.
///
/// Pure.
package struct RecordingDayScan: Sendable {
    /// The most hours that are passed at once. While a channel is recorded without a pause, the last hour of a day has
    /// the segment that reaches into the next one, so one hour a day is read.
    package static let pageHours = 1
    /// The most days; later ones are not listed.
    package static let daysMax = 400
    /// The furthest zone, in seconds from UTC.
    package static let zoneMax: Int32 = 64_800
    private static let day: Int64 = 86_400_000_000

    private let view: RecordingView
    private let zone: Int64
    /// The days before this time are decided, in microseconds.
    private var time: Int64
    /// The beginnings of the days, in Unix seconds, in their order.
    package private(set) var days: [Int64] = []
    /// The hour from which on to read; nil: all days are found.
    package private(set) var next: Int64?

    /// - Parameters:
    ///   - zone: seconds east of UTC.
    ///   - start: the time from which on days are found, in microseconds of UTC.
    /// - Throws: 21031 if there is no such zone.
    package init(zone: Int32, from start: Int64, in view: RecordingView) throws(ApusError) {
        guard (-Self.zoneMax...Self.zoneMax).contains(zone) else {
            throw ApusError(.badParameter, "a time zone is at most \(Self.zoneMax) seconds from UTC")
        }
        (self.zone, self.view, time) = (Int64(zone) * 1_000_000, view, start)
        next = RecordingIndex.hour(of: start) - 1
    }

    /// Takes hours from ``next`` on.
    ///
    /// - Parameters:
    ///   - hours: the next ones that there are, in their order.
    ///   - isLast: there are no more.
    package mutating func add(_ hours: [RecordingHour], isLast: Bool) {
        for (start, end) in hours.flatMap(ranges).sorted(by: { $0.start < $1.start }) {
            var place = max(start, time)
            while place < end, days.count < Self.daysMax {
                let number = (place + zone).floored(by: Self.day)
                days.append((number * Self.day - zone) / 1_000_000)
                time = (number + 1) * Self.day - zone
                place = time
            }
        }
        guard !isLast, let last = hours.last?.hour, days.count < Self.daysMax else {
            next = nil
            return
        }
        // A segment of the hour before a day begins may reach into the day.
        next = max(last + 1, RecordingIndex.hour(of: time) - 1)
    }

    /// The times of the segments of an hour that can be found and are not decided.
    private func ranges(_ hour: RecordingHour) -> [(start: Int64, end: Int64)] {
        return hour.segments.compactMap { segment in
            guard segment.endUs > time, segment.run < hour.runs.count, view.shows(segment) else { return nil }
            return (segment.startUs, segment.endUs)
        }
    }
}

extension Int64 {
    /// The quotient, rounded down.
    package func floored(by divisor: Int64) -> Int64 {
        let (quotient, remainder) = quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? quotient - 1 : quotient
    }
}

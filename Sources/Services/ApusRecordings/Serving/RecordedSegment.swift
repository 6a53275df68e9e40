import ApusCore
package import ApusMedia
package import Foundation

/// What of an account's recordings of a channel can be found.
///
/// Pure.
package struct RecordingView: Sendable, Hashable {
    /// UTC in microseconds. Nothing that ends before is found: the account had no plan then.
    package var sinceMicroseconds: Int64
    /// UTC in microseconds. What ends before is found only if it is protected: its days are over.
    package var keptSinceMicroseconds: Int64
    /// Unix milliseconds.
    package var nowMilliseconds: Int64

    package init(
        sinceMicroseconds: Int64 = .min, keptSinceMicroseconds: Int64 = .min, nowMilliseconds: Int64 = .max
    ) {
        self.sinceMicroseconds = sinceMicroseconds
        self.keptSinceMicroseconds = keptSinceMicroseconds
        self.nowMilliseconds = nowMilliseconds
    }

    /// - Parameters:
    ///   - plan: the plan of the channel; one of another account, or nil, hides nothing.
    ///   - now: Unix milliseconds.
    package init(_ plan: RecordingPlan?, of channel: RecordedChannel, now: Int64) {
        self.init(nowMilliseconds: now)
        guard let plan, plan.account == channel.account.rawValue else { return }
        sinceMicroseconds = Self.microseconds(plan.sinceMs)
        keptSinceMicroseconds = Self.microseconds(now - Int64(plan.days) * 86_400_000)
    }

    private static func microseconds(_ milliseconds: Int64) -> Int64 {
        let (product, isOver) = milliseconds.multipliedReportingOverflow(by: 1000)
        return isOver ? (milliseconds < 0 ? .min : .max) : product
    }

    func shows(_ segment: RecordingSegment) -> Bool {
        guard !segment.deleted, segment.endUs > sinceMicroseconds else { return false }
        return segment.endUs > keptSinceMicroseconds || segment.protectedUntilMs > nowMilliseconds
    }
}

/// A segment that can be found, with what its hour and its run say of it.
///
/// Pure.
package struct RecordedSegment: Sendable, Hashable {
    /// The key of its hour: hours since 1970.
    package var hour: Int64
    package var record: RecordingSegment
    /// The identity of its run: 16 bytes.
    package var run: Data
    /// The tracks of its run.
    package var tracks: [RecordingTrack]

    /// UTC in microseconds.
    package var start: Int64 { record.startUs }
    /// UTC in microseconds.
    package var end: Int64 { record.endUs }
    package var reason: SegmentEnd { UInt8(exactly: record.end).flatMap { SegmentEnd(rawValue: $0) } ?? .limit }
    /// The bytes of the object that are `sidx` and media.
    package var mediaRange: Range<Int> {
        let start = Int(record.initBytes)
        return start..<max(start, Int(clamping: record.mediaEnd))
    }

    /// The segments of hours that can be found, in the order of their times.
    package static func all(_ hours: [RecordingHour], in view: RecordingView) -> [Self] {
        var found: [Self] = []
        for hour in hours {
            for segment in hour.segments where view.shows(segment) {
                // A damaged record hides its segments, and no others.
                guard segment.run < hour.runs.count else { continue }
                let run = hour.runs[Int(segment.run)]
                found.append(Self(hour: hour.hour, record: segment, run: run.id, tracks: run.tracks))
            }
        }
        return found.sorted { ($0.start, $0.end) < ($1.start, $1.end) }
    }
}

extension RecordingSegment {
    /// A longer duration is a damaged record: no segment has an hour.
    private static let durationMax: UInt64 = 3_600_000_000

    /// UTC in microseconds.
    package var endUs: Int64 { startUs &+ Int64(min(durationUs, Self.durationMax)) }
}

package import ApusContract
package import ApusMedia
import SwiftProtobuf

/// A time of which there is a recording without a gap.
///
/// Pure.
package struct RecordingStretch: Sendable, Hashable {
    /// UTC in microseconds.
    package var start: Int64
    package var end: Int64
    /// Why it ended; ``SegmentEnd/continues`` if it did not, or if the range ends with it.
    package var reason: SegmentEnd
    /// What follows was deleted: the run went on.
    package var isCut = false
}

/// The time line of a range (IV-E4): sorted, merged, and with its gaps.
///
/// Pure.
package enum RecordingTimeLine {
    /// The longest range, in seconds. Of a longer one, the first part is listed.
    package static let secondsMax: Int64 = 86_400
    /// A shorter distance between segments is no gap, unless frames are missing there or the stream ended: the
    /// distance between two frames at ten a second.
    package static let toleranceMicroseconds: Int64 = 100_000

    /// - Parameters:
    ///   - segments: in the order of their times.
    ///   - range: in microseconds of UTC.
    package static func stretches(_ segments: [RecordedSegment], in range: Range<Int64>) -> [RecordingStretch] {
        var found: [RecordingStretch] = []
        for segment in segments where segment.end > range.lowerBound && segment.start < range.upperBound {
            let (start, end) = (max(segment.start, range.lowerBound), min(segment.end, range.upperBound))
            guard let last = found.last else {
                found.append(RecordingStretch(start: start, end: end, reason: segment.reason))
                continue
            }
            if start - last.end <= (last.reason.isInterruption ? 0 : toleranceMicroseconds) {
                guard end > last.end else { continue }
                found[found.count - 1].end = end
                found[found.count - 1].reason = segment.reason
            } else {
                found[found.count - 1].isCut = last.reason == .continues
                found.append(RecordingStretch(start: start, end: end, reason: segment.reason))
            }
        }
        if let last = found.last, last.end == range.upperBound { found[found.count - 1].reason = .continues }
        return found
    }
}

extension SegmentEnd {
    /// Something is missing behind it, however short the distance.
    fileprivate var isInterruption: Bool {
        switch self {
        case .continues, .epoch, .configuration, .limit: false
        case .gap, .clock, .stopped, .event: true
        }
    }
}

extension RecordingStretch {
    /// As clients get it.
    package var client: ClientRecordingTime {
        .with {
            ($0.startMs, $0.endMs) = (start.floored(by: 1000), end.floored(by: 1000))
            // Rounded to the nearest, two stretches never overlap.
            ($0.start, $0.end) = (
                (start + 500_000).floored(by: 1_000_000), (end + 500_000).floored(by: 1_000_000)
            )
            $0.reason = isCut ? .deleted : reason.client
        }
    }
}

extension SegmentEnd {
    fileprivate var client: ClientRecordingEnd {
        switch self {
        case .continues: .unspecified
        case .epoch: .epoch
        case .configuration: .configuration
        case .gap: .gap
        case .clock: .clock
        case .stopped: .stopped
        case .limit: .limit
        case .event: .event
        }
    }
}

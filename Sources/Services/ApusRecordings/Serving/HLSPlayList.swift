import Foundation

/// The text of a media play list of HLS (RFC 8216).
///
/// Each segment is a range of its object, and each run begins with the head of its first object (`EXT-X-MAP`). The time
/// line of the media continues within a run only, so each run, and what follows a gap, is behind a discontinuity and
/// has its date.
///
/// Pure.
package struct HLSPlayList: Sendable {
    /// How the list may change.
    package enum Kind: Sendable, Hashable {
        /// It never changes.
        case complete
        /// Segments are added at its end, until `isEnded`.
        case growing(isEnded: Bool)
    }

    /// The target duration of a list that grows, which may not change: no segment is longer, in seconds.
    package static let growingTargetSeconds: Int64 = 60

    package var segments: [RecordedSegment]
    package var kind: Kind
    /// Where a player begins, in microseconds of UTC.
    package var start: Int64

    /// - Parameter segments: in the order of their times.
    package init(_ segments: [RecordedSegment], _ kind: Kind, start: Int64) {
        (self.segments, self.kind, self.start) = (segments, kind, start)
    }

    /// The name of a segment below the address of the list.
    package static func name(hour: Int64, object: String) -> String { "\(hour)-\(object).mp4" }

    /// The hour and the object of such a name; nil if it is not one.
    package static func place(named name: String) -> (hour: Int64, object: String)? {
        let bytes = name.utf8
        guard bytes.count <= 160, name.hasSuffix(".mp4"),
            let dash = bytes.dropFirst().firstIndex(of: UInt8(ascii: "-")),
            let hour = Int64(name[..<dash]), (-99_999_999...99_999_999).contains(hour)
        else { return nil }
        let object = name[bytes.index(after: dash)...].dropLast(4)
        return object.isEmpty ? nil : (hour, String(object))
    }

    package var text: String {
        var lines = [
            "#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-TARGETDURATION:\(targetSeconds)", "#EXT-X-MEDIA-SEQUENCE:0",
            "#EXT-X-PLAYLIST-TYPE:\(kind == .complete ? "VOD" : "EVENT")",
        ]
        if segments.allSatisfy(\.record.startsWithKey) { lines.append("#EXT-X-INDEPENDENT-SEGMENTS") }
        if let first = segments.first, start > first.start {
            lines.append("#EXT-X-START:TIME-OFFSET=\(Self.seconds(start - first.start)),PRECISE=YES")
        }
        var previous: RecordedSegment?
        for segment in segments {
            add(segment, after: previous, to: &lines)
            previous = segment
        }
        if kind != .growing(isEnded: false) { lines.append("#EXT-X-ENDLIST") }
        return lines.joined(separator: "\n") + "\n"
    }

    /// The longest segment, in whole seconds.
    private var targetSeconds: Int64 {
        let longest = segments.map { $0.end - $0.start }.max() ?? 0
        let rounded = max(1, (longest + 999_999) / 1_000_000)
        return kind == .complete ? rounded : max(rounded, Self.growingTargetSeconds)
    }

    private func add(_ segment: RecordedSegment, after previous: RecordedSegment?, to lines: inout [String]) {
        let isSameRun = previous?.run == segment.run
        let distance = previous.map { (segment.start - $0.end).magnitude } ?? 0
        let name = Self.name(hour: segment.hour, object: segment.record.object)
        if !isSameRun || distance > UInt64(RecordingTimeLine.toleranceMicroseconds) {
            if previous != nil { lines.append("#EXT-X-DISCONTINUITY") }
            if !isSameRun {
                lines.append("#EXT-X-MAP:URI=\"\(name)\",BYTERANGE=\"\(segment.record.initBytes)@0\"")
            }
            lines.append("#EXT-X-PROGRAM-DATE-TIME:\(CivilTime.utc(microseconds: segment.start))")
        }
        let media = segment.mediaRange
        lines.append("#EXTINF:\(Self.seconds(segment.end - segment.start)),")
        lines.append("#EXT-X-BYTERANGE:\(media.count)@\(media.lowerBound)")
        lines.append(name)
    }

    /// With six decimal places.
    private static func seconds(_ microseconds: Int64) -> String {
        let fraction = "\(microseconds % 1_000_000)"
        return "\(microseconds / 1_000_000)." + String(repeating: "0", count: 6 - fraction.utf8.count) + fraction
    }
}

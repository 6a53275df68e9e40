import ApusCore
import ApusCrypto
import ApusMedia
import Foundation
import NIOCore

/// A stretch of recordings as one MP4 file.
///
/// The first segment begins with the last fragment at or before the start at which a decoder can start, and the last
/// one ends with the fragment that has the end. Both need the index of these two objects (`sidx`). All else is known
/// from the segments, so that every node makes the same file.
struct RecordingExport: Sendable {
    /// The largest `sidx` that is read, in bytes: that of 5,000 fragments.
    private static let indexByteCountMax = 64 << 10

    let file: VirtualMP4
    /// For each part of the file, the index of its segment.
    let indexes: [Int]
    /// Another one for another file.
    let tag: String

    /// - Parameters:
    ///   - segments: at least one, in the order of their times.
    ///   - start: microseconds of UTC.
    ///   - end: microseconds of UTC.
    ///   - read: bytes of the object of a segment.
    /// - Throws: 8002 if nothing is left, 10002 if it has too many segments, 10001 if an object is not a segment, and
    ///   what `read` throws.
    init(
        _ segments: [RecordedSegment], from start: Int64, to end: Int64,
        read: @Sendable (Int, Range<Int>) async throws(ApusError) -> ByteBuffer
    ) async throws(ApusError) {
        var (parts, indexes, mark) = ([VirtualMP4.Part](), [Int](), [UInt8]())
        for (index, segment) in segments.enumerated() {
            var part = try Self.part(segment)
            if segment.start < start || segment.end > end {
                let media = segment.mediaRange
                let head = try await read(
                    index, media.lowerBound..<min(media.upperBound, media.lowerBound + Self.indexByteCountMax))
                let shift = part.shiftMicroseconds
                guard let cut = SegmentIndexBox(head, at: media)?.cut(from: start - shift, to: end - shift) else {
                    continue
                }
                (part.mediaRange, part.fragmentOffsets) = (cut.range, cut.offsets)
                part.startMicroseconds = max(part.startMicroseconds, cut.start + shift)
                part.durationMicroseconds = min(segment.end, cut.end + shift) - part.startMicroseconds
            }
            guard part.durationMicroseconds > 0 else { continue }
            parts.append(part)
            indexes.append(index)
            mark += Array("\(segment.hour)/\(segment.record.object)/\(part.mediaRange)\n".utf8)
        }
        guard !parts.isEmpty else { throw RecordingReader.unknown }
        file = try VirtualMP4(parts, from: start)
        (self.indexes, tag) = (indexes, Self.tag(mark + Array("\(start)".utf8)))
    }

    static func tag(_ bytes: [UInt8]) -> String { Hexadecimal.text(Array(SHA256.hash(data: bytes).prefix(16))) }

    private static func part(_ segment: RecordedSegment) throws(ApusError) -> VirtualMP4.Part {
        var tracks: [SegmentTrack] = []
        for track in segment.tracks {
            let configuration = try TrackConfiguration(decoding: ByteBuffer(bytes: track.configuration))
            tracks.append(SegmentTrack(number: UInt8(truncatingIfNeeded: track.number), configuration: configuration))
        }
        return VirtualMP4.Part(
            tracks: tracks, mediaRange: segment.mediaRange, startMicroseconds: segment.start,
            durationMicroseconds: segment.end - segment.start,
            shiftMicroseconds: segment.start - segment.record.mediaStartUs)
    }
}

/// The `sidx` of a segment (ISO/IEC 14496-12 §8.16.3), as ``SegmentWriter`` writes it: version 1, microseconds.
///
/// Pure.
struct SegmentIndexBox {
    struct Fragment: Equatable {
        var offset: Int
        var byteCount: Int
        /// On the time line of the object, in microseconds.
        var start: Int64
        var duration: Int64
        var startsWithKey: Bool
    }

    var fragments: [Fragment] = []

    /// Nil if the bytes do not begin with such a box, or it does not fit the media.
    ///
    /// - Parameters:
    ///   - bytes: the first ones of the media.
    ///   - media: where the media is in the object.
    init?(_ bytes: ByteBuffer, at media: Range<Int>) {
        var bytes = bytes
        guard
            let (size, type, flags, _, timescale) = bytes.readMultipleIntegers(
                as: (UInt32, UInt32, UInt32, UInt32, UInt32).self),
            type == 0x7369_6478, flags == 0x0100_0000, timescale == 1_000_000,
            let (first, offset, _, count) = bytes.readMultipleIntegers(as: (UInt64, UInt64, UInt16, UInt16).self),
            offset == 0, size == 40 + UInt32(count) * 12, var start = Int64(exactly: first), start < 1 << 57
        else { return nil }
        var place = media.lowerBound + Int(size)
        for _ in 0..<count {
            guard let (length, duration, access) = bytes.readMultipleIntegers(as: (UInt32, UInt32, UInt32).self),
                length > 0, length < 1 << 31, Int(length) <= media.upperBound - place
            else { return nil }
            fragments.append(
                Fragment(
                    offset: place, byteCount: Int(length), start: start, duration: Int64(duration),
                    startsWithKey: access & 0x8000_0000 != 0))
            place += Int(length)
            start += Int64(duration)
        }
        guard place == media.upperBound, !fragments.isEmpty else { return nil }
    }

    /// The fragments for a time, on the time line of the object: from the last one before the start at which a decoder
    /// can start, to the one that has the end. Nil if there is none.
    func cut(
        from start: Int64, to end: Int64
    ) -> (range: Range<Int>, offsets: [Int], start: Int64, end: Int64)? {
        let first = fragments.lastIndex { $0.startsWithKey && $0.start <= start } ?? 0
        guard let last = fragments.lastIndex(where: { $0.start < end }), last >= first else { return nil }
        let chosen = fragments[first...last]
        let (from, to) = (fragments[first], fragments[last])
        return (
            from.offset..<to.offset + to.byteCount, chosen.map(\.offset), from.start, to.start + to.duration
        )
    }
}

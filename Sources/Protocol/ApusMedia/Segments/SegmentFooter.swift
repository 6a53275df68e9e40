package import ApusCore
import ApusCrypto
import Foundation
package import NIOCore

/// All that an index needs to know of a segment. It is the last box of the segment's object, of type `uuid`, which
/// players skip; an index can be rebuilt from these boxes alone.
///
/// Layout: the box's header and ``boxType``; the fields in big endian as ``encode(into:)`` writes them; for each frame
/// a byte of flags and variable-length numbers, of which most have one byte; 16 bytes of SHA-256 of the box up to here;
/// the trailer, with which a reader of the object's end finds the box.
package struct SegmentFooter: Sendable, Hashable {
    /// The extended type of the box (ISO/IEC 14496-12 §4.2).
    static let boxType: [UInt8] = [
        0x41, 0x70, 0x75, 0x73, 0x53, 0x65, 0x67, 0x6d, 0xa5, 0x1e, 0x4d, 0x29, 0x8c, 0x3f, 0x70, 0x01,
    ]
    /// The first bytes of the trailer; the size of the box follows.
    static let trailerMagic = Array("ApusSegment1".utf8)
    /// The size of the trailer, in bytes: the end of every object.
    package static let trailerByteCount = 16
    /// The largest footer, in bytes.
    package static let byteCountMax = 4 << 20
    /// The most frames of a segment.
    package static let frameCountMax = 32_768
    static let version: UInt8 = 1
    static let checkByteCount = 16
    static let digestByteCount = 32

    /// A `moof` and its `mdat`.
    package struct Fragment: Sendable, Hashable {
        /// Where the `moof` begins in the object.
        package var offset: Int
        /// Of `moof` and `mdat` together.
        package var byteCount: Int
        /// Of the `moof`.
        package var headByteCount: Int
        /// The fragment's frames, as indexes in ``SegmentFooter/frames``.
        package var frames: Range<Int>

        package var range: Range<Int> { offset..<offset + byteCount }
    }

    /// A frame, and where it is.
    package struct Frame: Sendable, Hashable {
        package var track: UInt8
        package var position: FramePosition
        /// As the writer was given it; see ``SegmentFrame``.
        package var decodeMicroseconds: Int64
        package var compositionMicroseconds: Int32
        package var flags: MediaFlags
        /// The payload's bytes in the object.
        package var range: Range<Int>

        package var presentationMicroseconds: Int64 { decodeMicroseconds + Int64(compositionMicroseconds) }
    }

    package var description: SegmentDescription
    package var end: SegmentEnd
    /// The earliest presentation time, on the segment's time line.
    package var startMicroseconds: Int64
    /// From ``startMicroseconds`` to the end of the last frame.
    package var durationMicroseconds: Int64
    /// SHA-256 of the payloads of all frames, in their order.
    package var payloadDigest: [UInt8]
    /// The size of `ftyp` and `moov`, with which the object begins.
    package var initByteCount: Int
    /// The bytes of the object from `sidx` to the end of the last `mdat`: a media segment of HLS or DASH.
    package var mediaRange: Range<Int>
    /// In their order, at least one.
    package var fragments: [Fragment]
    /// In the order of their positions, at least one.
    package var frames: [Frame]

    /// The position of the first frame.
    package var first: FramePosition { frames.first?.position ?? FramePosition(epoch: 0, sequence: 0) }
    /// The position of the last frame.
    package var last: FramePosition { frames.last?.position ?? FramePosition(epoch: 0, sequence: 0) }
    /// The end of the segment on its time line.
    package var endMicroseconds: Int64 { startMicroseconds + durationMicroseconds }

    /// True if the fragment's first frame of the video track is a key frame, or the segment has no frame of one.
    package func startsWithKey(_ fragment: Fragment) -> Bool {
        let video = description.tracks.first { $0.configuration.codec.isVideo }?.number
        guard let video, frames.contains(where: { $0.track == video }) else { return true }
        return frames[fragment.frames].first { $0.track == video }?.flags.contains(.key) ?? false
    }

    /// Compares the payloads of the object with ``payloadDigest``.
    ///
    /// - Parameter object: all bytes of the object.
    /// - Throws: 10001 if they differ.
    package func check(_ object: ByteBuffer) throws(ApusError) {
        var hash = SHA256()
        for frame in frames {
            let place = object.readerIndex + frame.range.lowerBound
            guard let payload = object.getSlice(at: place, length: frame.range.count) else {
                throw ApusError(.malformed, "the segment's object is shorter than its footer says")
            }
            payload.withUnsafeReadableBytes { hash.update(data: $0) }
        }
        guard hash.finalize() == payloadDigest else {
            throw ApusError(.malformed, "the segment's payloads are not those that were written")
        }
    }
}

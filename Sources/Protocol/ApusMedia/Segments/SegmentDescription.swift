import ApusCore
import ApusCrypto
package import NIOCore

/// The identity of a run: a stretch of a channel's recording with one publisher's epoch, one set of configurations and
/// no step of its clock.
package struct SegmentRunID: Sendable, Hashable, CustomStringConvertible {
    package static let byteCount = 16

    /// 16 bytes.
    package let bytes: [UInt8]

    /// Nil unless there are 16 bytes.
    package init?(bytes: [UInt8]) {
        guard bytes.count == Self.byteCount else { return nil }
        self.bytes = bytes
    }

    /// The id of a run that a text identifies.
    package init(of text: String) { bytes = Array(SHA256.hash(data: Array(text.utf8)).prefix(Self.byteCount)) }

    /// 32 hexadecimal digits.
    package var description: String { Hexadecimal.text(bytes) }
}

/// A track of a segment: its number in the stream and its decoder's configuration.
package struct SegmentTrack: Sendable, Hashable {
    /// The publisher's number of the track.
    package var number: UInt8
    package var configuration: TrackConfiguration

    package init(number: UInt8, configuration: TrackConfiguration) {
        (self.number, self.configuration) = (number, configuration)
    }
}

/// What is known of a segment before its frames.
package struct SegmentDescription: Sendable, Hashable {
    /// The longest label, in bytes.
    package static let labelByteCountMax = 512
    /// The latest time on a segment's time line, and the latest anchor, in microseconds in either direction. It is far
    /// beyond ``MediaHeader/ptsMicrosecondsMax``, and sums of a few such times do not overflow.
    package static let microsecondsMax: Int64 = 1 << 56

    /// What the segment belongs to, so that an index can be rebuilt from the object alone. It is not interpreted.
    package var label: [UInt8]
    package var run: SegmentRunID
    /// UTC at time 0 of the segment's time line, in microseconds since 1970; 0 if the time line itself is UTC.
    package var anchorMicroseconds: Int64
    /// 1 to 8 tracks with different numbers.
    package var tracks: [SegmentTrack]
    /// The number of the segment's first fragment (`mfhd`).
    package var sequence: UInt32

    package init(
        label: [UInt8], run: SegmentRunID, anchorMicroseconds: Int64, tracks: [SegmentTrack], sequence: UInt32
    ) {
        self.label = label
        self.run = run
        self.anchorMicroseconds = anchorMicroseconds
        self.tracks = tracks
        self.sequence = sequence
    }

    /// - Throws: 21031 if a bound is exceeded, or two tracks have one number.
    func check() throws(ApusError) {
        guard label.count <= Self.labelByteCountMax else {
            throw ApusError(.badParameter, "a segment's label has at most \(Self.labelByteCountMax) bytes")
        }
        guard (1...Int(TrackConfiguration.trackCountMax)).contains(tracks.count),
            Set(tracks.map(\.number)).count == tracks.count
        else {
            throw ApusError(
                .badParameter, "a segment has 1 to \(TrackConfiguration.trackCountMax) tracks with different numbers")
        }
        guard tracks.allSatisfy({ $0.configuration.extraData.count <= TrackConfiguration.extraByteCountMax }) else {
            throw ApusError(.badParameter, "a track's configuration is too long")
        }
        guard anchorMicroseconds.magnitude <= UInt64(Self.microsecondsMax) else {
            throw ApusError(.badParameter, "the anchor of a segment is out of bounds")
        }
    }
}

/// Why a segment ended where it did.
package enum SegmentEnd: UInt8, Sendable, Hashable, CaseIterable {
    /// The run continues in the next segment.
    case continues = 0
    /// Another publisher, or the publisher began again.
    case epoch = 1
    /// The configurations changed.
    case configuration = 2
    /// Frames are missing.
    case gap = 3
    /// The publisher's clock made a step.
    case clock = 4
    /// The publisher ended.
    case stopped = 5
    /// A limit was reached.
    case limit = 6
    /// The event that was recorded ended.
    case event = 7
}

/// One frame of a segment: a whole picture or packet of sound (``FrameJoiner``).
package struct SegmentFrame: Sendable {
    /// The flags that a segment keeps.
    static let flagsKept: MediaFlags = [.key, .discardable]

    package var track: UInt8
    package var position: FramePosition
    /// On the segment's time line, from 0 on.
    package var decodeMicroseconds: Int64
    /// Presentation time minus decode time.
    package var compositionMicroseconds: Int32
    /// ``MediaFlags/key`` and ``MediaFlags/discardable`` count.
    package var flags: MediaFlags
    package var payload: ByteBuffer

    package init(
        track: UInt8, position: FramePosition, decodeMicroseconds: Int64, compositionMicroseconds: Int32,
        flags: MediaFlags, payload: ByteBuffer
    ) {
        self.track = track
        self.position = position
        self.decodeMicroseconds = decodeMicroseconds
        self.compositionMicroseconds = compositionMicroseconds
        self.flags = flags
        self.payload = payload
    }

    /// A frame of a stream.
    ///
    /// - Parameter shift: the time line's time minus the publisher's, in microseconds.
    package init(_ frame: MediaFrame, shiftMicroseconds shift: Int64) {
        let header = frame.header
        self.init(
            track: header.track, position: header.position,
            decodeMicroseconds: header.ptsMicroseconds &+ Int64(header.dtsDeltaMicroseconds) &+ shift,
            compositionMicroseconds: 0 &- header.dtsDeltaMicroseconds, flags: header.flags, payload: frame.payload)
    }

    var presentationMicroseconds: Int64 { decodeMicroseconds + Int64(compositionMicroseconds) }
}

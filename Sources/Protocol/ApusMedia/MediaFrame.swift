public import ApusCore
public import NIOCore

/// The properties of a media frame.
public struct MediaFlags: OptionSet, Sendable, Hashable {
    public let rawValue: UInt8
    public init(rawValue: UInt8) { self.rawValue = rawValue }

    /// A decoder can start here.
    public static let key = Self(rawValue: 1)
    /// The payload is a ``TrackConfiguration``, not media (IV-C9).
    public static let configuration = Self(rawValue: 2)
    /// No other frame refers to it. It is dropped first if a viewer is slow.
    public static let discardable = Self(rawValue: 4)
    /// A frame that is sent again at the start of a join. It is not part of the dense sequence there.
    public static let repeated = Self(rawValue: 8)
    /// Nothing follows in this epoch: the publisher ended.
    public static let endOfEpoch = Self(rawValue: 16)
    /// The payload continues in the next frame; see ``FrameJoiner``.
    public static let continued = Self(rawValue: 32)
    /// The payload continues the one of the frame before.
    public static let continuation = Self(rawValue: 64)

    /// Every flag above. The table of the documents has a row for each (``layout``).
    package static let known: Self = [
        .key, .configuration, .discardable, .repeated, .endOfEpoch, .continued, .continuation,
    ]
}

/// The position of a frame in its channel: the publisher's epoch, then the dense number in it.
///
/// Positions are ordered by epoch first. A publisher that restarts begins at 0 in a higher epoch (D7).
public struct FramePosition: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// The number of the publisher's run. A higher one is later.
    public var epoch: UInt32
    /// Dense over all tracks of the channel, from 0.
    public var sequence: UInt64

    public init(epoch: UInt32, sequence: UInt64) {
        self.epoch = epoch
        self.sequence = sequence
    }

    /// The position before it; before the first one of an epoch, the end of the epoch before.
    package var predecessor: FramePosition {
        guard sequence == 0 else { return FramePosition(epoch: epoch, sequence: sequence - 1) }
        return FramePosition(epoch: epoch - min(epoch, 1), sequence: MediaHeader.sequenceMax)
    }

    public static func < (left: Self, right: Self) -> Bool {
        (left.epoch, left.sequence) < (right.epoch, right.sequence)
    }

    public var description: String { "\(epoch):\(sequence)" }
}

/// The fixed header of a media frame (D7).
///
/// Layout, big endian, 40 bytes: `u32 term`, `u32 epoch`, `u64 sequence`, `i64 pts` µs, `i32 dts − pts` µs,
/// `u32 payload bytes`, `u32 capture time` (wall clock ms, modulo 2³²), `u8 flags`, `u8 track`,
/// `u8 rendition`, `u8 version`.
public struct MediaHeader: Sendable, Hashable {
    public static let byteCount = 40
    /// The layout's version.
    public static let version: UInt8 = 1
    /// The largest sequence number. A publisher that starts at 0 never reaches it, and adding one never overflows.
    public static let sequenceMax = WireNumber.sequenceMax
    /// The largest presentation time, in microseconds in either direction: 142 years. Sums and differences of such
    /// times cannot overflow, so code behind the decoder needs no checks.
    public static let ptsMicrosecondsMax: Int64 = 1 << 52
    /// The largest distance between decode time and presentation time, in microseconds in either direction.
    public static let dtsDeltaMicrosecondsMax: Int32 = 60_000_000

    /// The term of the sending relay: the shard's epoch. A receiver drops frames of a lower term than the highest it
    /// has seen, so a primary that was paused cannot send stale frames (D7).
    public var term: Epoch
    public var position: FramePosition
    /// Presentation time, in microseconds of the publisher's clock (IV-G5).
    public var ptsMicroseconds: Int64
    /// Decode time minus presentation time, in microseconds; 0 without B frames.
    public var dtsDeltaMicroseconds: Int32
    /// Wall clock at capture, in milliseconds, modulo 2³².
    public var captureMilliseconds: UInt32
    public var flags: MediaFlags
    /// The track's number: its index in the publisher's list of tracks.
    public var track: UInt8
    /// The rendition's number; 0 if there is one.
    public var rendition: UInt8

    public init(
        term: Epoch = 0, position: FramePosition, ptsMicroseconds: Int64, dtsDeltaMicroseconds: Int32 = 0,
        captureMilliseconds: UInt32 = 0, flags: MediaFlags = [], track: UInt8 = 0, rendition: UInt8 = 0
    ) {
        self.term = term
        self.position = position
        self.ptsMicroseconds = ptsMicroseconds
        self.dtsDeltaMicroseconds = dtsDeltaMicroseconds
        self.captureMilliseconds = captureMilliseconds
        self.flags = flags
        self.track = track
        self.rendition = rendition
    }

    /// Appends the header. The caller writes the payload right after it.
    public func encode(payloadByteCount: Int, into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(
            term, position.epoch, position.sequence, ptsMicroseconds, dtsDeltaMicroseconds,
            UInt32(truncatingIfNeeded: payloadByteCount), captureMilliseconds, flags.rawValue, track, rendition,
            Self.version)
    }
}

/// One media frame: its header and its bytes.
public struct MediaFrame: Sendable, Hashable {
    /// The largest payload of one frame, in bytes: with its headers it has the 4 MiB that a node takes from a client. A
    /// larger picture is sent in several frames (``MediaFlags/continued``).
    public static let payloadByteCountMax = (4 << 20) - 256
    /// The largest picture or packet of sound, in bytes, in several frames. It fits into the ring of a channel with the
    /// default limit (``FrameRingLimits/byteCountMax``).
    public static let joinedByteCountMax = (8 << 20) - (64 << 10)

    public var header: MediaHeader
    /// Video in Annex B or length-prefixed form, as the configuration says; audio as one packet.
    public var payload: ByteBuffer

    public init(header: MediaHeader, payload: ByteBuffer) {
        self.header = header
        self.payload = payload
    }

    /// Appends header and payload.
    public func encode(into buffer: inout ByteBuffer) {
        header.encode(payloadByteCount: payload.readableBytes, into: &buffer)
        buffer.writeImmutableBuffer(payload)
    }

    /// Decodes one frame that fills the buffer.
    ///
    /// - Throws: 10001 if the header is truncated, the length does not match, or a time is out of bounds; 10003 if the
    ///   version is unknown.
    public init(decoding buffer: ByteBuffer) throws(ApusError) {
        var buffer = buffer
        guard
            let (term, epoch, sequence, pts, dtsDelta, byteCount, capture, flags, track, rendition, version) =
                buffer.readMultipleIntegers(
                    as: (UInt32, UInt32, UInt64, Int64, Int32, UInt32, UInt32, UInt8, UInt8, UInt8, UInt8).self)
        else {
            throw ApusError(.malformed, "the media frame's header is truncated")
        }
        guard version == MediaHeader.version else {
            throw ApusError(.versionUnsupported, "media frame version \(version) is not supported")
        }
        guard Int(byteCount) == buffer.readableBytes, buffer.readableBytes <= Self.payloadByteCountMax else {
            throw ApusError(.malformed, "the media frame's length does not match its header")
        }
        guard sequence <= MediaHeader.sequenceMax else {
            throw ApusError(.malformed, "the media frame's sequence number is out of bounds")
        }
        guard pts.magnitude <= UInt64(MediaHeader.ptsMicrosecondsMax),
            dtsDelta.magnitude <= UInt32(MediaHeader.dtsDeltaMicrosecondsMax)
        else {
            throw ApusError(.malformed, "the media frame's times are out of bounds")
        }
        header = MediaHeader(
            term: term, position: FramePosition(epoch: epoch, sequence: sequence), ptsMicroseconds: pts,
            dtsDeltaMicroseconds: dtsDelta, captureMilliseconds: capture, flags: MediaFlags(rawValue: flags),
            track: track, rendition: rendition)
        payload = buffer
    }
}

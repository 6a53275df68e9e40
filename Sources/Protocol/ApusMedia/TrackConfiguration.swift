public import ApusCore
public import NIOCore

/// The kind of a track and its codec (IV-C9: the stream header comes before any media).
public enum Codec: UInt8, Sendable, Hashable, CaseIterable {
    case h264 = 1
    case h265 = 2
    case aac = 16
    case opus = 17
    case g711a = 18
    case g711u = 19
    case amrNarrow = 20
    case amrWide = 21
    case mp3 = 22
    /// Linear samples of 16 bits, big endian (RFC 3551 §4.5.11).
    case l16 = 23

    public var isVideo: Bool { rawValue < 16 }
}

/// The configuration of a decoder, sent before the first frame of a track. It is the payload of a configuration frame.
///
/// Video frames are length-prefixed (4 bytes) NAL units, and `extraData` is the `avcC` or `hvcC` record. AAC frames are
/// raw, and `extraData` is the AudioSpecificConfig. This is the form in an MP4 file, so a recorder copies bytes.
///
/// Layout, big endian: `u8 version`, `u8 codec`, `u8 track count`, `u8 flags` (0), `u32 width or sample rate`, `u32
/// height or channels`, `u32 frame rate × 1000 or samples a frame`, `u16 extra bytes`, then the extra bytes.
public struct TrackConfiguration: Sendable, Hashable {
    /// The most tracks of a channel. A track's number is below it.
    public static let trackCountMax: UInt8 = 8
    /// The longest `extraData`, in bytes.
    public static let extraByteCountMax = 16_384

    public var codec: Codec
    /// The number of this publisher's tracks, so that a recorder knows when it has every configuration.
    public var trackCount: UInt8
    /// Video: picture width in pixels. Audio: sample rate in Hz.
    public var first: UInt32
    /// Video: picture height in pixels. Audio: channels.
    public var second: UInt32
    /// Video: frames a second × 1000, 0 if unknown. Audio: samples a packet, 0 if it varies.
    public var third: UInt32
    /// `avcC`, `hvcC` or AudioSpecificConfig.
    public var extraData: [UInt8]

    public init(codec: Codec, trackCount: UInt8, first: UInt32, second: UInt32, third: UInt32, extraData: [UInt8]) {
        self.codec = codec
        self.trackCount = trackCount
        self.first = first
        self.second = second
        self.third = third
        self.extraData = extraData
    }

    public var width: UInt32 { first }
    public var height: UInt32 { second }
    public var sampleRate: UInt32 { first }
    public var channelCount: UInt32 { second }

    /// The usual distance between two frames, in microseconds.
    var usualStepMicroseconds: Int64 {
        if codec.isVideo { return third > 0 ? 1_000_000_000 / Int64(third) : 40_000 }
        guard third > 0, sampleRate > 0 else { return 20_000 }
        return Int64(third) * 1_000_000 / Int64(sampleRate)
    }

    /// True if one decoder decodes the frames of both. The number of tracks and the frame rate do not matter.
    public func hasSameFormat(as other: Self) -> Bool {
        guard codec == other.codec, extraData == other.extraData else { return false }
        return first == other.first && second == other.second
    }

    /// Appends the configuration.
    public func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(
            UInt8(1), codec.rawValue, trackCount, UInt8(0), first, second, third, UInt16(extraData.count))
        buffer.writeBytes(extraData)
    }

    /// Decodes one configuration that fills the buffer.
    ///
    /// - Throws: 10001 if it cannot be decoded.
    public init(decoding buffer: ByteBuffer) throws(ApusError) {
        var buffer = buffer
        guard
            let (version, codecNumber, trackCount, _, first, second, third, extraCount) = buffer.readMultipleIntegers(
                as: (UInt8, UInt8, UInt8, UInt8, UInt32, UInt32, UInt32, UInt16).self),
            version == 1, let codec = Codec(rawValue: codecNumber), Int(extraCount) == buffer.readableBytes,
            Int(extraCount) <= Self.extraByteCountMax, let extra = buffer.readBytes(length: Int(extraCount))
        else {
            throw ApusError(.malformed, "the track's configuration cannot be decoded")
        }
        self.init(
            codec: codec, trackCount: trackCount, first: first, second: second, third: third, extraData: extra)
    }
}

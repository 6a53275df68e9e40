package import ApusCore

// The layouts of media frames as tables: docs/reference/media-frames.md is made of them, and a test compares them with
// what the encoders write.

extension MediaHeader {
    /// The fields of a media frame's header. The payload follows.
    package static let layout: [WireField] = [
        WireField(
            "term", .u32,
            "The term of the node that sends the frame; a publisher sends 0. A receiver drops frames of a lower term "
                + "than the highest it has seen."),
        WireField("epoch", .u32, "The publisher's run, assigned by the cluster. A higher one is later."),
        WireField(
            "sequence", .u64,
            "The number of the frame in its epoch, dense over all tracks of the channel, from 0 to 2⁶²."),
        WireField("pts", .i64, "Presentation time in µs of the publisher's clock, at most 2⁵² in either direction."),
        WireField("dts − pts", .i32, "Decode time minus presentation time in µs, at most 60 s in either direction."),
        WireField("payload bytes", .u32, "The length of the payload, which fills the rest of the frame."),
        WireField("capture time", .u32, "The wall clock at capture in ms since 1970, modulo 2³²; 0 if unknown."),
        WireField("flags", .u8, "See below."),
        WireField("track", .u8, "The index in the publisher's list of tracks."),
        WireField("rendition", .u8, "The number of the rendition; 0 if there is one."),
        WireField("version", .u8, "\(MediaHeader.version). Frames of another version are refused with 10003."),
    ]
}

extension MediaFlags {
    /// The flags, with their names and meanings.
    package static let layout: [(name: String, flag: MediaFlags, meaning: String)] = [
        ("key", .key, "A decoder can start here."),
        ("configuration", .configuration, "The payload is a track configuration, and no media."),
        (
            "discardable", .discardable,
            "No other frame refers to this one. It is dropped first if a viewer is slow."
        ),
        (
            "repeated", .repeated,
            "A configuration that is sent again at the start of a join, with its old number, outside of the sequence."
        ),
        ("end of epoch", .endOfEpoch, "Nothing follows in this epoch: the publisher ended."),
        (
            "continued", .continued,
            "The payload is longer than a frame's maximum, and continues in the next frame, which has the same track "
                + "and times."
        ),
        (
            "continuation", .continuation,
            "The payload continues that of the previous frame. Only the first part has `key`, and no part has "
                + "`discardable`."
        ),
    ]
}

extension TrackConfiguration {
    /// The fields of a track configuration. The extra bytes follow.
    package static let layout: [WireField] = [
        WireField("version", .u8, "1."),
        WireField("codec", .u8, "See below."),
        WireField(
            "track count", .u8, "The number of the publisher's tracks, at most \(TrackConfiguration.trackCountMax)."),
        WireField("flags", .u8, "0."),
        WireField("first", .u32, "Video: the width in pixels. Audio: the sample rate in Hz."),
        WireField("second", .u32, "Video: the height in pixels. Audio: the number of channels."),
        WireField(
            "third", .u32,
            "Video: frames a second × 1000, 0 if unknown. Audio: samples a packet, 0 if that varies."),
        WireField(
            "extra bytes", .u16,
            "The length of what follows, at most \(TrackConfiguration.extraByteCountMax): `avcC` for H.264, `hvcC` for "
                + "H.265, the AudioSpecificConfig for AAC, else nothing."),
    ]
}

extension Codec {
    /// The name in the documents, and the form of the codec's frames.
    package var layout: (name: String, payload: String) {
        switch self {
        case .h264: ("H.264", Self.lengthPrefixed)
        case .h265: ("H.265", Self.lengthPrefixed)
        case .aac: ("AAC", "one raw packet, without an ADTS header")
        case .opus: ("Opus", "one packet")
        case .g711a: ("G.711 A-law", "samples")
        case .g711u: ("G.711 µ-law", "samples")
        case .amrNarrow: ("AMR-NB", "one frame of RFC 4867 §5, with its table of contents")
        case .amrWide: ("AMR-WB", "one frame of RFC 4867 §5, with its table of contents")
        case .mp3: ("MP3", "one frame")
        case .l16: ("L16", "samples of 16 bits, big endian")
        }
    }

    private static let lengthPrefixed = "one access unit: NAL units, each after its length as a `u32`"
}

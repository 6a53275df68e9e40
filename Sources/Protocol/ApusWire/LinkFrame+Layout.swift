package import ApusCore

extension LinkFrame {
    /// The fields of a frame's header, for docs/reference/media-frames.md. The payload follows.
    package static let layout: [WireField] = [
        WireField("length", .u32, "The number of bytes after this field."),
        WireField("kind", .u8, "0x20 for a media frame."),
        WireField("flags", .u8, "0 for a media frame."),
        WireField("method", .u16, "0 for a media frame."),
        WireField(
            "correlation", .u32, "The number of the stream on this connection, from the answer to Publish or Play."),
    ]
}

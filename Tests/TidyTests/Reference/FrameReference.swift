import ApusCore
import ApusMedia
import ApusWire

/// The document of the media frames' layout.
enum FrameReference {
    static func text() -> String {
        """
        # Media frames

        The layout of the frames in which clients send and receive media over the native protocol. `scripts/reference`
        makes this page from the code; do not edit it. The messages that open and close streams, `Publish`, `Play` and
        the others, are in `proto/apus/client.proto`, with their numbers.

        All numbers are big endian. A frame is a link frame, whose payload is a media header and the media. It has at
        most \(MediaFrame.payloadByteCountMax) bytes of media.

        A larger picture, of at most \(MediaFrame.joinedByteCountMax) bytes, is sent in parts: consecutive frames with
        the flags `continued` and `continuation`. A receiver drops a picture of which a part is missing.

        ## Link frame

        \(table(LinkFrame.layout))
        ## Media header

        \(table(MediaHeader.layout))
        | flag | name | meaning |
        |---|---|---|
        \(flags)

        ## Track configuration

        The payload of a frame with the flag `configuration`. A publisher sends one for each track before the track's
        first frame, and again when the track changes.

        \(table(TrackConfiguration.layout))
        | codec | name | payload of a frame |
        |---|---|---|
        \(codecs)

        """
    }

    private static var flags: String {
        MediaFlags.layout.map { "| \($0.flag.rawValue) | \($0.name) | \($0.meaning) |" }.joined(separator: "\n")
    }

    private static var codecs: String {
        Codec.allCases.map { "| \($0.rawValue) | \($0.layout.name) | \($0.layout.payload) |" }.joined(separator: "\n")
    }

    private static func table(_ fields: [WireField]) -> String {
        ReferenceDocument.table(
            ["offset", "type", "field", "meaning"],
            fields.placed.map { ["\($0.offset)", "`\($0.field.number.rawValue)`", $0.field.name, $0.field.meaning] })
    }
}

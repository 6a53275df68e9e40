import ApusMedia
import NIOCore

/// D7: frames that a publisher may send are refused or written as they came, and a recorder takes them.
///
/// The input is a list of frames, each behind its length in two bytes.
func fuzzMedia(_ input: [UInt8]) {
    var bytes = ByteBuffer(bytes: input)
    var writer = FragmentedMP4Writer()
    while let encoded = bytes.readLengthPrefixedSlice(as: UInt16.self) {
        guard let frame = try? MediaFrame(decoding: encoded) else { continue }
        var written = ByteBuffer()
        frame.encode(into: &written)
        precondition(written == encoded, "a frame is written otherwise")
        _ = try? writer.write(frame)
    }
    _ = try? writer.finish()
}

package import ApusCore
package import ApusMedia
package import NIOCore

/// Splits stored bytes into media frames: the header and payload of each, one after another.
///
/// Pure value.
package struct StoredFrames: Sendable {
    /// The offset of the payload's length in a header.
    private static let lengthOffset = 28
    private var buffer = ByteBuffer()

    package init() {}

    /// The number of bytes of an incomplete frame.
    package var rest: Int { buffer.readableBytes }

    package mutating func append(_ bytes: ByteBuffer) {
        buffer.discardReadBytes()
        buffer.writeImmutableBuffer(bytes)
    }

    /// All frames in the pieces.
    ///
    /// - Throws: the errors of ``next()``.
    static func frames(of pieces: [AnsweringPiece]) throws(ApusError) -> [MediaFrame] {
        var stored = Self()
        return try stored.append(pieces)
    }

    /// Appends pieces.
    ///
    /// - Returns: the frames that are complete now.
    /// - Throws: the errors of ``next()``.
    mutating func append(_ pieces: [AnsweringPiece]) throws(ApusError) -> [MediaFrame] {
        var frames: [MediaFrame] = []
        for piece in pieces {
            append(ByteBuffer(bytes: piece.data))
            while let frame = try next() { frames.append(frame) }
        }
        return frames
    }

    /// The next frame; nil if more bytes are needed.
    ///
    /// - Throws: 10001 if the bytes are not a frame, 10003 if the frame has a later version.
    package mutating func next() throws(ApusError) -> MediaFrame? {
        guard buffer.readableBytes >= MediaHeader.byteCount,
            let length = buffer.getInteger(at: buffer.readerIndex + Self.lengthOffset, as: UInt32.self)
        else { return nil }
        guard length <= MediaFrame.payloadByteCountMax else {
            throw ApusError(.malformed, "a stored frame is too long")
        }
        guard let bytes = buffer.readSlice(length: MediaHeader.byteCount + Int(length)) else { return nil }
        return try MediaFrame(decoding: bytes)
    }
}

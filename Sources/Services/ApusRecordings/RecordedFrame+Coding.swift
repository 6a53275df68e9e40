import ApusCore
package import ApusMedia
package import NIOCore

// The form of a frame in the log: `u8` number of configurations; for each its track as `u8`, its length as `u16` and
// its bytes (`TrackConfiguration`); then the media frame with its header. All big endian.

extension RecordedFrame {
    /// The bytes for the log.
    package static func encode(_ content: ByteBuffer, configurations: [SegmentTrack]) -> ByteBuffer {
        var output = ByteBuffer()
        output.reserveCapacity(content.readableBytes + 1 + configurations.count * 128)
        output.writeInteger(UInt8(configurations.count))
        for track in configurations {
            var bytes = ByteBuffer()
            track.configuration.encode(into: &bytes)
            output.writeMultipleIntegers(track.number, UInt16(bytes.readableBytes))
            output.writeImmutableBuffer(bytes)
        }
        output.writeImmutableBuffer(content)
        return output
    }

    /// - Throws: 10001 or 10003 if the bytes are not those of a frame.
    init(decoding content: ByteBuffer, receivedMicroseconds: Int64) throws(ApusError) {
        var content = content
        let malformed = ApusError(.malformed, "a frame of the log of recordings cannot be decoded")
        guard let count = content.readInteger(as: UInt8.self), count <= TrackConfiguration.trackCountMax else {
            throw malformed
        }
        var configurations: [SegmentTrack] = []
        for _ in 0..<count {
            guard let (number, length) = content.readMultipleIntegers(as: (UInt8, UInt16).self),
                let bytes = content.readSlice(length: Int(length))
            else { throw malformed }
            configurations.append(SegmentTrack(number: number, configuration: try TrackConfiguration(decoding: bytes)))
        }
        self.init(
            configurations: configurations, frame: try MediaFrame(decoding: content),
            receivedMicroseconds: receivedMicroseconds)
    }
}

package import NIOCore

/// An RTP packet (RFC 3550 §5.1).
package struct RTPPacket {
    package var hasMarker: Bool
    package var payloadType: UInt8
    package var sequence: UInt16
    package var timestamp: UInt32
    package var source: UInt32
    package var payload: ByteBuffer

    /// Nil if the bytes are not a packet of version 2.
    package init?(_ bytes: ByteBuffer) {
        var bytes = bytes
        guard
            let (first, second, sequence, timestamp, source) = bytes.readMultipleIntegers(
                as: (UInt8, UInt8, UInt16, UInt32, UInt32).self),
            first >> 6 == 2, bytes.readSlice(length: Int(first & 15) * 4) != nil
        else { return nil }
        if first & 0x10 != 0 {
            guard let (_, words) = bytes.readMultipleIntegers(as: (UInt16, UInt16).self),
                bytes.readSlice(length: Int(words) * 4) != nil
            else { return nil }
        }
        if first & 0x20 != 0 {
            guard let padding = bytes.getInteger(at: bytes.writerIndex - 1, as: UInt8.self), padding > 0,
                Int(padding) <= bytes.readableBytes
            else { return nil }
            bytes.moveWriterIndex(to: bytes.writerIndex - Int(padding))
        }
        (hasMarker, payloadType) = (second & 0x80 != 0, second & 0x7f)
        (self.sequence, self.timestamp, self.source, payload) = (sequence, timestamp, source, bytes)
    }
}

/// What a sender report says (RFC 3550 §6.4.1): one moment as wall clock and as a time of the media.
package struct RTPSenderReport: Equatable {
    /// Microseconds of the sender's wall clock.
    var wallMicroseconds: Int64
    var timestamp: UInt32

    /// The report of a compound packet; nil if it has none.
    package init?(_ bytes: ByteBuffer) {
        guard
            let (first, type, _, _, seconds, fraction, timestamp) = bytes.getMultipleIntegers(
                at: bytes.readerIndex, as: (UInt8, UInt8, UInt16, UInt32, UInt32, UInt32, UInt32).self),
            first >> 6 == 2, type == 200, seconds > 0
        else { return nil }
        wallMicroseconds = Int64(seconds) * 1_000_000 + (Int64(fraction) * 1_000_000) >> 32
        self.timestamp = timestamp
    }
}

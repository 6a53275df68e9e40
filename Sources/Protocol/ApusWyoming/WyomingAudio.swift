import ApusCore
package import NIOCore

/// The format of raw audio: interleaved samples, signed and little-endian.
///
/// Pure value.
package struct WyomingAudioFormat: Sendable, Hashable, CustomStringConvertible {
    /// What recognizers expect: 16 kHz, 16 bits, mono.
    package static let speech = Self(rate: 16_000, width: 2, channels: 1)

    /// Samples of a channel in a second.
    package var rate: Int
    /// Bytes of a sample.
    package var width: Int
    package var channels: Int

    package init(rate: Int, width: Int, channels: Int) {
        (self.rate, self.width, self.channels) = (rate, width, channels)
    }

    /// The bytes of one sample of each channel.
    package var frameByteCount: Int { width * channels }

    /// The bytes of a second.
    package var secondByteCount: Int { rate * frameByteCount }

    package var description: String { "\(rate) Hz, \(width * 8) bits, \(channels) channels" }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(
            rate: try fields.requiredInteger("rate", in: 1000...192_000),
            width: try fields.requiredInteger("width", in: 1...4),
            channels: try fields.requiredInteger("channels", in: 1...8))
    }

    func members(timestamp: Int?) -> [JSONValue.Member] {
        [JSONValue.Member](
            fields: [
                "rate": .integer(rate), "width": .integer(width), "channels": .integer(channels),
                "timestamp": timestamp.map { .integer($0) },
            ])
    }
}

/// A piece of raw audio.
///
/// Pure value.
package struct WyomingAudioChunk: Sendable, Equatable {
    package var format: WyomingAudioFormat
    /// Whole samples of all channels.
    package var audio: ByteBuffer
    /// In milliseconds, from where the writer likes.
    package var timestamp: Int?

    package init(format: WyomingAudioFormat, audio: ByteBuffer, timestamp: Int? = nil) {
        (self.format, self.audio, self.timestamp) = (format, audio, timestamp)
    }

    init(_ fields: WyomingFields, _ audio: ByteBuffer) throws(ApusError) {
        self.init(format: try WyomingAudioFormat(fields), audio: audio, timestamp: try fields.milliseconds())
        guard audio.readableBytes.isMultiple(of: format.frameByteCount) else {
            throw ApusError(wyoming: "an audio chunk ends within a sample")
        }
    }
}

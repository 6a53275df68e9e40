package import ApusCore
package import ApusMedia
import ApusWyoming
import NIOCore

/// Reads the frames of a microphone as samples: 16,000 a second, 16 bits, one channel.
///
/// Takes L16 and G.711. Other codecs need a decoder in C, and nodes have none.
///
/// Pure value.
package struct SoundReader: Sendable {
    package static let sampleRate = 16_000

    private var codec: Codec?
    private var track: UInt8 = 0
    private var converter = SpeechConverter(.speech)

    package init() {}

    /// The samples of a frame. Some milliseconds of another rate stay in the filter until the next one.
    ///
    /// - Throws: 10026 if the codec, the sample rate or the number of channels is not one of those above; 10001.
    package mutating func read(_ frame: RelayFrame) throws(ApusError) -> [Int16] {
        if frame.flags.contains(.configuration) {
            let new = try TrackConfiguration(decoding: frame.payload)
            guard !new.codec.isVideo else { return [] }
            let format = WyomingAudioFormat(rate: Int(new.sampleRate), width: 2, channels: Int(new.channelCount))
            guard [.l16, .g711a, .g711u].contains(new.codec), format.channels > 0,
                SpeechConverter.problem(with: format) == nil
            else {
                throw ApusError(
                    .mediaUnreadable,
                    "a microphone sends L16 or G.711 with 8,000 to 48,000 samples a second, not \(new.codec)")
            }
            // A configuration that is sent again changes nothing.
            if new.codec != codec || format != converter.format { converter = SpeechConverter(format) }
            (codec, track) = (new.codec, frame.track)
            return []
        }
        guard frame.track == track, frame.payload.readableBytes > 0 else { return [] }
        guard let codec else { throw ApusError(.mediaUnreadable, "the microphone has sent no configuration") }
        return converter.convert(Self.linear(frame.payload, codec))
    }

    /// The samples with 16 bits, little endian.
    private static func linear(_ payload: ByteBuffer, _ codec: Codec) -> ByteBuffer {
        var linear = ByteBuffer()
        linear.reserveCapacity(2 * payload.readableBytes)
        switch codec {
        case .g711a:
            for byte in payload.readableBytesView { linear.writeInteger(G711.linear(aLaw: byte), endianness: .little) }
        case .g711u:
            for byte in payload.readableBytesView { linear.writeInteger(G711.linear(muLaw: byte), endianness: .little) }
        default:
            var rest = payload
            while let sample = rest.readInteger(as: Int16.self) { linear.writeInteger(sample, endianness: .little) }
        }
        return linear
    }
}

/// The companding of ITU-T G.711.
package enum G711 {
    package static func linear(muLaw byte: UInt8) -> Int16 {
        let value = ~byte
        let magnitude = ((Int32(value & 0x0f) << 3) + 0x84) << Int32((value & 0x70) >> 4) - 0x84
        return Int16(clamping: value & 0x80 != 0 ? -magnitude : magnitude)
    }

    package static func linear(aLaw byte: UInt8) -> Int16 {
        let value = byte ^ 0x55
        let segment = Int32((value & 0x70) >> 4)
        var magnitude = Int32(value & 0x0f) << 4
        magnitude = segment == 0 ? magnitude + 8 : (magnitude + 0x108) << (segment - 1)
        return Int16(clamping: value & 0x80 != 0 ? magnitude : -magnitude)
    }
}

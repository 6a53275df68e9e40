package import ApusCore
package import ApusMedia
import NIOCore

/// Reads the frames of a microphone as samples: 16,000 a second, 16 bits, one channel.
///
/// Takes L16 and G.711. Other codecs need a decoder in C, and nodes have none.
///
/// Pure value.
package struct SoundReader: Sendable {
    package static let sampleRate = 16_000
    /// The sample rates of L16 that are taken.
    package static let sampleRates: ClosedRange<UInt32> = 8_000...48_000

    private var configuration: TrackConfiguration?
    private var track: UInt8 = 0
    /// The position between two samples of the source, in 1/16,000 of a sample of the source; the last sample.
    private var phase: Int64 = 0
    private var last: Int32 = 0

    package init() {}

    /// The samples of a frame.
    ///
    /// - Throws: 10026 if the codec, the sample rate or the number of channels is not one of those above; 10001.
    package mutating func read(_ frame: RelayFrame) throws(ApusError) -> [Int16] {
        if frame.flags.contains(.configuration) {
            let new = try TrackConfiguration(decoding: frame.payload)
            guard !new.codec.isVideo else { return [] }
            guard [.l16, .g711a, .g711u].contains(new.codec), Self.sampleRates.contains(new.sampleRate),
                (1...2).contains(new.channelCount)
            else {
                throw ApusError(
                    .mediaUnreadable,
                    "a microphone sends L16 or G.711 with 8,000 to 48,000 samples a second, not \(new.codec)")
            }
            (configuration, track) = (new, frame.track)
            return []
        }
        guard frame.track == track, frame.payload.readableBytes > 0 else { return [] }
        guard let configuration else {
            throw ApusError(.mediaUnreadable, "the microphone has sent no configuration")
        }
        var samples = Self.samples(of: frame.payload, configuration.codec)
        if configuration.channelCount == 2 {
            samples = stride(from: 0, to: samples.count - 1, by: 2).map { (samples[$0] + samples[$0 + 1]) / 2 }
        }
        return resample(samples, from: Int64(configuration.sampleRate))
    }

    private static func samples(of payload: ByteBuffer, _ codec: Codec) -> [Int32] {
        let bytes = payload.readableBytesView
        switch codec {
        case .g711a: return bytes.map { Int32(G711.linear(aLaw: $0)) }
        case .g711u: return bytes.map { Int32(G711.linear(muLaw: $0)) }
        default:
            var samples: [Int32] = []
            samples.reserveCapacity(bytes.count / 2)
            var payload = payload
            while let sample = payload.readInteger(as: Int16.self) { samples.append(Int32(sample)) }
            return samples
        }
    }

    /// Linear interpolation. A source with more than 16,000 samples a second is averaged over the distance of two
    /// samples of the result before, which dampens what cannot be represented.
    private mutating func resample(_ samples: [Int32], from rate: Int64) -> [Int16] {
        let target = Int64(Self.sampleRate)
        guard rate != target else { return samples.map { Int16(clamping: $0) } }
        var source = samples
        let width = Int(rate / target)
        if width > 1 {
            source = samples.indices.map { index in
                let window = samples[max(0, index - width + 1)...index]
                return window.reduce(0, +) / Int32(window.count)
            }
        }
        var result: [Int16] = []
        result.reserveCapacity(source.count * Int(target) / Int(rate) + 1)
        for sample in source {
            // The result's samples between the last one and this one.
            while phase < target {
                let mixed = (Int64(last) * (target - phase) + Int64(sample) * phase) / target
                result.append(Int16(clamping: mixed))
                phase += rate
            }
            phase -= target
            last = sample
        }
        return result
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

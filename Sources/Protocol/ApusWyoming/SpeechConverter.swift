package import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Makes 16 kHz mono of raw audio with 16 bits, piece by piece: channels are averaged, and other rates are resampled
/// with a windowed sinc filter that removes what 16 kHz cannot have.
///
/// Pure value.
package struct SpeechConverter: Sendable {
    /// The samples of a channel in a second that can be converted.
    package static let rates = 8000...48_000
    /// One channel, or two, which are averaged.
    package static let channelsMax = 2
    /// Zero crossings of the filter on each side.
    private static let crossings = 8.0

    /// Why a format cannot be used; nil if it can.
    package static func problem(with format: WyomingAudioFormat) -> String? {
        guard format.width == 2, rates.contains(format.rate), format.channels <= channelsMax else {
            return "audio must have 16 bits, 8000 to 48000 Hz and 1 or 2 channels; this is \(format)"
        }
        return nil
    }

    package let format: WyomingAudioFormat
    /// Input samples per output sample.
    private let step: Double
    /// The half width of the filter, in input samples.
    private let reach: Int
    private let cutoff: Double
    /// Mono input from the sample `start` on; before the first there is silence.
    private var samples: [Float]
    private var start: Int
    private var outputCount = 0

    package init(_ format: WyomingAudioFormat) {
        self.format = format
        step = Double(format.rate) / Double(WyomingAudioFormat.speech.rate)
        cutoff = min(1, 1 / step)
        reach = Int((Self.crossings / cutoff).rounded(.up))
        samples = [Float](repeating: 0, count: reach)
        start = -reach
    }

    /// Converts a piece. Some milliseconds stay in the filter.
    package mutating func convert(_ bytes: ByteBuffer) -> [Int16] {
        var bytes = bytes
        var mono: [Int16] = []
        mono.reserveCapacity(bytes.readableBytes / format.frameByteCount)
        while bytes.readableBytes >= format.frameByteCount {
            var sum: Int32 = 0
            for _ in 0..<format.channels {
                sum += Int32(bytes.readInteger(endianness: .little, as: Int16.self) ?? 0)
            }
            mono.append(Int16(sum / Int32(format.channels)))
        }
        guard format.rate != WyomingAudioFormat.speech.rate else { return mono }
        samples += mono.map { Float($0) }
        return resampled()
    }

    private mutating func resampled() -> [Int16] {
        var output: [Int16] = []
        while true {
            let position = Double(outputCount) * step
            let center = Int(position)
            guard center + reach < start + samples.count else { break }
            var (sum, weights) = (0.0, 0.0)
            for index in (center - reach + 1)...(center + reach) {
                let weight = weight(Double(index) - position)
                sum += weight * Double(samples[index - start])
                weights += weight
            }
            output.append(Int16(max(-32_768, min(32_767, (sum / weights).rounded()))))
            outputCount += 1
        }
        let unused = min(samples.count, max(0, Int(Double(outputCount) * step) - reach - start))
        samples.removeFirst(unused)
        start += unused
        return output
    }

    /// A sinc of the cut-off with a Hann window.
    private func weight(_ distance: Double) -> Double {
        let share = distance / Double(reach)
        guard abs(share) < 1 else { return 0 }
        let x = distance * cutoff * .pi
        return (abs(x) < 1e-9 ? 1 : sin(x) / x) * (0.5 + 0.5 * cos(.pi * share))
    }
}

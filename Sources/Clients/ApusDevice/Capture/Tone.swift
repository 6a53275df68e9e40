import ApusMedia
import Glibc

/// Samples of a quiet tone of 440 Hz.
struct Tone: Sendable {
    private static let hertz = 440.0
    /// About −26 dB.
    private static let level = 0.05

    let sampleRate: Int

    func samples(_ range: Range<Int>) -> SoundSamples {
        SoundSamples(
            sampleRate: sampleRate, ptsMicroseconds: Int64(range.lowerBound) * 1_000_000 / Int64(sampleRate),
            samples: range.map { index in
                let turns = Double(index % sampleRate) * Self.hertz / Double(sampleRate)
                return Int16(Self.level * 32_767 * sin(turns * 2 * .pi))
            })
    }
}

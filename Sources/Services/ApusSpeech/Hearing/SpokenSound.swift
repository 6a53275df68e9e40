/// The samples of what is being said, and the power of each of their windows.
///
/// Bounded by its user, which stops at the longest time.
///
/// Pure value.
package struct SpokenSound: Sendable {
    package static let windowSampleCount =
        SoundReader.sampleRate * Int(HearingStateMachine.windowMicroseconds) / 1_000_000

    package private(set) var samples: [Int16] = []
    private var measuredCount = 0

    package init() {}

    /// Appends samples. Returns the mean of the squares of each window that is complete now.
    package mutating func append(_ new: [Int16]) -> [UInt64] {
        samples += new
        var powers: [UInt64] = []
        while samples.count - measuredCount >= Self.windowSampleCount {
            let window = samples[measuredCount..<measuredCount + Self.windowSampleCount]
            measuredCount += Self.windowSampleCount
            // Without the constant part, which cheap microphones have.
            let mean = window.reduce(Int64(0)) { $0 + Int64($1) } / Int64(window.count)
            let sum = window.reduce(UInt64(0)) { sum, sample in
                let difference = Int64(sample) - mean
                return sum + UInt64(difference * difference)
            }
            powers.append(sum / UInt64(window.count))
        }
        return powers
    }
}

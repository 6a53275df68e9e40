public import ApusCore
public import ApusMedia

/// How sound is encoded: AAC, Opus, G.711 or AMR (IV-C7). The stream's header says which (IV-C9).
public struct SoundEncoding: Sendable, Hashable {
    /// The codecs for which there is an encoder. Those of AMR need libraries of their own (docs/calls.md).
    public static let codecs: [Codec] = [.aac, .opus, .g711a, .g711u, .amrNarrow, .amrWide, .l16]
    /// The rates of AAC, in samples a second. Opus has 48,000, G.711 and narrow-band AMR have 8,000, and wide-band AMR
    /// has 16,000.
    public static let aacSampleRates = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
    /// The bit rates of AAC and Opus. G.711 has 64,000.
    public static let bitRates = 8_000...256_000
    /// The bit rates of narrow-band AMR, one for each mode.
    public static let amrNarrowBitRates = [4_750, 5_150, 5_900, 6_700, 7_400, 7_950, 10_200, 12_200]
    /// The bit rates of wide-band AMR, one for each mode.
    public static let amrWideBitRates = [6_600, 8_850, 12_650, 14_250, 15_850, 18_250, 19_850, 23_050, 23_850]

    public let codec: Codec
    /// The number of samples a second.
    public let sampleRate: Int
    /// The number of bits a second. With AMR, that of the mode.
    public let bitsPerSecond: Int

    /// AAC with 48,000 samples and 48,000 bits a second.
    public static let standard = SoundEncoding(unchecked: .aac, sampleRate: 48_000, bitsPerSecond: 48_000)

    private init(unchecked codec: Codec, sampleRate: Int, bitsPerSecond: Int) {
        (self.codec, self.sampleRate, self.bitsPerSecond) = (codec, sampleRate, bitsPerSecond)
    }

    /// - Parameters:
    ///   - sampleRate: nil for the codec's default: 8,000 for AAC, as the vendors' SDKs have it (IV-C7).
    ///   - bitsPerSecond: nil for the default: 24,000 up to 16,000 samples a second, else 48,000; with AMR, the highest
    ///     mode. AMR takes the highest mode that is not above it, else the lowest one. G.711 and L16 ignore it.
    /// - Throws: 21036 if there is no encoder for the codec; 10022 if it does not have the rate.
    public init(codec: Codec, sampleRate: Int? = nil, bitsPerSecond: Int? = nil) throws(ApusError) {
        let rates: [Int]
        switch codec {
        case .aac: rates = Self.aacSampleRates
        case .opus: rates = [48_000]
        case .g711a, .g711u, .amrNarrow: rates = [8_000]
        case .amrWide: rates = [16_000]
        case .l16: rates = [16_000, 8_000, 22_050, 24_000, 44_100, 48_000]
        case .h264, .h265, .mp3:
            throw ApusError(
                .encoderUnavailable,
                "sound cannot be encoded as \(codec); use \(Self.names(before: "or")), or send a file that has it")
        }
        let rate = sampleRate ?? rates[0]
        guard rates.contains(rate) else {
            throw ApusError(
                .configurationInvalid,
                "\(codec) is not sent with \(rate) samples a second; it has "
                    + rates.map(String.init).joined(separator: ", "))
        }
        let bits =
            codec == .l16 ? 16 * rate : try Self.bits(codec, bitsPerSecond ?? (rate > 16_000 ? 48_000 : 24_000))
        self.init(unchecked: codec, sampleRate: rate, bitsPerSecond: bits)
    }

    /// The bit rate that the codec has for this one.
    ///
    /// - Throws: 10022 if it is out of range.
    private static func bits(_ codec: Codec, _ bits: Int) throws(ApusError) -> Int {
        if codec == .g711a || codec == .g711u { return 64_000 }
        let modes = bitRates(of: codec)
        let range = modes.isEmpty ? bitRates : 1...bitRates.upperBound
        guard range.contains(bits) else {
            throw ApusError(
                .configurationInvalid,
                "\(bits) bits a second is not possible for sound: \(range.lowerBound) to \(range.upperBound)")
        }
        return modes.isEmpty ? bits : modes.last { $0 <= bits } ?? modes[0]
    }

    /// The bit rates of a codec that has one for each mode, in the order of the modes; empty for others.
    static func bitRates(of codec: Codec) -> [Int] {
        switch codec {
        case .amrNarrow: amrNarrowBitRates
        case .amrWide: amrWideBitRates
        case .aac, .opus, .g711a, .g711u, .l16, .mp3, .h264, .h265: []
        }
    }

    /// The names of the codecs, with a word before the last one.
    private static func names(before word: String) -> String {
        let names = codecs.map { "\($0)" }
        return names.dropLast().joined(separator: ", ") + " \(word) " + (names.last ?? "")
    }

    /// Parses the name of a codec, such as `aac` or `amrNarrow`, with a rate behind an `@`: `aac@16000`.
    ///
    /// - Throws: 10022 with the expected form.
    public init(parsing text: String) throws(ApusError) {
        let parts = text.split(separator: "@", maxSplits: 1, omittingEmptySubsequences: false)
        let codec = Self.codecs.first { "\($0)" == parts[0] }
        let rate = parts.count > 1 ? Int(parts[1]) : nil
        guard let codec, parts.count == 1 || rate != nil else {
            throw ApusError(
                .configurationInvalid,
                "the sound's encoding \"\(text)\" is not one of \(Self.names(before: "and")), such as aac@16000")
        }
        try self.init(codec: codec, sampleRate: rate)
    }
}

public import ApusCore
public import ApusMedia

/// How sound is encoded: AAC, Opus or G.711 (IV-C7). The stream's header says which (IV-C9).
public struct SoundEncoding: Sendable, Hashable {
    /// The codecs for which there is an encoder.
    public static let codecs: [Codec] = [.aac, .opus, .g711a, .g711u]
    /// The rates of AAC, in samples a second. Opus has 48,000, and G.711 has 8,000.
    public static let aacSampleRates = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
    /// The bit rates of AAC and Opus. G.711 has 64,000.
    public static let bitRates = 8_000...256_000

    public let codec: Codec
    /// The number of samples a second.
    public let sampleRate: Int
    /// The number of bits a second.
    public let bitsPerSecond: Int

    /// AAC with 48,000 samples and 48,000 bits a second.
    public static let standard = SoundEncoding(unchecked: .aac, sampleRate: 48_000, bitsPerSecond: 48_000)

    private init(unchecked codec: Codec, sampleRate: Int, bitsPerSecond: Int) {
        (self.codec, self.sampleRate, self.bitsPerSecond) = (codec, sampleRate, bitsPerSecond)
    }

    /// - Parameters:
    ///   - sampleRate: nil for the codec's default: 8,000 for AAC, as the vendors' SDKs have it (IV-C7).
    ///   - bitsPerSecond: nil for the default: 24,000 up to 16,000 samples a second, else 48,000.
    /// - Throws: 21036 if there is no encoder for the codec; 10022 if it does not have the rate.
    public init(codec: Codec, sampleRate: Int? = nil, bitsPerSecond: Int? = nil) throws(ApusError) {
        let rates: [Int]
        switch codec {
        case .aac: rates = Self.aacSampleRates
        case .opus: rates = [48_000]
        case .g711a, .g711u: rates = [8_000]
        case .h264, .h265, .amrNarrow, .amrWide, .mp3:
            throw ApusError(
                .encoderUnavailable,
                "sound cannot be encoded as \(codec); use aac, opus, g711a or g711u, or send a file that has it")
        }
        let rate = sampleRate ?? rates[0]
        guard rates.contains(rate) else {
            throw ApusError(
                .configurationInvalid,
                "\(codec) is not sent with \(rate) samples a second; it has "
                    + rates.map(String.init).joined(separator: ", "))
        }
        let bits = codec == .g711a || codec == .g711u ? 64_000 : bitsPerSecond ?? (rate > 16_000 ? 48_000 : 24_000)
        guard Self.bitRates.contains(bits) else {
            throw ApusError(
                .configurationInvalid,
                "\(bits) bits a second is not possible for sound: \(Self.bitRates.lowerBound) to "
                    + "\(Self.bitRates.upperBound)")
        }
        self.init(unchecked: codec, sampleRate: rate, bitsPerSecond: bits)
    }

    /// Parses `aac`, `opus`, `g711a` or `g711u`, with a rate behind an `@`: `aac@16000`.
    ///
    /// - Throws: 10022 with the expected form.
    public init(parsing text: String) throws(ApusError) {
        let parts = text.split(separator: "@", maxSplits: 1, omittingEmptySubsequences: false)
        let codec = Self.codecs.first { "\($0)" == parts[0] }
        let rate = parts.count > 1 ? Int(parts[1]) : nil
        guard let codec, parts.count == 1 || rate != nil else {
            throw ApusError(
                .configurationInvalid,
                "the sound's encoding \"\(text)\" is not one of aac, opus, g711a and g711u, such as aac@16000")
        }
        try self.init(codec: codec, sampleRate: rate)
    }
}

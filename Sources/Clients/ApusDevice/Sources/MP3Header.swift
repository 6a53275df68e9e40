/// The header of an MPEG audio frame of layer III (ISO/IEC 11172-3 §2.4.1.3, 13818-3).
struct MP3Header: Equatable {
    var byteCount: Int
    var sampleRate: UInt32
    var channels: UInt32
    var samples: UInt32

    /// Nil if the bytes do not begin with one.
    init?(_ bytes: ArraySlice<UInt8>) {
        let bytes = Array(bytes.prefix(4))
        guard bytes.count == 4, bytes[0] == 0xff, bytes[1] & 0xe0 == 0xe0, bytes[1] & 0x06 == 0x02 else { return nil }
        let version = bytes[1] >> 3 & 3
        let (rateIndex, bitRateIndex) = (Int(bytes[2] >> 2 & 3), Int(bytes[2] >> 4))
        guard version != 1, rateIndex < 3, (1...14).contains(bitRateIndex) else { return nil }
        let isFirst = version == 3
        sampleRate = Self.sampleRates[rateIndex] / (isFirst ? 1 : version == 2 ? 2 : 4)
        samples = isFirst ? 1152 : 576
        channels = bytes[3] >> 6 == 3 ? 1 : 2
        let bitRate = (isFirst ? Self.bitRates1 : Self.bitRates2)[bitRateIndex - 1] * 1000
        byteCount = Int(samples) / 8 * bitRate / Int(sampleRate) + Int(bytes[2] >> 1 & 1)
    }

    private static let sampleRates: [UInt32] = [44_100, 48_000, 32_000]
    private static let bitRates1 = [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
    private static let bitRates2 = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160]
}

/// A video track's parameter sets, and the `avcC` or `hvcC` record that holds them (ISO/IEC 14496-15 §5.3.3, §8.3.3).
public struct ParameterSets: Sendable, Hashable {
    /// H.265 only.
    public var video: [[UInt8]] = []
    public var sequence: [[UInt8]] = []
    public var picture: [[UInt8]] = []

    /// The most sets of one track.
    public static let countMax = 31
    /// The longest set, in bytes.
    public static let unitByteCountMax = 4096

    public init() {}

    /// True if a decoder can be configured with these sets.
    public func isComplete(codec: Codec) -> Bool {
        !sequence.isEmpty && !picture.isEmpty && (codec != .h265 || !video.isEmpty)
    }

    /// Every set, in the order in which a stream sends them.
    public var all: [[UInt8]] { video + sequence + picture }

    /// True if this exact set is held.
    public func contains(_ unit: [UInt8]) -> Bool {
        sequence.contains(unit) || picture.contains(unit) || video.contains(unit)
    }

    /// Adds a unit if it is a parameter set that is not held yet.
    ///
    /// Beyond ``countMax`` sets, and for a unit longer than ``unitByteCountMax``, nothing is added. Real streams have a
    /// few short sets.
    public mutating func add(_ unit: [UInt8], codec: Codec) {
        guard let first = unit.first, unit.count <= Self.unitByteCountMax, all.count < Self.countMax, !contains(unit)
        else {
            return
        }
        switch NALUnits.kind(firstByte: first, codec: codec) {
        case .videoParameters: video.append(unit)
        case .sequenceParameters: sequence.append(unit)
        case .pictureParameters: picture.append(unit)
        case .delimiter, .slice, .other: break
        }
    }

    /// The parameter sets at the start of an Annex B stream.
    public init(annexB bytes: [UInt8], codec: Codec) {
        for range in NALUnits.ranges(annexB: bytes) { add(Array(bytes[range]), codec: codec) }
    }

    /// The sets in an `avcC` or `hvcC` record; nil if it cannot be parsed.
    public init?(record: [UInt8], codec: Codec) {
        guard Self.lengthByteCount(record: record, codec: codec) != nil else { return nil }
        var index = codec == .h265 ? 22 : 5
        /// Reads a big-endian number; nil past the end.
        func number(_ count: Int) -> Int? {
            guard index + count <= record.count else { return nil }
            defer { index += count }
            return record[index..<index + count].reduce(0) { $0 << 8 | Int($1) }
        }
        if codec == .h265 {
            guard let arrays = number(1) else { return nil }
            for _ in 0..<arrays {
                guard number(1) != nil, let count = number(2) else { return nil }
                for _ in 0..<count {
                    guard let length = number(2), index + length <= record.count else { return nil }
                    add(Array(record[index..<index + length]), codec: codec)
                    index += length
                }
            }
        } else {
            for mask in [31, 255] {
                guard let count = number(1) else { return nil }
                for _ in 0..<count & mask {
                    guard let length = number(2), index + length <= record.count else { return nil }
                    add(Array(record[index..<index + length]), codec: codec)
                    index += length
                }
            }
        }
    }

    /// The `avcC` or `hvcC` record, with 4-byte lengths; nil if a set is missing or cannot be parsed.
    public func record(codec: Codec) -> [UInt8]? {
        guard isComplete(codec: codec), let record = codec == .h265 ? hvcC() : avcC(),
            record.count <= TrackConfiguration.extraByteCountMax
        else { return nil }
        return record
    }

    private func avcC() -> [UInt8]? {
        guard let first = sequence.first, first.count >= 4, sequence.count <= 31, picture.count <= 255 else {
            return nil
        }
        var record: [UInt8] = [1, first[1], first[2], first[3], 0xff, 0xe0 | UInt8(sequence.count)]
        for unit in sequence { Self.append(unit, to: &record) }
        record.append(UInt8(picture.count))
        for unit in picture { Self.append(unit, to: &record) }
        // The high profiles repeat chroma format and bit depth of the sequence set.
        if [100, 110, 122, 144].contains(first[1]) {
            guard let format = SequenceFormat(h264: first) else { return nil }
            record += [0xfc | format.chroma, 0xf8 | format.lumaDepth, 0xf8 | format.chromaDepth, 0]
        }
        return record
    }

    private func hvcC() -> [UInt8]? {
        guard let first = sequence.first, let format = SequenceFormat(h265: first) else { return nil }
        var record: [UInt8] = [1] + format.profile
        record += [0xf0, 0, 0xfc, 0xfc | format.chroma, 0xf8 | format.lumaDepth, 0xf8 | format.chromaDepth, 0, 0]
        record.append(UInt8(format.layers << 3) | (format.isNested ? 4 : 0) | 3)
        let arrays: [(UInt8, [[UInt8]])] = [(32, video), (33, sequence), (34, picture)]
        record.append(UInt8(arrays.count))
        for (type, units) in arrays {
            record += [0x80 | type, UInt8(units.count >> 8 & 0xff), UInt8(units.count & 0xff)]
            for unit in units { Self.append(unit, to: &record) }
        }
        return record
    }

    private static func append(_ unit: [UInt8], to record: inout [UInt8]) {
        record += [UInt8(unit.count >> 8 & 0xff), UInt8(unit.count & 0xff)] + unit
    }

    /// The number of length bytes in streams of an `avcC` or `hvcC` record; nil if it is not such a record.
    public static func lengthByteCount(record: [UInt8], codec: Codec) -> Int? {
        let index = codec == .h265 ? 21 : 4
        guard record.count > index + 1, record[0] == 1 else { return nil }
        return Int(record[index] & 3) + 1
    }

    /// The record, changed to announce 4-byte lengths.
    public static func withFourByteLengths(record: [UInt8], codec: Codec) -> [UInt8] {
        var record = record
        let index = codec == .h265 ? 21 : 4
        if record.count > index { record[index] |= 3 }
        return record
    }
}

/// The fields of a sequence parameter set that the decoder records repeat.
struct SequenceFormat {
    var chroma: UInt8 = 1
    var lumaDepth: UInt8 = 0
    var chromaDepth: UInt8 = 0
    /// H.265: the 12 bytes of the general profile, tier and level.
    var profile: [UInt8] = []
    var layers = 1
    var isNested = false

    /// H.264 §7.3.2.1.1.
    init?(h264 unit: [UInt8]) {
        var reader = BitReader(NALUnits.withoutEmulation(unit), offset: 4)
        guard reader.exponentialGolomb() != nil, let chroma = reader.exponentialGolomb(), chroma <= 3 else {
            return nil
        }
        if chroma == 3 { guard reader.bits(1) != nil else { return nil } }
        guard let luma = reader.exponentialGolomb(), let depth = reader.exponentialGolomb(), luma <= 6, depth <= 6
        else {
            return nil
        }
        (self.chroma, lumaDepth, chromaDepth) = (UInt8(chroma), UInt8(luma), UInt8(depth))
    }

    /// A reader behind the profile, tier and level of a sequence parameter set (H.265 §7.3.2.2.1 and §7.3.3); nil if it
    /// is too short.
    static func readerBehindProfile(_ bytes: [UInt8]) -> BitReader? {
        guard bytes.count >= 15 else { return nil }
        let highest = Int(bytes[2] >> 1 & 7)
        var reader = BitReader(bytes, offset: 15)
        var skipped = 0
        for _ in 0..<highest {
            guard let hasProfile = reader.bits(1), let hasLevel = reader.bits(1) else { return nil }
            skipped += (hasProfile == 1 ? 88 : 0) + (hasLevel == 1 ? 8 : 0)
        }
        if highest > 0 { skipped += (8 - highest) * 2 }
        return reader.skip(skipped) ? reader : nil
    }

    /// H.265 §7.3.2.2.1.
    init?(h265 unit: [UInt8]) {
        let bytes = NALUnits.withoutEmulation(unit)
        guard var reader = Self.readerBehindProfile(bytes) else { return nil }
        layers = Int(bytes[2] >> 1 & 7) + 1
        isNested = bytes[2] & 1 == 1
        profile = Array(bytes[3..<15])
        guard reader.exponentialGolomb() != nil, let chroma = reader.exponentialGolomb(), chroma <= 3 else {
            return nil
        }
        if chroma == 3 { guard reader.bits(1) != nil else { return nil } }
        guard reader.exponentialGolomb() != nil, reader.exponentialGolomb() != nil, let window = reader.bits(1) else {
            return nil
        }
        if window == 1 {
            for _ in 0..<4 { guard reader.exponentialGolomb() != nil else { return nil } }
        }
        guard let luma = reader.exponentialGolomb(), let depth = reader.exponentialGolomb(), luma <= 8, depth <= 8
        else {
            return nil
        }
        (self.chroma, lumaDepth, chromaDepth) = (UInt8(chroma), UInt8(luma), UInt8(depth))
    }
}

/// Reads bits, most significant first. A read past the end returns nil.
struct BitReader {
    private let bytes: [UInt8]
    private var position: Int

    init(_ bytes: [UInt8], offset: Int) {
        self.bytes = bytes
        position = offset * 8
    }

    mutating func bits(_ count: Int) -> UInt32? {
        guard count <= 32, position + count <= bytes.count * 8 else { return nil }
        var value: UInt32 = 0
        for _ in 0..<count {
            value = value << 1 | UInt32(bytes[position / 8] >> (7 - position % 8) & 1)
            position += 1
        }
        return value
    }

    mutating func skip(_ count: Int) -> Bool {
        guard position + count <= bytes.count * 8 else { return false }
        position += count
        return true
    }

    /// ue(v), H.264 §9.1.
    mutating func exponentialGolomb() -> UInt32? {
        var zeros = 0
        while true {
            guard let bit = bits(1), zeros < 32 else { return nil }
            if bit == 1 { break }
            zeros += 1
        }
        guard zeros < 32, let rest = bits(zeros) else { return nil }
        return (1 << zeros) - 1 + rest
    }
}

/// Parses H.264 and H.265 bit streams as NAL units (H.264 Annex B; ISO/IEC 14496-15).
///
/// No I/O. Every length in the input is checked.
public enum NALUnits {
    /// The units of an Annex B stream, without start codes and trailing zero bytes.
    public static func ranges(annexB bytes: [UInt8]) -> [Range<Int>] {
        let span = bytes.span
        var ranges: [Range<Int>] = []
        var start: Int?
        var index = 0
        while index + 2 < span.count {
            if span[index + 2] > 1 {
                index += 3
            } else if span[index] == 0, span[index + 1] == 0, span[index + 2] == 1 {
                if let start { append(start..<index, of: bytes, to: &ranges) }
                start = index + 3
                index += 3
            } else {
                index += 1
            }
        }
        if let start { append(start..<span.count, of: bytes, to: &ranges) }
        return ranges
    }

    /// A NAL unit never ends with a zero byte (H.264 §7.4.1), so trailing zeros belong to the stream.
    private static func append(_ range: Range<Int>, of bytes: [UInt8], to ranges: inout [Range<Int>]) {
        var end = range.upperBound
        while end > range.lowerBound, bytes[end - 1] == 0 { end -= 1 }
        if end > range.lowerBound { ranges.append(range.lowerBound..<end) }
    }

    /// The units of a length-prefixed stream; nil if the lengths do not match the bytes.
    ///
    /// - Parameter prefix: the number of bytes of each length, 1 to 4.
    public static func ranges(lengthPrefixed bytes: [UInt8], prefix: Int) -> [Range<Int>]? {
        var ranges: [Range<Int>] = []
        var index = 0
        while index < bytes.count {
            guard bytes.count - index >= prefix else { return nil }
            var length = 0
            for _ in 0..<prefix {
                length = length << 8 | Int(bytes[index])
                index += 1
            }
            guard length <= bytes.count - index else { return nil }
            if length > 0 { ranges.append(index..<index + length) }
            index += length
        }
        return ranges
    }

    /// The kind of a unit, as far as a relay needs it.
    public enum Kind: Sendable, Hashable {
        case videoParameters, sequenceParameters, pictureParameters
        /// The access unit delimiter. Length-prefixed streams omit it.
        case delimiter
        /// A slice; `isReference` is false if no other picture refers to it.
        case slice(isReference: Bool)
        case other
    }

    /// The kind of a unit from its first byte (H.264 table 7-1; H.265 table 7-1).
    public static func kind(firstByte: UInt8, codec: Codec) -> Kind {
        if codec == .h265 {
            let type = firstByte >> 1 & 0x3f
            return switch type {
            case 32: .videoParameters
            case 33: .sequenceParameters
            case 34: .pictureParameters
            case 35: .delimiter
            // Even types from 0 to 14 are sub-layer non-reference pictures.
            case 0...15: .slice(isReference: type % 2 == 1)
            case 16...31: .slice(isReference: true)
            default: .other
            }
        }
        return switch firstByte & 0x1f {
        case 1...5: .slice(isReference: firstByte & 0x60 != 0)
        case 7: .sequenceParameters
        case 8: .pictureParameters
        case 9: .delimiter
        default: .other
        }
    }

    /// A unit's payload without the emulation prevention bytes (H.264 §7.3.1), for parsers.
    public static func withoutEmulation(_ unit: [UInt8]) -> [UInt8] {
        var result: [UInt8] = []
        result.reserveCapacity(unit.count)
        var zeros = 0
        for byte in unit {
            if zeros >= 2, byte == 3 {
                zeros = 0
                continue
            }
            zeros = byte == 0 ? zeros + 1 : 0
            result.append(byte)
        }
        return result
    }
}

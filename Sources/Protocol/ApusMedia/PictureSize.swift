/// The size of the pictures that a sequence parameter set announces, in pixels after cropping.
///
/// Every field is checked: the set comes from a camera or a file.
public struct PictureSize: Sendable, Hashable {
    public let width: UInt32
    public let height: UInt32

    /// The largest width or height: an MP4 sample entry has 16 bits for each.
    private static let pixelsMax: Int64 = 65_535

    /// Parses a sequence parameter set; nil if it is damaged, or its size is out of bounds.
    public init?(sequence unit: [UInt8], codec: Codec) {
        let size: (Int64, Int64)? =
            switch codec {
            case .h264: Self.h264(unit)
            case .h265: Self.h265(unit)
            case .aac, .opus, .g711a, .g711u, .amrNarrow, .amrWide, .mp3, .l16: nil
            }
        guard let (width, height) = size, (1...Self.pixelsMax).contains(width), (1...Self.pixelsMax).contains(height)
        else { return nil }
        (self.width, self.height) = (UInt32(width), UInt32(height))
    }

    /// The profiles whose sets have a chroma format and scaling lists (H.264 §7.3.2.1.1).
    private static let highProfiles: Set<UInt8> = [100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135]

    /// H.264 §7.3.2.1.1, §7.4.2.1.1.
    private static func h264(_ unit: [UInt8]) -> (Int64, Int64)? {
        guard unit.count >= 5 else { return nil }
        var reader = BitReader(NALUnits.withoutEmulation(unit), offset: 4)
        guard reader.exponentialGolomb() != nil else { return nil }
        var chroma: UInt32 = 1
        if highProfiles.contains(unit[1]) {
            guard let format = readHighFormat(&reader) else { return nil }
            chroma = format
        }
        guard reader.exponentialGolomb() != nil, skipPictureOrder(&reader), reader.exponentialGolomb() != nil,
            reader.skip(1), let columns = reader.exponentialGolomb(), let rows = reader.exponentialGolomb(),
            let isProgressive = reader.bits(1)
        else { return nil }
        let fields: Int64 = isProgressive == 1 ? 1 : 2
        guard reader.skip(isProgressive == 1 ? 1 : 2), let crop = readCrop(&reader) else { return nil }
        let (unitX, unitY) = chromaUnits(chroma)
        return (
            (Int64(columns) + 1) * 16 - unitX * crop.horizontal,
            (Int64(rows) + 1) * 16 * fields - unitY * fields * crop.vertical
        )
    }

    /// Chroma format, bit depths and scaling lists. Returns the chroma format; 0 for planes that are coded separately.
    private static func readHighFormat(_ reader: inout BitReader) -> UInt32? {
        guard let chroma = reader.exponentialGolomb(), chroma <= 3 else { return nil }
        var isSeparate = false
        if chroma == 3 {
            guard let flag = reader.bits(1) else { return nil }
            isSeparate = flag == 1
        }
        guard reader.exponentialGolomb() != nil, reader.exponentialGolomb() != nil, reader.skip(1),
            let hasLists = reader.bits(1)
        else { return nil }
        if hasLists == 1 {
            for index in 0..<(chroma == 3 ? 12 : 8) {
                guard let isPresent = reader.bits(1) else { return nil }
                guard isPresent == 0 || skipScalingList(&reader, count: index < 6 ? 16 : 64) else { return nil }
            }
        }
        return isSeparate ? 0 : chroma
    }

    /// H.264 §7.3.2.1.1.1.
    private static func skipScalingList(_ reader: inout BitReader, count: Int) -> Bool {
        var (last, next): (Int64, Int64) = (8, 8)
        for _ in 0..<count {
            if next != 0 {
                guard let code = reader.exponentialGolomb() else { return false }
                let delta = code % 2 == 1 ? (Int64(code) + 1) / 2 : -Int64(code) / 2
                next = (last + delta + 256) % 256
            }
            last = next == 0 ? last : next
        }
        return true
    }

    private static func skipPictureOrder(_ reader: inout BitReader) -> Bool {
        switch reader.exponentialGolomb() {
        case 0: return reader.exponentialGolomb() != nil
        case 1:
            guard reader.skip(1), reader.exponentialGolomb() != nil, reader.exponentialGolomb() != nil,
                let count = reader.exponentialGolomb(), count <= 255
            else { return false }
            for _ in 0..<count { guard reader.exponentialGolomb() != nil else { return false } }
            return true
        case 2: return true
        default: return false
        }
    }

    /// H.265 §7.3.2.2.1.
    private static func h265(_ unit: [UInt8]) -> (Int64, Int64)? {
        let bytes = NALUnits.withoutEmulation(unit)
        guard var reader = SequenceFormat.readerBehindProfile(bytes), reader.exponentialGolomb() != nil,
            var chroma = reader.exponentialGolomb(), chroma <= 3
        else { return nil }
        if chroma == 3 {
            guard let isSeparate = reader.bits(1) else { return nil }
            if isSeparate == 1 { chroma = 0 }
        }
        guard let width = reader.exponentialGolomb(), let height = reader.exponentialGolomb(),
            let crop = readCrop(&reader)
        else { return nil }
        let (unitX, unitY) = chromaUnits(chroma)
        return (Int64(width) - unitX * crop.horizontal, Int64(height) - unitY * crop.vertical)
    }

    /// The flag and the four offsets of a cropping rectangle. Both codecs have them in the same form.
    private static func readCrop(_ reader: inout BitReader) -> (horizontal: Int64, vertical: Int64)? {
        guard let isCropped = reader.bits(1) else { return nil }
        guard isCropped == 1 else { return (0, 0) }
        guard let left = reader.exponentialGolomb(), let right = reader.exponentialGolomb(),
            let top = reader.exponentialGolomb(), let bottom = reader.exponentialGolomb()
        else { return nil }
        return (Int64(left) + Int64(right), Int64(top) + Int64(bottom))
    }

    /// The pixels of one unit of a cropping offset (H.264 table 6-1, H.265 table 6-1).
    private static func chromaUnits(_ chroma: UInt32) -> (x: Int64, y: Int64) {
        switch chroma {
        case 1: (2, 2)
        case 2: (2, 1)
        default: (1, 1)
        }
    }
}

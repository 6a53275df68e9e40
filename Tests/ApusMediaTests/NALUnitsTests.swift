import ApusMedia
import NIOCore
import Testing

@Suite("NAL units and decoder records (H.264 Annex B, ISO/IEC 14496-15)")
struct NALUnitsTests {
    /// A real sequence set (High, 320x240, 4:2:0) and picture set of x264.
    static let sps: [UInt8] = [
        0x67, 0x64, 0x00, 0x0d, 0xac, 0xd9, 0x41, 0x41, 0xfb, 0x01, 0x10, 0x00, 0x00, 0x03, 0x00, 0x10, 0x00, 0x00,
        0x03,
        0x03, 0x20, 0xf1, 0x42, 0x99, 0x60,
    ]
    static let pps: [UInt8] = [0x68, 0xeb, 0xe3, 0xcb, 0x22, 0xc0]

    @Test("Start codes of three and four bytes part the units; zeros behind a unit are none of it")
    func annexB() {
        let bytes: [UInt8] = [0, 0, 0, 1, 9, 16, 0, 0, 0, 1, 0x65, 1, 2, 0, 0, 1, 0x41, 3, 0, 0]
        let units = NALUnits.ranges(annexB: bytes).map { Array(bytes[$0]) }
        #expect(units == [[9, 16], [0x65, 1, 2], [0x41, 3]])
        #expect(NALUnits.ranges(annexB: []).isEmpty)
        #expect(NALUnits.ranges(annexB: [0, 0, 1]).isEmpty)
        #expect(NALUnits.ranges(annexB: [1, 2, 3, 4]).isEmpty)
    }

    @Test(
        "Lengths that do not fit are refused",
        arguments: [[0, 0, 0, 9, 1], [0, 0, 1], [255, 255, 255, 255, 0]] as [[UInt8]])
    func lengths(bytes: [UInt8]) {
        #expect(NALUnits.ranges(lengthPrefixed: bytes, prefix: 4) == nil)
    }

    @Test("An avcC record holds the sets, and gives them back (14496-15 §5.3.3)")
    func avcC() throws {
        let stream = [0, 0, 0, 1] + Self.sps + [0, 0, 1] + Self.pps
        let sets = ParameterSets(annexB: stream, codec: .h264)
        let record = try #require(sets.record(codec: .h264))
        #expect(record.prefix(8) == [1, 0x64, 0, 0x0d, 0xff, 0xe1, 0, UInt8(Self.sps.count)])
        // High profile: chroma 4:2:0 and 8 bits at the end.
        #expect(record.suffix(4) == [0xfd, 0xf8, 0xf8, 0])
        #expect(ParameterSets(record: record, codec: .h264) == sets)
        for count in record.indices { _ = ParameterSets(record: Array(record.prefix(count)), codec: .h264) }
    }

    @Test("A stream without its sets has no record")
    func incomplete() {
        #expect(ParameterSets(annexB: [0, 0, 1] + Self.sps, codec: .h264).record(codec: .h264) == nil)
        #expect(ParameterSets(annexB: [], codec: .h265).record(codec: .h265) == nil)
    }

    @Test("Emulation prevention bytes are taken out (H.264 §7.3.1)")
    func emulation() {
        #expect(NALUnits.withoutEmulation([1, 0, 0, 3, 1, 0, 0, 3, 0, 0, 3]) == [1, 0, 0, 1, 0, 0, 0, 0])
    }

    @Test("Pictures that no other refers to are known (nal_ref_idc 0; H.265 even types)")
    func references() {
        #expect(NALUnits.kind(firstByte: 0x01, codec: .h264) == .slice(isReference: false))
        #expect(NALUnits.kind(firstByte: 0x65, codec: .h264) == .slice(isReference: true))
        #expect(NALUnits.kind(firstByte: 0x00, codec: .h265) == .slice(isReference: false))
        #expect(NALUnits.kind(firstByte: 0x26, codec: .h265) == .slice(isReference: true))
        #expect(NALUnits.kind(firstByte: 0x40, codec: .h265) == .videoParameters)
    }

    @Test("Random bytes are refused or read, never a crash", arguments: 0..<UInt64(50))
    func garbage(seed: UInt64) {
        var state = seed &* 0x9e37_79b9_7f4a_7c15 | 1
        func next() -> UInt8 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return UInt8(truncatingIfNeeded: state >> 33)
        }
        for _ in 0..<40 {
            let bytes = (0..<Int(next())).map { _ in next() }
            _ = try? MediaFrame(decoding: ByteBuffer(bytes: bytes))
            _ = try? TrackConfiguration(decoding: ByteBuffer(bytes: bytes))
            for codec in [Codec.h264, .h265] {
                _ = ParameterSets(record: bytes, codec: codec)
                _ = ParameterSets(annexB: bytes, codec: codec).record(codec: codec)
            }
            _ = NALUnits.ranges(lengthPrefixed: bytes, prefix: 1 + Int(seed % 4))
        }
    }
}

import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("Media frames and configurations on the wire (D7, IV-C9)")
struct MediaFrameTests {
    @Test("A media frame is read whole only", arguments: [0, 1, 100])
    func frame(byteCount: Int) throws {
        let header = MediaHeader(
            term: 9, position: FramePosition(epoch: 2, sequence: 1 << 40), ptsMicroseconds: -5, dtsDeltaMicroseconds: -80_000,
            captureMilliseconds: 77, flags: [.key, .discardable], track: 3, rendition: 1)
        let frame = MediaFrame(header: header, payload: ByteBuffer(repeating: 0x5a, count: byteCount))
        try verify(frame, encode: { $0.encode(into: &$1) }, decode: { bytes throws(ApusError) in try MediaFrame(decoding: bytes) })
    }

    @Test("A configuration is read whole only", arguments: Codec.allCases)
    func configuration(codec: Codec) throws {
        let configuration = TrackConfiguration(
            codec: codec, trackCount: 2, first: 1920, second: 1080, third: 25_000, extraData: [1, 2, 3, 4, 5])
        try verify(
            configuration, encode: { $0.encode(into: &$1) },
            decode: { bytes throws(ApusError) in try TrackConfiguration(decoding: bytes) })
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

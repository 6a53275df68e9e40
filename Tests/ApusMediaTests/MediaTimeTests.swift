import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("Times of media frames")
struct MediaTimeTests {
    private func encoded(pts: Int64, dtsDelta: Int32) -> ByteBuffer {
        var buffer = ByteBuffer()
        let header = MediaHeader(
            position: FramePosition(epoch: 1, sequence: 1), ptsMicroseconds: pts, dtsDeltaMicroseconds: dtsDelta)
        MediaFrame(header: header, payload: ByteBuffer(bytes: [1])).encode(into: &buffer)
        return buffer
    }

    private static let wildTimes: [(pts: Int64, dtsDelta: Int32)] = [
        (.max, 0), (.min, 0), (MediaHeader.ptsMicrosecondsMax + 1, 0), (0, .min),
        (0, MediaHeader.dtsDeltaMicrosecondsMax + 1),
    ]

    @Test("A time that could overflow a sum is refused with 10001", arguments: wildTimes.indices)
    func refused(_ index: Int) {
        let (pts, dtsDelta) = Self.wildTimes[index]
        #expect(throws: ApusError(.malformed)) { try MediaFrame(decoding: encoded(pts: pts, dtsDelta: dtsDelta)) }
    }

    @Test("Times at the bounds pass, and a recorder takes any two of them")
    func bounds() throws {
        var writer = FragmentedMP4Writer()
        for pts in [MediaHeader.ptsMicrosecondsMax, -MediaHeader.ptsMicrosecondsMax, 0] {
            let frame = try MediaFrame(
                decoding: encoded(pts: pts, dtsDelta: -MediaHeader.dtsDeltaMicrosecondsMax))
            _ = try writer.write(frame)
        }
    }

    @Test("Frames that wait for a configuration that never comes are bounded (D13)")
    func waiting() throws {
        var limits = FragmentedMP4Writer.Limits()
        limits.waitingCountMax = 8
        var writer = FragmentedMP4Writer(limits: limits)
        for number in 0..<100 {
            _ = try writer.write(try MediaFrame(decoding: encoded(pts: Int64(number) * 40_000, dtsDelta: 0)))
        }
        #expect(writer.framesOmitted == 92)
    }
}

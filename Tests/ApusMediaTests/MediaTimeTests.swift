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

    @Test("A new epoch starts behind a track that is centuries ahead of the others")
    func farTrack() throws {
        var writer = FragmentedMP4Writer()
        var sequence: UInt64 = 0
        func write(
            _ track: UInt8, epoch: UInt32 = 1, pts: Int64, flags: MediaFlags = [], _ payload: ByteBuffer
        ) throws {
            let header = MediaHeader(
                position: FramePosition(epoch: epoch, sequence: sequence), ptsMicroseconds: pts, flags: flags,
                track: track)
            sequence += 1
            _ = try writer.write(MediaFrame(header: header, payload: payload))
        }
        var configuration = ByteBuffer()
        TrackConfiguration(codec: .opus, trackCount: 2, first: 48_000, second: 1, third: 960, extraData: [])
            .encode(into: &configuration)
        for track in [0, 1] as [UInt8] { try write(track, pts: 0, flags: .configuration, configuration) }
        try write(0, pts: -MediaHeader.ptsMicrosecondsMax, ByteBuffer(bytes: [1]))
        try write(1, pts: MediaHeader.ptsMicrosecondsMax, ByteBuffer(bytes: [2]))
        for epoch in [2, 3] as [UInt32] { try write(0, epoch: epoch, pts: 0, ByteBuffer(bytes: [3])) }
        _ = try writer.finish()
        #expect(writer.frameCount == 4)
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

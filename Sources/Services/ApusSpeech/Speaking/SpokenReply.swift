import ApusCore
package import ApusMedia
import NIOCore

extension Spoken {
    /// The length of a frame.
    private static let frameMicroseconds = 20_000

    /// The frames of the reply's channel: a configuration, then L16 in frames of 20 ms. The last one ends the run.
    package var frames: [MediaFrame] {
        var frames: [MediaFrame] = []
        var configuration = ByteBuffer()
        TrackConfiguration(
            codec: .l16, trackCount: 1, first: UInt32(sampleRate), second: 1,
            third: UInt32(sampleRate * Self.frameMicroseconds / 1_000_000), extraData: []
        ).encode(into: &configuration)
        frames.append(frame(0, [.configuration], configuration))
        let count = sampleRate * Self.frameMicroseconds / 1_000_000
        for first in stride(from: 0, to: samples.count, by: count) {
            var payload = ByteBuffer()
            for sample in samples[first..<min(first + count, samples.count)] { payload.writeInteger(sample) }
            frames.append(frame(first, [.key], payload))
        }
        frames.append(frame(samples.count, [.endOfEpoch], ByteBuffer()))
        return frames
    }

    private func frame(_ sample: Int, _ flags: MediaFlags, _ payload: ByteBuffer) -> MediaFrame {
        let header = MediaHeader(
            position: FramePosition(epoch: 0, sequence: 0),
            ptsMicroseconds: Int64(sample) * 1_000_000 / Int64(sampleRate), flags: flags)
        return MediaFrame(header: header, payload: payload)
    }
}

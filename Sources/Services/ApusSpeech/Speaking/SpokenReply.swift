import ApusCore
package import ApusMedia
import NIOCore

extension Spoken {
    /// The length of a frame.
    private static let frameMicroseconds = 20_000

    /// The frames of the reply's channel: a configuration, then L16 in frames of 20 ms. The last one ends the run.
    package var frames: [MediaFrame] { [configuration] + frames(from: 0) + [end(at: samples.count)] }

    /// The frame that says what the sound is.
    var configuration: MediaFrame {
        var configuration = ByteBuffer()
        TrackConfiguration(
            codec: .l16, trackCount: 1, first: UInt32(sampleRate), second: 1,
            third: UInt32(sampleRate * Self.frameMicroseconds / 1_000_000), extraData: []
        ).encode(into: &configuration)
        return frame(0, [.configuration], configuration)
    }

    /// - Parameter offset: the samples of the reply before these.
    func frames(from offset: Int) -> [MediaFrame] {
        let count = sampleRate * Self.frameMicroseconds / 1_000_000
        return stride(from: 0, to: samples.count, by: count).map { first in
            var payload = ByteBuffer()
            for sample in samples[first..<min(first + count, samples.count)] { payload.writeInteger(sample) }
            return frame(offset + first, [.key], payload)
        }
    }

    /// The frame that ends the run.
    func end(at sample: Int) -> MediaFrame { frame(sample, [.endOfEpoch], ByteBuffer()) }

    /// The same sound with another number of samples a second, by straight lines between the samples: for a reply of
    /// which another provider has spoken the beginning.
    package func converted(to rate: Int) -> Spoken {
        guard rate != sampleRate, !samples.isEmpty else { return self }
        var converted = Spoken(sampleRate: rate)
        let count = samples.count * rate / sampleRate
        converted.append(
            (0..<count).map { index in
                let place = index * sampleRate
                let (before, part) = (place / rate, place % rate)
                let (first, second) = (Int(samples[before]), Int(samples[min(before + 1, samples.count - 1)]))
                return Int16(first + (second - first) * part / rate)
            })
        return converted
    }

    private func frame(_ sample: Int, _ flags: MediaFlags, _ payload: ByteBuffer) -> MediaFrame {
        let header = MediaHeader(
            position: FramePosition(epoch: 0, sequence: 0),
            ptsMicroseconds: Int64(sample) * 1_000_000 / Int64(sampleRate), flags: flags)
        return MediaFrame(header: header, payload: payload)
    }
}

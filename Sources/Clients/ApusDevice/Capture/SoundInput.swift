import ApusClient
import ApusCore
public import ApusMedia
import ApusThreads
import CApusMedia

/// Sound from a WAV file or a microphone (IV-C7).
///
/// A microphone is a capture device of ALSA. It needs Debian's package libavdevice59.
///
/// Concurrency model: see ``AudioCapturable``.
public final class SoundInput: AudioCapturable {
    /// Where the sound is from.
    public enum Place: Sendable, Hashable {
        /// A WAV file, which is played at its own pace, in a loop or once.
        case wav(path: String, loops: Bool)
        /// A capture device of ALSA, such as `default` or `hw:0`.
        case alsa(String)
    }

    /// The length of an event.
    private static let batchMilliseconds = 20

    private let place: Place
    private let sampleRate: Int
    private let isPaced: Bool
    private let thread = SourceThread()

    /// - Parameters:
    ///   - sampleRate: the rate in which the samples are delivered, ``SoundSamples/sampleRates``.
    ///   - isPaced: false: a file is delivered as fast as it is accepted.
    public init(_ place: Place, sampleRate: Int = 48_000, isPaced: Bool = true) {
        (self.place, self.isPaced) = (place, isPaced)
        self.sampleRate = min(max(sampleRate, SoundSamples.sampleRates.lowerBound), SoundSamples.sampleRates.upperBound)
    }

    public func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
        thread.start(
            name: "apus-sound", onEnd: { error in deliver(error.map { .failed($0) } ?? .ended) },
            run: { [self] interrupt throws(ApusError) in
                switch place {
                case .wav(let path, let loops): try play(path, loops, interrupt, deliver)
                case .alsa(let device): try listen(device, interrupt, deliver)
                }
            })
    }

    public func stop() { thread.stop() }

    private func play(
        _ path: String, _ loops: Bool, _ interrupt: LibAVInterrupt,
        _ deliver: (CaptureEvent<SoundSamples>) -> Void
    ) throws(ApusError) {
        try FileSource.check(path: path)
        let input = try RawInput(
            address: "file:\(path)", format: "wav", device: false, kind: AVMEDIA_TYPE_AUDIO,
            name: "the file \(path)", options: [("protocol_whitelist", "file")], interrupt: interrupt)
        let converter = SoundConverter(sampleRate: sampleRate)
        let start = MonotonicTime.now()
        var count = 0
        while !thread.isStopped {
            let before = count
            while let frame = try input.next() {
                for samples in batches(try converter.convert(frame)) {
                    let time = Int64(count) * 1_000_000 / Int64(sampleRate)
                    if isPaced {
                        guard (start + .microseconds(time)).sleep(unless: { thread.isStopped }) else { return }
                    } else if thread.isStopped {
                        return
                    }
                    deliver(.media(SoundSamples(sampleRate: sampleRate, ptsMicroseconds: time, samples: samples)))
                    count += samples.count
                }
            }
            guard count > before else { throw ApusError(.mediaUnreadable, "the file \(path) has no sound") }
            guard loops else { return }
            try input.rewind()
        }
    }

    /// A large block of a file is split, so that it is delivered at its pace.
    private func batches(_ samples: [Int16]) -> [[Int16]] {
        let size = sampleRate * Self.batchMilliseconds / 1000
        return stride(from: 0, to: samples.count, by: size).map { start in
            Array(samples[start..<min(start + size, samples.count)])
        }
    }

    private func listen(
        _ device: String, _ interrupt: LibAVInterrupt, _ deliver: (CaptureEvent<SoundSamples>) -> Void
    ) throws(ApusError) {
        let input = try RawInput(
            address: device, format: "alsa", device: true, kind: AVMEDIA_TYPE_AUDIO, name: "the microphone \(device)",
            options: [("sample_rate", "\(sampleRate)"), ("channels", "1")], interrupt: interrupt)
        let converter = SoundConverter(sampleRate: sampleRate)
        var first: Int64?
        var count = 0
        while !thread.isStopped, let frame = try input.next() {
            let samples = try converter.convert(frame)
            // The clock of the device says where samples were lost; without it they are counted.
            var time = Int64(count) * 1_000_000 / Int64(sampleRate)
            if frame.pointee.pts != APUS_AV_NOPTS {
                let now = av_rescale_q(frame.pointee.pts, input.timeBase, AVRational(num: 1, den: 1_000_000))
                let start = first ?? now
                (first, time) = (start, max(0, now - start))
            }
            deliver(.media(SoundSamples(sampleRate: sampleRate, ptsMicroseconds: time, samples: samples)))
            count += samples.count
        }
    }
}

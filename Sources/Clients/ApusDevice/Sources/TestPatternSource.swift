import ApusClient
import ApusCore
import ApusMedia
import ApusThreads
import CApusMedia
import Glibc
import NIOCore

/// A simulated camera: a moving picture with the frame's number and the clock, and a tone.
///
/// H.264 from libx264 without B frames, and by default AAC at 48 kHz. The number in the picture starts at 0 and counts
/// every frame, so that a person can see a lost frame.
///
/// Concurrency model: see ``MediaSource``.
public final class TestPatternSource: MediaSource {
    public let pattern: TestPattern
    private let frameCountMax: UInt64
    private let isPaced: Bool
    private let thread = SourceThread()

    /// - Parameters:
    ///   - frameCountMax: the number of pictures after which the source ends.
    ///   - isPaced: true: wait for each frame's time; false: deliver frames as fast as they are accepted.
    public init(_ pattern: TestPattern, frameCountMax: UInt64 = .max, isPaced: Bool = true) {
        self.pattern = pattern
        self.frameCountMax = frameCountMax
        self.isPaced = isPaced
    }

    public func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void) {
        thread.start(name: "apus-pattern", onEnd: SourceEvent.end(deliver)) { [self] _ throws(ApusError) in
            try run(deliver)
        }
    }

    public func stop() { thread.stop() }

    private func run(_ deliver: (SourceEvent) -> Void) throws(ApusError) {
        let video = try Encoder(video: pattern.encoding, ticksPerSecond: pattern.frameRate)
        let sound = pattern.hasTone ? try SoundEncoder(pattern.sound) : nil
        let tone = Tone(sampleRate: pattern.sound.sampleRate)
        var shaper = TrackShaper(input: videoInput(video))
        guard let configuration = shaper.configuration else {
            throw ApusError(.internalFailure, "the encoder did not report its parameters")
        }
        deliver(.configuration(track: 0, configuration))
        if var configuration = sound?.configuration {
            configuration.trackCount = 2
            deliver(.configuration(track: 1, configuration))
        }

        let canvas = PatternCanvas(width: pattern.width, height: pattern.height)
        let rate = UInt64(pattern.frameRate)
        let start = MonotonicTime.now()
        var samples = 0
        for number in 0..<frameCountMax {
            // Computed from the frame's number, not from the previous frame, so there is no drift.
            let due = start + .nanoseconds(Int64(number * 1_000_000_000 / rate))
            if isPaced {
                guard due.sleep(unless: { thread.isStopped }) else { return }
            } else if thread.isStopped {
                return
            }
            try video.prepareFrame()
            canvas.draw(number: number, milliseconds: Self.wallClock(), into: video.frame)
            for output in try video.encode(pts: Int64(number)) {
                guard let shaped = shaper.shape(output.bytes, isKey: output.isKey) else { continue }
                let time = output.pts * 1_000_000 / Int64(rate)
                var flags: MediaFlags = output.isKey ? [.key] : []
                if shaped.isDiscardable { flags.insert(.discardable) }
                SourceFrame(track: 0, pts: time, dts: time, flags: flags, payload: shaped.payload).deliver(to: deliver)
            }
            guard let sound else { continue }
            let end = Int(number + 1) * tone.sampleRate / Int(rate)
            for output in try sound.encode(tone.samples(samples..<end)) {
                SourceFrame(
                    track: 1, pts: output.ptsMicroseconds, dts: output.ptsMicroseconds, flags: [],
                    payload: output.payload
                ).deliver(to: deliver)
            }
            samples = end
        }
    }

    private func videoInput(_ encoder: Encoder) -> TrackConfiguration {
        TrackConfiguration(
            codec: .h264, trackCount: pattern.hasTone ? 2 : 1, first: UInt32(pattern.width),
            second: UInt32(pattern.height),
            third: UInt32(pattern.frameRate) * 1000, extraData: encoder.extraData)
    }

    /// Unix time in milliseconds, for the picture only.
    private static func wallClock() -> UInt64 {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return UInt64(time.tv_sec) * 1000 + UInt64(time.tv_nsec) / 1_000_000
    }
}

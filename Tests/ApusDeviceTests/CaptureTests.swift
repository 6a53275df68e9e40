import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Synchronization
import Testing

@Suite("Captured sound and pictures, and their encoders (IV-C7, IV-C8, IV-C9, IV-C10)")
struct CaptureTests {
    let folder = Folder()

    /// Sound of an app's own: a tone, in blocks of 10 ms, as fast as it is taken.
    private final class Tone: AudioCapturable {
        private let sampleRate: Int
        private let hertz: Double
        private let seconds: Double
        /// The time that is left out after the first second, in microseconds.
        private let gap: Int64
        private let isPaced: Bool

        init(
            sampleRate: Int, hertz: Double = 440, seconds: Double = 2, gap: Int64 = 0, isPaced: Bool = false
        ) {
            (self.sampleRate, self.hertz, self.seconds, self.gap) = (sampleRate, hertz, seconds, gap)
            self.isPaced = isPaced
        }

        func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
            Thread.detachNewThread { [self] in
                let size = sampleRate / 100
                let step = hertz * 2 * Double.pi / Double(sampleRate)
                for first in stride(from: 0, to: Int(seconds * Double(sampleRate)), by: size) {
                    if isPaced { Thread.sleep(forTimeInterval: 0.01) }
                    let samples = (first..<first + size).map { Int16(8_000 * sin(Double($0) * step)) }
                    let time = Int64(first) * 1_000_000 / Int64(sampleRate) + (first >= sampleRate ? gap : 0)
                    deliver(.media(SoundSamples(sampleRate: sampleRate, ptsMicroseconds: time, samples: samples)))
                }
                deliver(.ended)
            }
        }

        func stop() {}
    }

    /// Pictures of an app's own: grey ones.
    private final class Greys: VideoCapturable {
        private let count: Int
        private let width: Int
        /// How long the camera takes to begin.
        private let delay: Double

        init(count: Int, width: Int = 160, delay: Double = 0) {
            (self.count, self.width, self.delay) = (count, width, delay)
        }

        func start(_ deliver: @escaping @Sendable (CaptureEvent<Picture>) -> Void) {
            Thread.detachNewThread { [count, width, delay] in
                Thread.sleep(forTimeInterval: delay)
                for number in 0..<count {
                    if delay > 0 { Thread.sleep(forTimeInterval: 0.04) }
                    let bytes = [UInt8](repeating: UInt8(number), count: Picture.byteCount(width: width, height: 120))
                    deliver(
                        .media(
                            Picture(width: width, height: 120, ptsMicroseconds: Int64(number) * 40_000, bytes: bytes)))
                }
                deliver(.ended)
            }
        }

        func stop() {}
    }

    /// What a source sends as sound, decoded at 48,000 samples a second.
    private func decoded(_ delivered: Delivered, track: UInt8 = 0) throws -> [Int16] {
        let decoder = try SoundDecoder(try #require(delivered.configuration(track)), sampleRate: 48_000)
        return try delivered.frames(track: track).flatMap { frame in
            let header = MediaHeader(position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: frame.pts)
            return try decoder.decode(MediaFrame(header: header, payload: frame.payload)).flatMap(\.samples)
        }
    }

    /// The frequency of a tone, by its zero crossings, without its first and last tenth of a second.
    private func frequency(_ samples: [Int16]) -> Double {
        let inner = samples.dropFirst(4_800).dropLast(4_800)
        let crossings = zip(inner, inner.dropFirst()).count { $0 < 0 && $1 >= 0 }
        return Double(crossings) * 48_000 / Double(max(inner.count, 1))
    }

    @Test(
        "Each codec's header comes first and says what is sent; the tone is heard",
        arguments: [
            ("aac", 48_000, 1_024), ("aac@8000", 8_000, 1_024), ("aac@16000", 16_000, 1_024), ("opus", 48_000, 960),
            ("g711a", 8_000, 160), ("g711u", 8_000, 160), ("amrNarrow", 8_000, 160), ("amrWide", 16_000, 320),
        ])
    func codecs(text: String, sampleRate: Int, samplesPerFrame: Int) async throws {
        let encoding = text == "aac" ? SoundEncoding.standard : try SoundEncoding(parsing: text)
        // Microphones of other rates: samples are converted.
        for captured in [16_000, 44_100] {
            let delivered = await collect(
                from: try CaptureSource(audio: Tone(sampleRate: captured), sound: encoding))
            #expect(delivered.failure == nil && delivered.isEnded)
            let header = try #require(delivered.configuration(0))
            #expect(header.codec == encoding.codec && header.sampleRate == sampleRate && header.channelCount == 1)
            #expect(header.third == samplesPerFrame && header.trackCount == 1)
            let duration = Int64(samplesPerFrame) * 1_000_000 / Int64(sampleRate)
            let times = delivered.frames.map(\.pts)
            // All of it, with the last samples: at most one frame more.
            #expect((0...2).contains(times.count - Int(2_000_000 / duration)), "\(times.count) frames")
            // A frame of the encoder's start can be shorter.
            #expect(zip(times, times.dropFirst()).dropFirst().allSatisfy { abs($1 - $0 - duration) <= 2 }, "\(times)")
            let samples = try decoded(delivered)
            #expect(abs(frequency(samples) - 440) < 6, "\(frequency(samples)) Hz of \(captured)")
        }
    }

    @Test(
        "Encodings that do not exist are refused with 10022",
        arguments: [
            "", "mp3", "h264", "aac@", "aac@7999", "aac@x", "opus@16000", "g711a@16000", "amrNarrow@16000",
            "amrWide@8000", "amr", "aac@8000@1",
        ])
    func refused(text: String) {
        let error = #expect(throws: ApusError.self) { try SoundEncoding(parsing: text) }
        #expect(error?.code == .configurationInvalid)
    }

    @Test("Codecs without an encoder are refused with 21036, and bit rates out of range with 10022")
    func refusedNumbers() {
        for codec in [Codec.h264, .h265, .mp3] {
            let error = #expect(throws: ApusError.self) { try SoundEncoding(codec: codec) }
            #expect(error?.code == .encoderUnavailable)
        }
        for bits in [0, -1, 7_999, 256_001, .max] {
            let error = #expect(throws: ApusError.self) { try SoundEncoding(codec: .aac, bitsPerSecond: bits) }
            #expect(error?.code == .configurationInvalid)
        }
        #expect(throws: ApusError.self) { try CaptureSource() }
    }

    @Test("Where captured sound has a gap, the times have it too; where it goes back, they do not")
    func gaps() async throws {
        let encoding = try SoundEncoding(codec: .g711a)
        let later = await collect(
            from: try CaptureSource(audio: Tone(sampleRate: 8_000, gap: 3_000_000), sound: encoding))
        let times = later.frames.map(\.pts)
        #expect(times.count == 100)
        let steps = zip(times, times.dropFirst()).map { $1 - $0 }
        #expect(steps.count { $0 != 20_000 } == 1 && steps.max() == 3_020_000, "\(steps)")

        // Half a second is heard again: its first 0.4 s are left out, as 0.1 s are allowed.
        let earlier = await collect(
            from: try CaptureSource(audio: Tone(sampleRate: 8_000, gap: -500_000), sound: encoding))
        let others = earlier.frames.map(\.pts)
        #expect(zip(others, others.dropFirst()).allSatisfy { $1 - $0 == 20_000 })
        #expect(others.count == 80, "\(others.count)")
    }

    @Test("Times out of range end the source with 10022", arguments: [Int64.min, -1 << 52, 1 << 52, .max])
    func times(gap: Int64) async throws {
        final class Wrong: AudioCapturable {
            let gap: Int64
            init(_ gap: Int64) { self.gap = gap }
            func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
                Thread.detachNewThread { [gap] in
                    for time in [0, gap] {
                        deliver(.media(SoundSamples(sampleRate: 8_000, ptsMicroseconds: time, samples: [0])))
                    }
                }
            }
            func stop() {}
        }
        let delivered = await collect(from: try CaptureSource(audio: Wrong(gap)))
        #expect(delivered.failure?.code == .configurationInvalid)
    }

    @Test("A camera that begins late has its pictures at the time of the sound, and their headers come first")
    func both() async throws {
        let control = TimerLateness()
        let delivered = await collect(
            from: try CaptureSource(
                video: Greys(count: 25, delay: 0.5), audio: Tone(sampleRate: 48_000, isPaced: true)))
        #expect(delivered.failure == nil && delivered.isEnded)
        #expect(delivered.configurations.map(\.configuration.codec) == [.h264, .aac])
        #expect(delivered.configurations.allSatisfy { $0.configuration.trackCount == 2 })
        #expect(delivered.configuration(0)?.width == 160 && delivered.configuration(0)?.height == 120)
        let (video, audio) = (delivered.frames(track: 0), delivered.frames(track: 1))
        #expect(video.count == 25 && video.first?.flags.contains(.key) == true && audio.count > 20)
        #expect(zip(video, video.dropFirst()).allSatisfy { abs($1.pts - $0.pts - 40_000) < 30 })
        // Each track's frames have arrived at their times, so both have one line. Either may be as late as a timer.
        let late = control.stop().milliseconds
        let start = try #require(video.first)
        for frame in [audio.first, audio.last].compactMap(\.self) {
            let apart = Double(frame.pts - start.pts) / 1_000 - (frame.at - start.at).milliseconds
            #expect(abs(apart) < 400 + 2 * late, "\(apart) ms, and timers were late by \(late) ms at most")
        }
        let decoder = try PictureDecoder(try #require(delivered.configuration(0)))
        let pictures = try video.flatMap { frame in
            let header = MediaHeader(position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: frame.pts)
            return try decoder.decode(MediaFrame(header: header, payload: frame.payload))
        }
        #expect(pictures.count == 25)
        #expect(pictures.enumerated().allSatisfy { abs(Int($1.bytes[0]) - $0) <= 3 && $1.width == 160 })
    }

    @Test("Sound goes on where a camera ends before its first picture")
    func noPicture() async throws {
        let delivered = await collect(
            from: try CaptureSource(video: Greys(count: 0), audio: Tone(sampleRate: 48_000, seconds: 1, isPaced: true)))
        #expect(delivered.failure == nil && delivered.isEnded)
        #expect(delivered.configurations.map(\.configuration.codec) == [.aac])
        #expect(delivered.frames(track: 0).count > 20 && delivered.frames(track: 1).isEmpty)
        #expect(delivered.frames.allSatisfy { $0.flags.contains(.key) }, "a receiver cannot begin")
    }

    @Test("A stop from within the delivery ends a source whose captures end at once, with one end")
    func stopInside() async throws {
        final class Prompt: AudioCapturable {
            let deliver = Mutex<(@Sendable (CaptureEvent<SoundSamples>) -> Void)?>(nil)
            func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
                self.deliver.withLock { $0 = deliver }
                deliver(
                    .media(
                        SoundSamples(
                            sampleRate: 8_000, ptsMicroseconds: 0, samples: [Int16](repeating: 0, count: 1_600))))
            }
            func stop() { deliver.withLock { $0 }?(.ended) }
        }
        let delivered = await collect(
            from: try CaptureSource(audio: Prompt(), sound: try SoundEncoding(codec: .g711u)), frames: 3)
        #expect(delivered.frames.count == 3 && delivered.isEnded && delivered.failure == nil)
    }

    @Test("A picture of another size, or with too few bytes, ends the source with 10022")
    func wrongPicture() async throws {
        final class Wrong: VideoCapturable {
            func start(_ deliver: @escaping @Sendable (CaptureEvent<Picture>) -> Void) {
                Thread.detachNewThread {
                    for width in [160, 176] {
                        let bytes = [UInt8](repeating: 0, count: Picture.byteCount(width: 160, height: 120))
                        deliver(
                            .media(Picture(width: width, height: 120, ptsMicroseconds: Int64(width), bytes: bytes)))
                    }
                }
            }
            func stop() {}
        }
        let delivered = await collect(from: try CaptureSource(video: Wrong()))
        #expect(delivered.failure?.code == .configurationInvalid)
        #expect(delivered.frames.count == 1)
    }

    @Test("Encoders of an app are used in place of the default ones (IV-C10)")
    func ownEncoders() async throws {
        final class Raw: AudioEncodable {
            let configuration = TrackConfiguration(
                codec: .g711a, trackCount: 1, first: 8_000, second: 1, third: 80, extraData: [])
            func encode(_ sound: SoundSamples) throws(ApusError) -> [EncodedFrame] {
                [
                    EncodedFrame(
                        payload: ByteBuffer(string: "\(sound.samples.count)"), ptsMicroseconds: sound.ptsMicroseconds)
                ]
            }
            func finish() throws(ApusError) -> [EncodedFrame] {
                [EncodedFrame(payload: ByteBuffer(string: "end"), ptsMicroseconds: 1_000_000)]
            }
        }
        let delivered = await collect(
            from: try CaptureSource(
                audio: Tone(sampleRate: 8_000, seconds: 1),
                makeAudioEncoder: { () throws(ApusError) in Raw() }))
        #expect(delivered.frames.count == 101)
        #expect(delivered.frames.dropLast().allSatisfy { String(buffer: $0.payload) == "80" })
        #expect(delivered.frames.last.map { String(buffer: $0.payload) } == "end")
        let failing = await collect(
            from: try CaptureSource(
                audio: Tone(sampleRate: 8_000),
                makeAudioEncoder: { () throws(ApusError) in throw ApusError(.mediaUnreadable, "no encoder") }))
        #expect(failing.failure?.code == .mediaUnreadable && failing.frames.isEmpty)
    }

    /// A WAV file of two channels with 22,050 samples a second.
    private func wav(_ hertz: Int, seconds: Int) throws -> String {
        let path = folder.file("tone.wav")
        let tool = try #require(Tool.ffmpeg)
        let arguments = [
            "-v", "error", "-y", "-f", "lavfi", "-i", "sine=frequency=\(hertz):sample_rate=22050", "-ac", "2", "-t",
            "\(seconds)", path,
        ]
        try #require(Tool.run(tool, arguments) != nil, "ffmpeg cannot make a file")
        return path
    }

    @Test("A WAV file is sent at its pace, also in a loop", .enabled(if: Tool.ffmpeg != nil))
    func wavFile() async throws {
        let path = try wav(880, seconds: 1)
        let opus = try SoundEncoding(codec: .opus)
        let once = await collect(
            from: try CaptureSource(
                audio: SoundInput(.wav(path: path, loops: false), isPaced: false), sound: opus))
        #expect(once.failure == nil && once.isEnded && abs(once.frames.count - 50) <= 2)
        let samples = try decoded(once)
        #expect(abs(frequency(samples) - 880) < 12, "\(frequency(samples)) Hz")
        let start = MonotonicTime.now()
        let looped = await collect(
            from: try CaptureSource(audio: SoundInput(.wav(path: path, loops: true)), sound: opus), frames: 100)
        let seconds = (MonotonicTime.now() - start).milliseconds / 1000
        #expect(looped.frames.count == 100 && seconds > 1.8 && seconds < 15, "\(seconds) s")
    }

    // Debian's package ffmpeg brings libavdevice.
    @Test("Files and devices that are missing are told with 10026", .enabled(if: Tool.ffmpeg != nil))
    func missing() async throws {
        for capture in [SoundInput(.wav(path: "/nonexistent.wav", loops: true)), SoundInput(.alsa("nonexistent"))] {
            let delivered = await collect(from: try CaptureSource(audio: capture))
            #expect(delivered.failure?.code == .mediaUnreadable, "\(String(describing: delivered.failure))")
        }
        let camera = await collect(from: try CaptureSource(video: CameraInput(path: "/dev/video99")))
        #expect(camera.failure?.code == .mediaUnreadable, "\(String(describing: camera.failure))")
        let text = folder.file("text.wav")
        try Data("this is no sound".utf8).write(to: URL(fileURLWithPath: text))
        let delivered = await collect(from: try CaptureSource(audio: SoundInput(.wav(path: text, loops: true))))
        #expect(delivered.failure?.code == .mediaUnreadable)
    }

    @Test("A capture device of ALSA is heard, and stops when it is asked to", .enabled(if: Tool.ffmpeg != nil))
    func microphone() async throws {
        // ALSA's own device without hardware.
        let delivered = await collect(
            from: try CaptureSource(audio: SoundInput(.alsa("null")), sound: try SoundEncoding(codec: .g711u)),
            frames: 50)
        #expect(delivered.failure == nil, "\(String(describing: delivered.failure))")
        #expect(delivered.frames.count == 50 && delivered.isEnded)
        #expect(try decoded(delivered).count > 40_000)
    }
}

import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Synchronization
import Testing

@Suite("Decoding and rendering what a player receives (IV-C9, IV-C10)")
struct RenderTests {
    let folder = Folder()

    private final class Sounds: AudioRenderable {
        let sampleRate = 16_000
        let delayMaxMicroseconds: Int64?
        let seen = Mutex<[SoundSamples]>([])
        let isFinished = Mutex(false)
        /// How long the first sound takes.
        let firstDelay: Double

        init(delayMax: Int64? = nil, firstDelay: Double = 0) {
            (delayMaxMicroseconds, self.firstDelay) = (delayMax, firstDelay)
        }
        func render(_ sound: SoundSamples) throws(ApusError) {
            let isFirst = seen.withLock { seen in
                seen.append(sound)
                return seen.count == 1
            }
            if isFirst { Thread.sleep(forTimeInterval: firstDelay) }
        }
        func finish() throws(ApusError) { isFinished.withLock { $0 = true } }
    }

    private final class Pictures: VideoRenderable {
        let seen = Mutex<[Picture]>([])
        let failsAfter: Int
        let delay: Double

        init(failsAfter: Int = .max, delay: Double = 0) { (self.failsAfter, self.delay) = (failsAfter, delay) }
        func render(_ picture: Picture) throws(ApusError) {
            if delay > 0 { Thread.sleep(forTimeInterval: delay) }
            let count = seen.withLock { seen in
                seen.append(picture)
                return seen.count
            }
            if count > failsAfter { throw ApusError(.storageFailed, "no display") }
        }
        func finish() throws(ApusError) {}
    }

    @Test("Every picture and all sound of a stream are rendered, at the rate of the renderer, from the header alone")
    func both() async throws {
        let (sounds, pictures) = (Sounds(), Pictures())
        let renderer = try MediaRenderer(audio: sounds, video: pictures)
        for frame in try await publish(try pattern(frames: 50)) { renderer.render(frame) }
        try renderer.finish()
        let shown = pictures.seen.withLock { $0 }
        #expect(shown.count == 50 && shown.allSatisfy { $0.width == 320 && $0.height == 240 })
        #expect(zip(shown, shown.dropFirst()).allSatisfy { $1.ptsMicroseconds - $0.ptsMicroseconds == 40_000 })
        let heard = sounds.seen.withLock { $0 }
        #expect(heard.allSatisfy { $0.sampleRate == 16_000 })
        #expect(abs(heard.reduce(0) { $0 + $1.samples.count } - 32_000) < 1_600)
        #expect(heard.flatMap(\.samples).contains { $0 > 1_000 })
    }

    @Test("Decoders of an app are used in place of the default ones (IV-C10)")
    func ownDecoder() async throws {
        final class Silent: AudioDecodable {
            func decode(_ frame: MediaFrame) throws(ApusError) -> [SoundSamples] {
                [SoundSamples(sampleRate: 16_000, ptsMicroseconds: frame.header.ptsMicroseconds, samples: [7])]
            }
            func finish() throws(ApusError) -> [SoundSamples] {
                [SoundSamples(sampleRate: 16_000, ptsMicroseconds: 0, samples: [8])]
            }
        }
        let asked = Mutex<[Codec]>([])
        let sounds = Sounds()
        let renderer = try MediaRenderer(
            audio: sounds, video: nil,
            makeAudioDecoder: { configuration, _ throws(ApusError) in
                asked.withLock { $0.append(configuration.codec) }
                return Silent()
            })
        let frames = try await publish(try pattern(frames: 25))
        for frame in frames { renderer.render(frame) }
        try renderer.finish()
        #expect(asked.withLock { $0 } == [.aac])
        let count = frames.count { $0.header.track == 1 && !$0.header.flags.contains(.configuration) }
        #expect(sounds.seen.withLock { $0.count } == count + 1 && count > 20)
        #expect(sounds.seen.withLock { $0.last?.samples } == [8])
    }

    @Test("A renderer that fails ends the rendering with its error, and the other one is told of the end")
    func failure() async throws {
        let sounds = Sounds()
        let failing = try MediaRenderer(audio: sounds, video: Pictures(failsAfter: 3))
        for frame in try await publish(try pattern(frames: 50)) { failing.render(frame) }
        let error = #expect(throws: ApusError.self) { try failing.finish() }
        #expect(error?.code == .storageFailed)
        #expect(sounds.isFinished.withLock { $0 })
    }

    @Test("A renderer that is too slow goes on with the newest frames, video with a key frame, and they are counted")
    func slow() async throws {
        // A key frame every second: 25 pictures and some 47 of sound.
        let frames = try await publish(try pattern(frames: 500))
        let pictures = Pictures(delay: 0.002)
        let renderer = try MediaRenderer(audio: nil, video: pictures)
        for frame in frames { renderer.render(frame) }
        try renderer.finish()
        #expect(renderer.framesDropped > 100)
        let times = pictures.seen.withLock { $0.map(\.ptsMicroseconds) }
        #expect(times.last == Int64(19_960_000), "\(times.suffix(3))")
        for (earlier, later) in zip(times, times.dropFirst()) where later - earlier > 40_000 {
            #expect(later % 1_000_000 == 0, "pictures go on at \(later)")
        }
    }

    @Test("Sound that is too late for a loudspeaker is left out")
    func late() async throws {
        let sounds = Sounds(delayMax: 500_000, firstDelay: 1)
        let renderer = try MediaRenderer(audio: sounds, video: nil)
        let frames = try await publish(try pattern(frames: 75))
        for frame in frames { renderer.render(frame) }
        try renderer.finish()
        let heard = sounds.seen.withLock { $0.map(\.ptsMicroseconds) }
        let last = try #require(frames.last { $0.header.track == 1 }?.header.ptsMicroseconds)
        #expect(heard.last == last)
        // The first ones, and half a second.
        #expect(heard.count < 60, "\(heard.count) frames of sound")
        #expect(heard.dropFirst(30).allSatisfy { last - $0 <= 500_000 })
    }

    @Test("A publisher that comes back with other tracks is rendered")
    func otherTracks() async throws {
        let (sounds, pictures) = (Sounds(), Pictures())
        let renderer = try MediaRenderer(audio: sounds, video: pictures)
        for frame in try await publish(try pattern(frames: 25), epoch: 1) { renderer.render(frame) }
        let encoding = try SoundEncoding(codec: .opus)
        let tone = try CaptureSource(audio: Silence(), sound: encoding)
        for frame in try await publish(tone, epoch: 2) { renderer.render(frame) }
        for frame in try await publish(try pattern(frames: 25), epoch: 3) { renderer.render(frame) }
        try renderer.finish()
        #expect(pictures.seen.withLock { $0.count } == 50)
        // A second of each run.
        let count = sounds.seen.withLock { $0.reduce(0) { $0 + $1.samples.count } }
        #expect(abs(count - 48_000) < 4_800, "\(count) samples")
    }

    private final class Silence: AudioCapturable {
        func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
            let samples = [Int16](repeating: 0, count: 48_000)
            deliver(.media(SoundSamples(sampleRate: 48_000, ptsMicroseconds: 0, samples: samples)))
            deliver(.ended)
        }
        func stop() {}
    }

    /// A frame of a track, as another side may send it.
    private func frame(_ payload: ByteBuffer, pts: Int64 = 0, isConfiguration: Bool = false) -> MediaFrame {
        MediaFrame(
            header: MediaHeader(
                position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: pts,
                flags: isConfiguration ? .configuration : []),
            payload: payload)
    }

    @Test(
        "Headers that no sound has, and times from anywhere, cost little and end nothing else",
        arguments: [0, 1, 100, UInt32.max])
    func hostile(sampleRate: UInt32) throws {
        let file = try WAVFile(path: folder.file("hostile.wav"))
        let renderer = try MediaRenderer(audio: file, video: nil)
        var header = ByteBuffer()
        TrackConfiguration(
            codec: .g711a, trackCount: 1, first: sampleRate, second: 1, third: 160, extraData: []
        ).encode(into: &header)
        renderer.render(frame(header, isConfiguration: true))
        renderer.render(frame(ByteBuffer(repeating: 0, count: MediaFrame.payloadByteCountMax)))
        let error = #expect(throws: ApusError.self) { try renderer.finish() }
        #expect(error?.code == .mediaUnreadable, "\(String(describing: error))")

        let other = try MediaRenderer(audio: try WAVFile(path: folder.file("times.wav")), video: nil)
        header.clear()
        TrackConfiguration(
            codec: .g711a, trackCount: 1, first: 8_000, second: 1, third: 160, extraData: []
        ).encode(into: &header)
        other.render(frame(header, isConfiguration: true))
        for pts in [0, Int64.max, .min, 0, 1 << 52, -1 << 52] {
            other.render(frame(ByteBuffer(repeating: 0, count: 160), pts: pts))
        }
        try other.finish()
        let bytes = try FileManager.default.attributesOfItem(atPath: folder.file("times.wav"))[.size] as? Int ?? .max
        // At most the silence of a minute and some seconds.
        #expect(bytes < 75 * 96_000, "\(bytes) bytes")
    }

    @Test(
        "A WAV file has the sound with silence in its gaps, and can be read before its end",
        .enabled(if: Tool.ffprobe != nil))
    func wavFile() throws {
        let tool = try #require(Tool.ffprobe)
        let path = folder.file("out.wav")
        let file = try WAVFile(path: path, sampleRate: 8_000)
        func second(_ at: Int64) -> SoundSamples {
            SoundSamples(sampleRate: 8_000, ptsMicroseconds: at, samples: [Int16](repeating: 1_000, count: 8_000))
        }
        try file.render(second(0))
        let early = try #require(Tool.run(tool, ["-v", "error", "-show_packets", path]))
        #expect(early.contains("codec_type=audio"))
        try file.render(second(3_000_000))
        // A gap of a day is shortened.
        try file.render(second(86_400_000_000))
        try file.finish()
        try file.finish()
        // Three of sound, and the silence that a file may have; more if this machine was slow.
        let seconds = 3 + WAVFile.silenceMaxSeconds
        let bytes = try Data(contentsOf: URL(fileURLWithPath: path))
        #expect(bytes.count >= 44 + seconds * 16_000 && bytes.count < 44 + (seconds + 10) * 16_000)
        let entries = "format=duration:stream=codec_name,sample_rate,channels"
        let text = Tool.run(tool, ["-v", "error", "-show_entries", entries, "-of", "csv=p=0", path])
        #expect(text?.contains("pcm_s16le,8000,1") == true && text?.contains("\(seconds)") == true, "\(text ?? "")")
        #expect(bytes[44 + 16_000 * 2] == 0 && bytes[44 + 16_000 * 3 + 1] == 3)
    }

    @Test("A YUV4MPEG2 file has every picture; a changed size is told with 21035", .enabled(if: Tool.ffprobe != nil))
    func y4mFile() async throws {
        let path = folder.file("out.y4m")
        let renderer = try MediaRenderer(audio: nil, video: try Y4MFile(path: path))
        for frame in try await publish(try pattern(frames: 25)) { renderer.render(frame) }
        try renderer.finish()
        let entries = "stream=width,height,nb_read_frames"
        let text = Tool.run(
            try #require(Tool.ffprobe),
            ["-v", "error", "-count_frames", "-show_entries", entries, "-of", "csv=p=0", path])
        #expect(text?.contains("320,240,25") == true, "\(text ?? "")")
        let file = try Y4MFile(path: path)
        func picture(_ width: Int) -> Picture {
            Picture(
                width: width, height: 2, ptsMicroseconds: 0,
                bytes: [UInt8](repeating: 0, count: Picture.byteCount(width: width, height: 2)))
        }
        try file.render(picture(2))
        let error = #expect(throws: ApusError.self) { try file.render(picture(4)) }
        #expect(error?.code == .pictureSizeChanged)
    }

    @Test("A full or missing place is told with 10021, and a rate that no file has with 10022")
    func places() {
        for path in ["/nonexistent/out", "/dev"] {
            let errors = [
                #expect(throws: ApusError.self) { try WAVFile(path: path) },
                #expect(throws: ApusError.self) { try Y4MFile(path: path) },
            ]
            #expect(errors.allSatisfy { $0?.code == .storageFailed })
        }
        let error = #expect(throws: ApusError.self) { try WAVFile(path: "/dev/full") }
        #expect(error?.code == .storageFailed)
        // The disk becomes full on the way.
        let full = #expect(throws: ApusError.self) {
            try Y4MFile(path: "/dev/full").render(
                Picture(width: 2, height: 2, ptsMicroseconds: 0, bytes: [UInt8](repeating: 0, count: 6)))
        }
        #expect(full?.code == .storageFailed)
        let rate = #expect(throws: ApusError.self) { try WAVFile(path: folder.file("x.wav"), sampleRate: 4_000) }
        #expect(rate?.code == .configurationInvalid)
    }

    // Debian's package ffmpeg brings libavdevice.
    @Test("A playback device of ALSA takes sound; a missing one is told with 10026", .enabled(if: Tool.ffmpeg != nil))
    func loudspeaker() throws {
        let speaker = try Loudspeaker(device: "null", sampleRate: 8_000)
        for number in 0..<50 {
            try speaker.render(
                SoundSamples(
                    sampleRate: 8_000, ptsMicroseconds: Int64(number) * 20_000,
                    samples: [Int16](repeating: 0, count: 160)))
        }
        try speaker.finish()
        let error = #expect(throws: ApusError.self) { try Loudspeaker(device: "nonexistent") }
        #expect(error?.code == .mediaUnreadable)
    }
}

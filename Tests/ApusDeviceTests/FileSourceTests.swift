import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import Testing

@Suite("A file as a camera (issue: device agent; IV-G5)", .serialized)
struct FileSourceTests {
    let folder = Folder()
    let log = Logger(label: "test")

    private func make(_ name: String, _ arguments: [String], seconds: Int = 2) throws -> String {
        let ffmpeg = try #require(Tool.ffmpeg)
        let path = folder.file(name)
        let inputs = [
            "-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25:duration=\(seconds)",
            "-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000:duration=\(seconds)",
        ]
        try #require(Tool.run(ffmpeg, inputs + arguments + [path]) != nil, "ffmpeg made \(name)")
        return path
    }

    private func expectDecodeOrder(_ result: Delivered) {
        for track in 0..<UInt8(2) {
            let times = result.frames(track: track).map(\.dts)
            #expect(zip(times, times.dropFirst()).allSatisfy(<), "decode times of track \(track) only rise")
        }
        #expect(result.frames.allSatisfy { $0.dtsDelta <= 0 })
    }

    private func expectWholeUnits(_ result: Delivered) {
        for frame in result.frames(track: 0) {
            #expect(NALUnits.ranges(lengthPrefixed: Array(frame.payload.readableBytesView), prefix: 4) != nil)
        }
    }

    @Test("An MP4 with B frames keeps its bytes, its key flags and its decode order", .enabled(if: Tool.ffmpeg != nil))
    func mp4() async throws {
        let path = try make("b.mp4", ["-c:v", "libx264", "-g", "25", "-bf", "2", "-c:a", "aac"])
        let result = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
        #expect(result.failure == nil)
        #expect(result.isEnded)
        #expect(result.frames(track: 0).count == 50)
        #expect(result.frames(track: 0).filter { $0.flags.contains(.key) }.count == 2)
        #expect(result.frames(track: 0).contains { $0.dtsDelta < 0 })
        #expect(result.frames(track: 0).contains { $0.flags.contains(.discardable) })
        #expect(result.frames(track: 1).allSatisfy { !$0.flags.contains(.key) })
        #expect(result.configuration(0)?.codec == .h264)
        #expect(result.configuration(0)?.trackCount == 2)
        #expect(result.configuration(0)?.width == 320)
        #expect(result.configuration(0)?.third == 25_000)
        #expect(result.configuration(1)?.codec == .aac)
        #expect(result.configuration(1)?.sampleRate == 48_000)
        expectDecodeOrder(result)
        expectWholeUnits(result)
    }

    @Test(
        "A file with a second header in the middle has a second configuration, in each pass",
        .enabled(if: Tool.ffmpeg != nil))
    func secondHeader() async throws {
        let first = try make("one.flv", ["-c:v", "libx264", "-g", "25", "-an"], seconds: 1)
        let second = try make(
            "two.flv", ["-vf", "scale=160:120", "-c:v", "libx264", "-g", "25", "-an", "-output_ts_offset", "1"],
            seconds: 1)
        var bytes = try Data(contentsOf: URL(fileURLWithPath: first))
        // FLV has a header of 9 bytes and the size of no tag before it.
        bytes += try Data(contentsOf: URL(fileURLWithPath: second)).dropFirst(13)
        let path = folder.file("both.flv")
        try bytes.write(to: URL(fileURLWithPath: path))
        let result = await collect(from: FileSource(path: path, isPaced: false, log: log), frames: 80)
        #expect(result.failure == nil)
        #expect(result.configurations.map(\.configuration.width) == [320, 160, 320, 160])
        #expect(result.configurations.map(\.configuration.height) == [240, 120, 240, 120])
    }

    @Test("A pause of a file stays; MPEG-TS, whose clock may jump, goes on", .enabled(if: Tool.ffmpeg != nil))
    func pause() async throws {
        for (name, isKept) in [("p.mp4", true), ("p.mkv", true), ("p.ts", false)] {
            // The second half is shown 20 s later.
            let path = try make(
                name,
                [
                    "-vf", "setpts=PTS+gte(N\\,25)*20/TB", "-fps_mode", "passthrough", "-c:v", "libx264", "-bf", "0",
                    "-an",
                ])
            let result = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
            let times = result.frames.map(\.dts)
            let longest = zip(times, times.dropFirst()).map { $1 - $0 }.max() ?? 0
            #expect(result.frames.count == 50 && (longest > 19_000_000) == isKept, "\(name): \(longest)")
        }
    }

    @Test(
        "MPEG-TS and raw streams become length-prefixed, with a decoder record and raw AAC",
        .enabled(if: Tool.ffmpeg != nil),
        arguments: [
            ("a.ts", ["-c:v", "libx264", "-g", "25", "-c:a", "aac"], Codec.h264, 2),
            ("h.ts", ["-c:v", "libx265", "-x265-params", "log-level=none:keyint=25", "-c:a", "aac"], .h265, 2),
            ("raw.h264", ["-map", "0:v", "-c:v", "libx264", "-g", "25", "-bf", "0"], .h264, 1),
        ])
    func annexB(name: String, arguments: [String], codec: Codec, trackCount: Int) async throws {
        let path = try make(name, arguments)
        let result = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
        #expect(result.failure == nil)
        #expect(result.configurations.count == trackCount)
        #expect(result.frames(track: 0).count == 50)
        let video = try #require(result.configuration(0))
        #expect(video.codec == codec)
        #expect(ParameterSets.lengthByteCount(record: video.extraData, codec: codec) == 4)
        if trackCount == 2 {
            #expect(result.configuration(1)?.extraData.count ?? 0 >= 2)
            #expect(result.frames(track: 1).count > 80)
        }
        expectDecodeOrder(result)
        expectWholeUnits(result)
    }

    @Test(
        "Other audio is carried as it is",
        .enabled(if: Tool.ffmpeg != nil),
        arguments: [
            ("opus.mkv", ["-c:a", "libopus"], Codec.opus), ("alaw.mkv", ["-c:a", "pcm_alaw", "-ar", "8000"], .g711a),
            ("ulaw.mkv", ["-c:a", "pcm_mulaw", "-ar", "8000"], .g711u), ("mp3.mkv", ["-c:a", "libmp3lame"], .mp3),
        ])
    func audio(name: String, arguments: [String], codec: Codec) async throws {
        let path = try make(name, ["-c:v", "libx264", "-g", "25"] + arguments)
        let result = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
        #expect(result.failure == nil)
        #expect(result.configuration(1)?.codec == codec)
        #expect(result.frames(track: 1).count > 10)
    }

    @Test(
        "A loop goes on at the same step, with the same bytes", .enabled(if: Tool.ffmpeg != nil),
        arguments: ["loop.mp4", "loop.ts", "loop.mkv", "loop.h264"])
    func loop(name: String) async throws {
        let isRaw = name == "loop.h264"
        let path = try make(
            name,
            (isRaw ? ["-map", "0:v", "-bf", "0"] : ["-c:a", "aac", "-bf", "2"]) + ["-c:v", "libx264", "-g", "25"])
        let result = await collect(from: FileSource(path: path, isPaced: false, log: log), frames: isRaw ? 160 : 460)
        #expect(result.failure == nil)
        expectDecodeOrder(result)
        let video = result.frames(track: 0)
        try #require(video.count >= 120)
        let steps = zip(video, video.dropFirst()).map { $1.dts - $0.dts }
        #expect(steps.allSatisfy { abs($0 - 40_000) <= 30_000 }, "steps \(Set(steps).sorted())")
        for index in 0..<50 { #expect(video[index].payload == video[index + 50].payload, "frame \(index)") }
    }

    @Test("Frames come at their time, without drift", .enabled(if: Tool.ffmpeg != nil))
    func pace() async throws {
        let path = try make("pace.mp4", ["-c:v", "libx264", "-g", "25", "-bf", "0", "-c:a", "aac"], seconds: 1)
        let result = await collect(from: FileSource(path: path, log: log), frames: 200)
        let first = try #require(result.frames.first)
        let last = try #require(result.frames.last)
        let line = Double(last.dts - first.dts) / 1000
        let clock = (last.at - first.at).milliseconds
        #expect(abs(line - clock) < 100, "\(line) ms on the line, \(clock) ms on the clock")
        #expect(line > 2000)
    }

    @Test("A clip that others made plays over and over", .enabled(if: clip != nil))
    func foreignClip() async throws {
        let path = try #require(Self.clip)
        let result = await collect(from: FileSource(path: path, isPaced: false, log: log), frames: 800)
        #expect(result.failure == nil)
        expectDecodeOrder(result)
        expectWholeUnits(result)
        let video = result.frames(track: 0)
        try #require(video.count > 140)
        #expect(video[0].payload == video[132].payload)
        let steps = zip(video, video.dropFirst()).map { $1.pts - $0.pts }
        #expect(steps.allSatisfy { $0 >= 39_000 && $0 <= 80_000 }, "\(Set(steps).sorted())")
    }

    static let clip = [
        ProcessInfo.processInfo.environment["APUS_CLIP"],
        NSHomeDirectory() + "/.cache/apus/bigbuckbunny.mp4",
    ].compactMap { $0 }.first { FileManager.default.fileExists(atPath: $0) }

    @Test("What cannot be sent says why and what to do")
    func everydayErrors() async throws {
        let text = folder.file("notes.txt")
        try "These are notes, not a film.\n".write(toFile: text, atomically: true, encoding: .utf8)
        let empty = folder.file("empty.mp4")
        _ = FileManager.default.createFile(atPath: empty, contents: Data())
        let garbage = folder.file("garbage.mp4")
        _ = FileManager.default.createFile(
            atPath: garbage, contents: Data((0..<5000).map { UInt8(truncatingIfNeeded: $0 &* 89) }))
        let cases: [(String, String)] = [
            (folder.file("none.mp4"), "does not exist"), (folder.path, "is a directory"), (empty, "is empty"),
            (text, "file"), (garbage, "file"), ("/dev/null", "not a regular file"),
        ]
        for (path, words) in cases {
            let result = await collect(from: FileSource(path: path, log: log))
            let failure = try #require(result.failure, "\(path) fails")
            #expect(failure.code == .mediaUnreadable)
            #expect(failure.message.contains(path) && failure.message.contains(words), "\(failure)")
        }
    }

    @Test("Video of a codec that is not carried, or none, is named", .enabled(if: Tool.ffmpeg != nil))
    func unsupported() async throws {
        let other = await collect(
            from: FileSource(path: try make("m.mp4", ["-c:v", "mpeg4", "-c:a", "aac"]), log: log))
        #expect(other.failure?.message.contains("mpeg4") ?? false)
        let sound = await collect(
            from: FileSource(path: try make("s.m4a", ["-map", "1:a", "-c:a", "aac"]), log: log))
        #expect(sound.failure?.message.contains("no video track") ?? false)
    }

    @Test("A cut off file never fails worse than with an error", .enabled(if: Tool.ffmpeg != nil))
    func truncated() async throws {
        let whole = try #require(
            FileManager.default.contents(atPath: try make("t.ts", ["-c:v", "libx264", "-c:a", "aac"])))
        for share in [1, 2, 5, 9] {
            let path = folder.file("cut\(share).ts")
            _ = FileManager.default.createFile(atPath: path, contents: whole.prefix(whole.count * share / 10))
            let result = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
            #expect(result.isEnded || result.failure?.code == .mediaUnreadable)
        }
    }
}

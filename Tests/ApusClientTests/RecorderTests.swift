import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import Testing

@Suite("The recorder writes MP4 that others read (D10)", .serialized)
struct RecorderTests {
    let folder = Folder()

    private struct Probe: Decodable {
        struct Stream: Decodable {
            var codec_name: String
            var width: Int?
            var nb_read_packets: String
            var duration: String?
        }
        struct Packet: Decodable {
            var codec_type: String
            var pts: Int64
            var dts: Int64
            var duration: Int64?
            var flags: String
        }
        var streams: [Stream]
        var packets: [Packet]
    }

    private func probe(_ path: String) throws -> Probe {
        let ffprobe = try #require(Tool.ffprobe)
        let text = try #require(
            Tool.run(
                ffprobe,
                ["-v", "error", "-count_packets", "-show_packets", "-show_streams", "-of", "json", path]))
        return try JSONDecoder().decode(Probe.self, from: Data(text.utf8))
    }

    private func media(_ frames: [MediaFrame]) -> [MediaFrame] {
        frames.filter { !$0.header.flags.contains(.configuration) }
    }

    @Test("Every frame is in the file, at its time", .enabled(if: Tool.ffprobe != nil))
    func testPattern() async throws {
        let frames = try await publish(try pattern())
        let path = folder.file("pattern.mp4")
        let recorder = try MP4Recorder(path: path)
        for frame in frames { recorder.write(frame) }
        let count = try recorder.finish()
        #expect(count == media(frames).count)
        let probe = try probe(path)
        #expect(probe.streams.map(\.codec_name) == ["h264", "aac"])
        #expect(probe.packets.count == count)
        let video = probe.packets.filter { $0.codec_type == "video" }
        #expect(video.map(\.pts) == (0..<75).map { $0 * 40_000 })
        #expect(video.filter { $0.flags.hasPrefix("K") }.count == 3)
        let decoded = Tool.run("/usr/bin/ffmpeg", ["-v", "error", "-xerror", "-i", path, "-f", "null", "-"])
        #expect(decoded != nil, "ffmpeg decodes the whole file without an error")
    }

    @Test(
        "B frames, H.265 and other audio keep their packets", .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil),
        arguments: [
            ("b.mp4", ["-c:v", "libx264", "-g", "25", "-bf", "2", "-c:a", "aac"], ["h264", "aac"]),
            ("h.ts", ["-c:v", "libx265", "-x265-params", "log-level=none:keyint=25", "-c:a", "aac"], ["hevc", "aac"]),
            ("o.mkv", ["-c:v", "libx264", "-c:a", "libopus"], ["h264", "opus"]),
            ("a.mkv", ["-c:v", "libx264", "-c:a", "pcm_alaw", "-ar", "8000"], ["h264", "pcm_alaw"]),
            ("u.mkv", ["-c:v", "libx264", "-c:a", "pcm_mulaw", "-ar", "8000"], ["h264", "pcm_mulaw"]),
            ("m.mkv", ["-c:v", "libx264", "-c:a", "libmp3lame"], ["h264", "mp3"]),
        ])
    func codecs(name: String, arguments: [String], codecs: [String]) async throws {
        let ffmpeg = try #require(Tool.ffmpeg)
        let input = folder.file(name)
        let sources = [
            "-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25:duration=2",
            "-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000:duration=2",
        ]
        try #require(Tool.run(ffmpeg, sources + arguments + [input]) != nil)
        let frames = try await publish(
            FileSource(path: input, loops: false, isPaced: false, log: Logger(label: "test")))
        let path = folder.file("\(name).out.mp4")
        let recorder = try MP4Recorder(path: path)
        for frame in frames { recorder.write(frame) }
        let count = try recorder.finish()
        let probe = try probe(path)
        #expect(probe.streams.map(\.codec_name) == codecs)
        #expect(probe.packets.filter { $0.codec_type == "video" }.count == 50)
        #expect(probe.packets.count == count)
        let video = probe.packets.filter { $0.codec_type == "video" }
        #expect(video.allSatisfy { $0.pts >= $0.dts })
        let times = video.map(\.pts).sorted()
        #expect(zip(times, times.dropFirst()).allSatisfy { abs($1 - $0 - 40_000) < 3_000 })
        #expect(Tool.run(ffmpeg, ["-v", "error", "-xerror", "-i", path, "-f", "null", "-"]) != nil, "it decodes")
    }

    @Test("The clip that others made is recorded whole, and its snapshot is a picture", .enabled(if: clip != nil))
    func foreignClip() async throws {
        let input = try #require(Self.clip)
        let frames = try await publish(
            FileSource(path: input, loops: false, isPaced: false, log: Logger(label: "test")))
        let path = folder.file("clip.mp4")
        let recorder = try MP4Recorder(path: path)
        let snapshot = Snapshot()
        for frame in frames {
            recorder.write(frame)
            snapshot.write(frame)
        }
        #expect(try recorder.finish() == media(frames).count)
        #expect(media(frames).filter { $0.header.track == 0 }.count == 132)
        let picture = folder.file("clip.png")
        try snapshot.save(to: picture)
        #expect(try #require(FileManager.default.contents(atPath: picture)).count > 100_000)
        if Tool.ffprobe != nil { #expect(try probe(path).packets.count == media(frames).count) }
        if let keep = ProcessInfo.processInfo.environment["APUS_KEEP_SNAPSHOT"] {
            try snapshot.save(to: keep)
        }
    }

    static let clip = [
        ProcessInfo.processInfo.environment["APUS_CLIP"],
        NSHomeDirectory() + "/.cache/apus/bigbuckbunny.mp4",
    ].compactMap { $0 }.first { FileManager.default.fileExists(atPath: $0) }

    @Test("A file that was never finished is readable up to its last fragment", .enabled(if: Tool.ffprobe != nil))
    func killed() async throws {
        let frames = try await publish(try pattern())
        var writer = FragmentedMP4Writer()
        var bytes = Data()
        for frame in frames { bytes.append(contentsOf: try writer.write(frame).readableBytesView) }
        let path = folder.file("killed.mp4")
        try bytes.write(to: URL(fileURLWithPath: path))
        let video = try probe(path).packets.filter { $0.codec_type == "video" }
        #expect(video.count >= 75 - 6 && video.count <= 75)
    }

    @Test("A second publisher's frames go on right behind the first's", .enabled(if: Tool.ffprobe != nil))
    func epochs() async throws {
        let first = try await publish(try pattern(frames: 50), epoch: 1)
        let second = try await publish(try pattern(frames: 50), epoch: 2)
        let path = folder.file("epochs.mp4")
        let recorder = try MP4Recorder(path: path)
        for frame in first + second { recorder.write(frame) }
        let count = try recorder.finish()
        let probe = try probe(path)
        #expect(probe.packets.count == count)
        let times = probe.packets.filter { $0.codec_type == "video" }.map(\.dts)
        #expect(times.count == 100)
        #expect(zip(times, times.dropFirst()).allSatisfy { $1 - $0 >= 39_000 && $1 - $0 <= 80_000 })
    }

    @Test("A publisher that comes back with another size, or without sound, continues in another file of the recording")
    func otherConfiguration() async throws {
        let streams = [
            try await publish(try pattern(frames: 50), epoch: 1),
            try await publish(try pattern("160x120@25", frames: 50), epoch: 2),
            try await publish(try pattern("160x120@25", frames: 50, tone: false), epoch: 3),
        ]
        let path = folder.file("sizes.mp4")
        // A file of somebody else stays as it is.
        try Data("mine".utf8).write(to: URL(fileURLWithPath: folder.file("sizes-2.mp4")))
        let recorder = try MP4Recorder(path: path)
        for frame in streams.joined() { recorder.write(frame) }
        #expect(try recorder.finish() == streams.reduce(0) { $0 + media($1).count })
        #expect(recorder.paths == ["sizes.mp4", "sizes-3.mp4", "sizes-4.mp4"].map { folder.file($0) })
        #expect(FileManager.default.contents(atPath: folder.file("sizes-2.mp4")) == Data("mine".utf8))
        guard Tool.ffprobe != nil else { return }
        for (path, (stream, width)) in zip(recorder.paths, zip(streams, [320, 160, 160])) {
            let probe = try probe(path)
            #expect(probe.streams.count == (stream.contains { $0.header.track == 1 } ? 2 : 1))
            #expect(probe.streams.first?.width == width, "the head has the size of the pictures")
            #expect(probe.packets.count == media(stream).count)
            #expect(Tool.run("/usr/bin/ffmpeg", ["-v", "error", "-xerror", "-i", path, "-f", "null", "-"]) != nil)
        }
    }

    @Test("A recording joins at a key frame and leaves out what came before")
    func join() async throws {
        let frames = try await publish(try pattern())
        var writer = FragmentedMP4Writer()
        let late = frames.filter { $0.header.flags.contains(.configuration) } + media(frames).dropFirst(20)
        for frame in late { _ = try writer.write(frame) }
        _ = try writer.finish()
        #expect(writer.frameCount + writer.framesOmitted == media(frames).count - 20)
        #expect(writer.framesOmitted > 0)
    }

    @Test("Frames that wait for the disk are bounded, also where they are tiny (D13)")
    func bound() {
        let queue = FrameQueue(byteCountMax: 10_000)
        let header = MediaHeader(position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: 0)
        for _ in 0..<1000 { queue.put(MediaFrame(header: header, payload: ByteBuffer(bytes: [1]))) }
        #expect(queue.framesLost > 950)
        #expect(queue.take().frames.count == 1000 - Int(queue.framesLost))
        queue.put(MediaFrame(header: header, payload: ByteBuffer(bytes: [1])))
        #expect(queue.take().frames.count == 1)
    }

    @Test("A path that cannot be written, a full disk and an empty stream say so")
    func errors() async throws {
        let missing = #expect(throws: ApusError.self) { try MP4Recorder(path: "/nowhere/at/all.mp4") }
        #expect(missing?.code == .storageFailed)
        #expect(missing?.message.contains("/nowhere/at/all.mp4") ?? false)
        let full = try MP4Recorder(path: "/dev/full")
        for frame in try await publish(try pattern(frames: 25)) { full.write(frame) }
        let error = #expect(throws: ApusError.self) { try full.finish() }
        #expect(error?.code == .storageFailed)
        #expect(error?.message.contains("full") ?? false)
        let empty = try MP4Recorder(path: folder.file("empty.mp4"))
        let nothing = #expect(throws: ApusError.self) { try empty.finish() }
        #expect(nothing?.code == .mediaUnreadable)
    }
}

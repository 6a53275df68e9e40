import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import Testing

@Suite(
    "Segments of a recording are files that others decode (IV-E2)",
    .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil, "ffmpeg is not installed"), .serialized)
struct SegmentFileTests {
    private let folder = Folder()

    private struct Probe: Decodable {
        struct Packet: Decodable {
            var codec_type: String
            var pts_time: String
            var dts_time: String
            var flags: String
            var pos: String?
            var pts: Double { Double(pts_time) ?? .nan }
            var dts: Double { Double(dts_time) ?? .nan }
        }
        struct Frame: Decodable {
            var media_type: String
            var pts_time: String?
        }
        var packets: [Packet]?
        var frames: [Frame]?
    }

    private func probe(_ path: String, _ arguments: [String] = ["-show_packets"]) throws -> Probe {
        let ffprobe = try #require(Tool.ffprobe)
        let text = try #require(Tool.run(ffprobe, ["-v", "error"] + arguments + ["-of", "json", path]))
        return try JSONDecoder().decode(Probe.self, from: Data(text.utf8))
    }

    /// Whether ffmpeg decodes a file without an error.
    private func decodes(_ path: String) throws -> Bool {
        let ffmpeg = try #require(Tool.ffmpeg)
        return Tool.run(ffmpeg, ["-v", "error", "-xerror", "-i", path, "-f", "null", "-"]) != nil
    }

    private func write(_ bytes: ByteBuffer, _ name: String) throws -> String {
        try Data(bytes.readableBytesView).write(to: URL(fileURLWithPath: folder.file(name)))
        return folder.file(name)
    }

    /// The frames of a clip that ffmpeg makes, with their configurations.
    private func frames(_ name: String, _ arguments: [String], seconds: Int = 4) async throws -> [MediaFrame] {
        let ffmpeg = try #require(Tool.ffmpeg)
        let sources = [
            "-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25:duration=\(seconds)",
            "-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000:duration=\(seconds)",
        ]
        let path = folder.file(name)
        try #require(Tool.run(ffmpeg, sources + arguments + [path]) != nil)
        return try await publish(FileSource(path: path, loops: false, isPaced: false, log: Logger(label: "test")))
    }

    /// Segments of a stream, cut at key frames of the first track after two seconds.
    private func segments(
        _ frames: [MediaFrame], shift: Int64, run: UInt8 = 1
    ) throws -> (segments: [Segment], media: [SegmentFrame]) {
        var tracks: [SegmentTrack] = []
        var media: [SegmentFrame] = []
        for frame in frames {
            if frame.header.flags.contains(.configuration) {
                let configuration = try TrackConfiguration(decoding: frame.payload)
                tracks.append(SegmentTrack(number: frame.header.track, configuration: configuration))
            } else {
                media.append(SegmentFrame(frame, shiftMicroseconds: shift))
            }
        }
        let id = try #require(SegmentRunID(bytes: [UInt8](repeating: run, count: 16)))
        var description = SegmentDescription(
            label: [], run: id, anchorMicroseconds: 0, tracks: tracks, sequence: 1)
        let video = tracks.first { $0.configuration.codec.isVideo }?.number
        var (segments, start) = ([Segment](), media[0].decodeMicroseconds)
        var writer = try SegmentWriter(description)
        for (index, frame) in media.enumerated() {
            let isKey = frame.track == video && frame.flags.contains(.key)
            if writer.frameCount > 0, isKey, frame.decodeMicroseconds - start >= 2_000_000 {
                var next: [UInt8: Int64] = [:]
                for later in media[index...] where next[later.track] == nil {
                    next[later.track] = later.decodeMicroseconds
                }
                segments.append(try writer.finish(until: next, end: .continues))
                description.sequence += UInt32(segments[segments.count - 1].footer.fragments.count)
                writer = try SegmentWriter(description)
                start = frame.decodeMicroseconds
            }
            try writer.add(frame)
        }
        segments.append(try writer.finish(end: .stopped))
        return (segments, media)
    }

    private func parts(_ segments: [Segment]) -> [VirtualMP4.Part] {
        segments.map { segment in
            let footer = segment.footer
            return VirtualMP4.Part(
                tracks: footer.description.tracks, mediaRange: footer.mediaRange,
                startMicroseconds: footer.startMicroseconds, durationMicroseconds: footer.durationMicroseconds)
        }
    }

    private func whole(_ file: VirtualMP4, _ segments: [Segment]) async throws -> ByteBuffer {
        var output = ByteBuffer()
        while output.readableBytes < file.byteCount {
            output.writeImmutableBuffer(
                try await file.bytes(output.readableBytes..<file.byteCount) { part, range throws(ApusError) in
                    segments[part].bytes.getSlice(at: range.lowerBound, length: range.count) ?? ByteBuffer()
                })
        }
        return output
    }

    private static let shift: Int64 = 1_790_000_000_000_000

    @Test(
        "Each segment is a file of its own, its times are those of the time line, and the whole of them is one file",
        arguments: [
            ("b.mp4", ["-c:v", "libx264", "-g", "25", "-bf", "3", "-c:a", "aac"]),
            ("h.ts", ["-c:v", "libx265", "-x265-params", "log-level=none:keyint=25", "-c:a", "aac"]),
            ("o.mkv", ["-c:v", "libx264", "-g", "25", "-bf", "2", "-c:a", "libopus"]),
            ("a.mkv", ["-c:v", "libx264", "-g", "25", "-c:a", "pcm_alaw", "-ar", "8000"]),
        ])
    func files(name: String, arguments: [String]) async throws {
        let (segments, media) = try segments(try await frames(name, arguments), shift: Self.shift)
        #expect(segments.count >= 2)
        var packets: [Probe.Packet] = []
        for (index, segment) in segments.enumerated() {
            let path = try write(segment.bytes, "\(index)-\(name).mp4")
            #expect(try decodes(path))
            let found = try #require(try probe(path).packets)
            #expect(found.count == segment.footer.frames.count)
            packets += found
        }
        // To a microsecond: ffprobe prints six digits of a time of some 1.8 billion seconds.
        let base = Double(Self.shift) / 1e6
        for (kind, isVideo) in [("video", true), ("audio", false)] {
            let number = segments[0].footer.description.tracks.first { $0.configuration.codec.isVideo == isVideo }?
                .number
            let sent = media.filter { $0.track == number }
            let found = packets.filter { $0.codec_type == kind }
            #expect(found.count == sent.count)
            for (packet, frame) in zip(found, sent) {
                let decode = Double(frame.decodeMicroseconds - Self.shift) / 1e6
                #expect(abs(packet.dts - base - decode) < 2e-6)
                #expect(abs(packet.pts - packet.dts - Double(frame.compositionMicroseconds) / 1e6) < 2e-6)
            }
        }
        let file = try VirtualMP4(parts(segments))
        let path = try write(try await whole(file, segments), "all-\(name).mp4")
        #expect(try decodes(path))
        let all = try #require(try probe(path).packets)
        #expect(all.count == media.count)
        #expect(abs((all.map(\.pts).min() ?? 9)) < 0.05, "the edit list begins with the first frame")
        // Sound and pictures have the distance that they were sent with.
        let first = try #require(media.map { $0.decodeMicroseconds + Int64($0.compositionMicroseconds) }.min())
        for (kind, isVideo) in [("video", true), ("audio", false)] {
            let number = segments[0].footer.description.tracks.first { $0.configuration.codec.isVideo == isVideo }?
                .number
            let sent = media.filter { $0.track == number }.map {
                Double($0.decodeMicroseconds + Int64($0.compositionMicroseconds) - first) / 1e6
            }
            let found = all.filter { $0.codec_type == kind }.map(\.pts)
            #expect(zip(found.sorted(), sent.sorted()).allSatisfy { abs($0 - $1) < 2e-6 }, "\(kind)")
        }
    }

    @Test("A player seeks in the file without reading what is between, and begins exactly where it was asked to")
    func seek() async throws {
        let stream = try await frames("s.mp4", ["-c:v", "libx264", "-g", "25", "-bf", "2", "-c:a", "aac"], seconds: 30)
        let (segments, media) = try segments(stream, shift: Self.shift)
        let file = try VirtualMP4(parts(segments))
        let path = try write(try await whole(file, segments), "seek.mp4")
        let packets = try #require(
            try probe(path, ["-read_intervals", "20%+#1", "-select_streams", "v", "-show_packets"]).packets)
        let packet = try #require(packets.first)
        #expect(packet.pts <= 20 && packet.flags.hasPrefix("K"), "\(packet)")
        withKnownIssue("ffprobe 5.1 finds a key frame about 10 s earlier") { #expect(packet.pts > 17.9) }
        // The file is damaged between: a player that reads it would fail.
        var damaged = try await whole(file, segments)
        let place = file.byteCount / 3
        damaged.setRepeatingByte(0xff, count: 4_000, at: place)
        let broken = try write(damaged, "damaged.mp4")
        let again = try #require(
            try probe(broken, ["-read_intervals", "20%+#1", "-select_streams", "v", "-show_packets"]).packets)
        #expect(again.first?.pts == packet.pts)
        // A start within a group of pictures.
        let start = try #require(media.first).decodeMicroseconds + 4_520_000
        let late = try VirtualMP4(Array(parts(segments)[2...]), from: start)
        let exact = try write(try await whole(late, Array(segments[2...])), "exact.mp4")
        let ffmpeg = try #require(Tool.ffmpeg)
        let frames = try #require(
            Tool.run(ffmpeg, ["-v", "error", "-i", exact, "-map", "0:v", "-f", "framemd5", "-"]))
        let original = try #require(
            Tool.run(ffmpeg, ["-v", "error", "-i", folder.file("s.mp4"), "-map", "0:v", "-f", "framemd5", "-"]))
        let digests = { (text: String) in
            text.split(separator: "\n").filter { !$0.hasPrefix("#") }.compactMap { $0.split(separator: " ").last }
        }
        #expect(digests(original).suffix(digests(frames).count).elementsEqual(digests(frames)))
        // The pictures from 4.52 s on: 113 before them.
        withKnownIssue("ffmpeg 5.1 shows the whole group of the start") {
            #expect(abs(digests(frames).count - (750 - 113)) <= 3)
        }
    }

    @Test("Two runs with another size and a pause between them are one file that decodes")
    func runs() async throws {
        let first = try segments(try await publish(try pattern(frames: 75), epoch: 1), shift: Self.shift)
        let second = try segments(
            try await publish(try pattern("160x120@25", frames: 75), epoch: 2), shift: Self.shift + 60_000_000, run: 2)
        let all = first.segments + second.segments
        let path = try write(try await whole(try VirtualMP4(parts(all)), all), "runs.mp4")
        let packets = try #require(try probe(path, ["-select_streams", "v", "-show_packets"]).packets)
        #expect(packets.count == 150)
        #expect(abs(packets[75].pts - packets[0].pts - 60) < 0.001)
        let isDecoded = try decodes(path)
        withKnownIssue("ffmpeg 5.1 decodes the second size with the first one's parameters") { #expect(isDecoded) }
    }
}

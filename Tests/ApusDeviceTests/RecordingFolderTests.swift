import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import Testing

@Suite("Recordings of a device in a folder (IV-C5, IV-C12)", .serialized)
struct RecordingFolderTests {
    let folder = Folder()
    private static let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
    /// A time near now, in Unix milliseconds.
    private static let base = Int64(Date().timeIntervalSince1970) * 1000 - 3_600_000

    /// A picture every 100 ms and a key frame every second, with a tone.
    private func frames(seconds: UInt64) async throws -> [MediaFrame] {
        var pattern = try TestPattern(width: 64, height: 64, frameRate: 10)
        pattern.keyIntervalSeconds = 1
        return try await TestPatternSource(pattern, frameCountMax: seconds * 10, isPaced: false)
            .allFrames(byteCountMax: 64 << 20)
    }

    private func open(_ byteCountMax: Int64 = 1 << 30) throws -> RecordingFolder {
        var limits = RecordingFolder.Limits()
        (limits.fileDuration, limits.byteCountMax) = (.seconds(2), byteCountMax)
        return try RecordingFolder(path: folder.file("records"), limits: limits, log: Self.log)
    }

    /// Records the frames as if they were captured from a time on.
    private func record(_ frames: [MediaFrame], in records: RecordingFolder, at start: Int64, source: UInt16 = 0)
        async throws
    {
        let writer = try RecordingWriter(records, source: source)
        for var frame in frames {
            let time = start + frame.header.ptsMicroseconds / 1000
            frame.header.captureMilliseconds = UInt32(truncatingIfNeeded: time)
            writer.write(frame)
        }
        await writer.finish()
        #expect(writer.framesLost == 0)
    }

    private func all(_ records: RecordingFolder, source: UInt16 = 0) -> [Recording] {
        records.recordings(of: source, from: .distantPast, to: .distantFuture, limit: 100)
    }

    private struct Read {
        var frames: [(track: UInt8, pts: Int64, isKey: Bool, payload: ByteBuffer)] = []
        var configurations = 0
    }

    private func read(_ records: RecordingFolder, _ recording: Recording, at time: Date) throws -> Read {
        let reader = try records.reader(of: 0, in: recording, at: time)
        var read = Read()
        var last = Int64.min
        while true {
            switch try reader.next() {
            case .configuration: read.configurations += 1
            case .frame(let track, let pts, let delta, let flags, let payload):
                #expect(pts + Int64(delta) > last, "the order of decoding")
                last = pts + Int64(delta)
                read.frames.append((track, pts, flags.contains(.key), payload))
            case .ended: return read
            case .failed(let error): throw error
            }
        }
    }

    @Test("What was recorded in several files is read as one, bit for bit, from any time on")
    func whole() async throws {
        let frames = try await frames(seconds: 7)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        let files = try FileManager.default.contentsOfDirectory(atPath: folder.file("records"))
        #expect(files.count >= 3 && files.allSatisfy { $0.split(separator: "-").count == 3 }, "\(files)")
        let found = all(records)
        let recording = try #require(found.first)
        #expect(found.count == 1)
        #expect(abs(recording.start.timeIntervalSince1970 * 1000 - Double(Self.base)) < 150)
        #expect(abs(recording.duration - 7) < 0.3)

        let read = try read(records, recording, at: recording.start)
        let sent = frames.filter { !$0.header.flags.contains(.configuration) }
        for track: UInt8 in [0, 1] {
            let (before, after) = (
                sent.filter { $0.header.track == track }.map(\.payload),
                read.frames.filter { $0.track == track }.map(\.payload)
            )
            #expect(after.count >= before.count - 1 && before.count > 60, "\(after.count) of \(before.count)")
            #expect(Array(before.suffix(after.count)) == after || Array(before.prefix(after.count)) == after)
        }
        #expect(read.configurations == 2)
        // From each time on: the first picture is the last key frame before it, and times go on as in the recording.
        for seconds in [0.4, 1.0, 1.9, 2.5, 4.2, 5.95] {
            let part = try self.read(records, recording, at: recording.start + seconds)
            let first = try #require(part.frames.first { $0.track == 0 })
            let time = Double(first.pts) / 1_000_000
            #expect(first.isKey && time <= seconds + 0.06 && time > seconds - 1.1, "\(seconds): \(time)")
            let tail = read.frames.filter { $0.track == 0 }.suffix(part.frames.filter { $0.track == 0 }.count)
            #expect(tail.map(\.payload) == part.frames.filter { $0.track == 0 }.map(\.payload), "\(seconds)")
        }
    }

    /// Moves the frames from a time on, by seconds.
    private func paused(_ frames: [MediaFrame], by seconds: Int64, from time: Int64) -> [MediaFrame] {
        frames.map { frame in
            var frame = frame
            if frame.header.ptsMicroseconds >= time { frame.header.ptsMicroseconds += seconds * 1_000_000 }
            return frame
        }
    }

    @Test("Pauses of 25 s are in the recording, also where a file ends, and are there when it is read")
    func pauses() async throws {
        let frames = paused(paused(try await frames(seconds: 3), by: 25, from: 2_500_000), by: 25, from: 1_500_000)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        let recording = try #require(all(records).first)
        #expect(all(records).count == 1 && abs(recording.duration - 53) < 0.3, "\(all(records).map(\.duration))")
        let times = try read(records, recording, at: recording.start).frames.filter { $0.track == 0 }.map(\.pts)
        let sent = frames.filter { $0.header.track == 0 && !$0.header.flags.contains(.configuration) }
        #expect(times.count == sent.count)
        for (read, sent) in zip(times, sent) {
            #expect(abs(read - sent.header.ptsMicroseconds) < 150_000, "\(read)")
        }
        // From a time after the last pause: the key frame before it.
        let late = try read(records, recording, at: recording.start + 52.8).frames.filter { $0.track == 0 }
        #expect(late.first.map { abs($0.pts - 27_000_000) < 150_000 } == true && (late.last?.pts ?? 0) > 52_700_000)
    }

    @Test("Another size or codec begins another file, with its next key frame; one that alternates makes one a second")
    func formats() async throws {
        let large = try await frames(seconds: 2)
        var pattern = try TestPattern(width: 96, height: 64, frameRate: 10)
        (pattern.keyIntervalSeconds, pattern.hasTone) = (1, false)
        let small = try await TestPatternSource(pattern, frameCountMax: 20, isPaced: false).allFrames(
            byteCountMax: 64 << 20)
        let records = try open()
        let writer = try RecordingWriter(records)
        var sent = 0
        func write(_ frames: [MediaFrame], after seconds: Int64) {
            for var frame in frames {
                frame.header.ptsMicroseconds += seconds * 1_000_000
                let time = Self.base + frame.header.ptsMicroseconds / 1000
                frame.header.captureMilliseconds = UInt32(truncatingIfNeeded: time)
                writer.write(frame)
                sent += 1
            }
        }
        write(large, after: 0)
        write(small, after: 2)
        // All within a moment: the files of a camera that changes all the time are bounded.
        for round in 0..<20 as Range<Int64> { write(round % 2 == 0 ? large : small, after: 4 + 2 * round) }
        await writer.finish()
        let names = try FileManager.default.contentsOfDirectory(atPath: folder.file("records"))
        #expect((2...4).contains(names.count), "\(names)")
        guard let ffprobe = Tool.ffprobe else { return }
        var widths: Set<String> = []
        for name in names {
            let path = folder.file("records/\(name)")
            let text = Tool.run(
                ffprobe,
                ["-v", "error", "-select_streams", "v", "-show_entries", "stream=width", "-of", "csv=p=0", path])
            widths.insert(text?.filter(\.isNumber) ?? "")
            #expect(Tool.run("/usr/bin/ffmpeg", ["-v", "error", "-xerror", "-i", path, "-f", "null", "-"]) != nil)
        }
        #expect(widths == ["64", "96"])
    }

    @Test("Two times with a gap are two recordings, and sources do not mix")
    func gaps() async throws {
        let frames = try await frames(seconds: 3)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        try await record(frames, in: records, at: Self.base + 60_000)
        try await record(frames, in: records, at: Self.base + 5_000, source: 9)
        #expect(all(records).count == 2 && all(records, source: 9).count == 1 && all(records, source: 1).isEmpty)
        let between = Date(timeIntervalSince1970: Double(Self.base + 20_000) / 1000)
        let next = try #require(records.recordings(of: 0, from: between, to: .distantFuture, limit: 1).first)
        #expect(abs(next.start.timeIntervalSince(between) - 40) < 0.5)
        // The same after a restart.
        let again = try open()
        #expect(all(records) == all(again) && records.byteCount == again.byteCount)
    }

    @Test("A file whose writer was killed is kept up to its last fragment; a damaged one is left out, and not removed")
    func killed() async throws {
        let frames = try await frames(seconds: 6)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        let names = try FileManager.default.contentsOfDirectory(atPath: folder.file("records")).sorted()
        // As after kill -9: without the length in its name, cut off in the middle of a fragment.
        let last = folder.file("records/\(try #require(names.last))")
        let open = folder.file(
            "records/\(names.last?.split(separator: "-").prefix(2).joined(separator: "-") ?? "").mp4")
        let bytes = try Data(contentsOf: URL(filePath: last))
        try bytes.prefix(bytes.count * 2 / 3).write(to: URL(filePath: open))
        try FileManager.default.removeItem(atPath: last)
        // The one in the middle is overwritten with noise, and played from as well.
        let middle = folder.file("records/\(names[1])")
        try Data((0..<5000).map { UInt8(truncatingIfNeeded: $0 &* 31) }).write(to: URL(filePath: middle))
        try Data([1, 2, 3]).write(to: URL(filePath: folder.file("records/0-77.mp4")))
        try Data([1, 2, 3]).write(to: URL(filePath: folder.file("records/notes.txt")))

        let again = try self.open()
        let recording = try #require(all(again).first)
        #expect(all(again).count == 1 && recording.duration > 4.5 && recording.duration < 6)
        let read = try read(again, recording, at: recording.start)
        let pictures = read.frames.filter { $0.track == 0 }
        #expect(
            pictures.count > 25 && pictures.count < 45, "two seconds are lost, the rest is played: \(pictures.count)")
        let inside = try self.read(again, recording, at: recording.start + 2.6)
        #expect(inside.frames.count { $0.track == 0 } > 5, "the next file is played")
        try FileManager.default.removeItem(atPath: folder.file("records/\(names[0])"))
        _ = try self.read(again, recording, at: recording.start)
        #expect((all(again).first?.start ?? .distantPast) > recording.start + 1, "a file that is gone is forgotten")
        for name in [middle, folder.file("records/0-77.mp4"), folder.file("records/notes.txt")] {
            #expect(FileManager.default.fileExists(atPath: name))
        }
    }

    @Test("One flipped bit in a time of a file whose writer was killed does not end the process", arguments: [0, 6, 7])
    func flippedTime(bit: Int) async throws {
        let records = try open()
        try await record(try await frames(seconds: 3), in: records, at: Self.base)
        let name = try #require(
            try FileManager.default.contentsOfDirectory(atPath: folder.file("records")).sorted().first)
        var bytes = try Data(contentsOf: URL(filePath: folder.file("records/\(name)")))
        // A `tfdt` of version 1: its name, version and flags, then the decode time in 8 bytes.
        var (count, from) = (0, bytes.startIndex)
        while let found = bytes.range(of: Data("tfdt".utf8), in: from..<bytes.endIndex) {
            from = found.upperBound
            // The pictures of every second fragment; each fragment has two tracks.
            if count % 4 == 2 { bytes[found.upperBound + 4] ^= UInt8(1) << UInt8(bit) }
            count += 1
        }
        #expect(count > 4)
        let unfinished = folder.file("records/\(name.split(separator: "-").prefix(2).joined(separator: "-")).mp4")
        try bytes.write(to: URL(filePath: unfinished))
        try FileManager.default.removeItem(atPath: folder.file("records/\(name)"))

        let again = try open()
        let recording = try #require(all(again).first)
        #expect(try read(again, recording, at: recording.start).frames.contains { $0.track == 0 })
    }

    @Test("A device that was handed over erases what had ended before, of all sources, and records on (IV-B10)")
    func erased() async throws {
        let frames = try await frames(seconds: 3)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        try await record(frames, in: records, at: Self.base + 5_000, source: 9)
        try await record(frames, in: records, at: Self.base + 60_000)
        records.erase(before: Date(timeIntervalSince1970: Double(Self.base + 30_000) / 1000))
        #expect(all(records).count == 1 && all(records, source: 9).isEmpty)
        #expect(try all(records) == all(open()), "the files are gone")
        try await record(frames, in: records, at: Self.base + 120_000)
        #expect(all(records).count == 2)
    }

    @Test("The folder keeps its limit, and the newest files")
    func limit() async throws {
        let frames = try await frames(seconds: 20)
        let records = try open(60_000)
        try await record(frames, in: records, at: Self.base)
        let size = try FileManager.default.contentsOfDirectory(atPath: folder.file("records")).reduce(0) {
            $0 + ((try FileManager.default.attributesOfItem(atPath: folder.file("records/\($1)"))[.size] as? Int) ?? 0)
        }
        #expect(size == records.byteCount && size <= 90_000, "\(size)")
        let recording = try #require(all(records).last)
        #expect(recording.end.timeIntervalSince1970 * 1000 > Double(Self.base + 19_000))
        #expect(recording.start.timeIntervalSince1970 * 1000 > Double(Self.base + 1000))
        _ = try read(records, recording, at: recording.start)
        #expect(throws: ApusError(.recordingListEmpty)) {
            let gone = Date(timeIntervalSince1970: Double(Self.base) / 1000)
            _ = try records.reader(of: 0, in: recording, at: gone)
        }
    }

    @Test("Where the clock is set, files have its times; a clock that is back an hour replaces nothing")
    func clock() async throws {
        let frames = try await frames(seconds: 3)
        let records = try open()
        try await record(frames, in: records, at: Self.base)
        try await record(frames, in: records, at: Self.base + 7_200_000)
        try await record(frames, in: records, at: Self.base)
        #expect(try FileManager.default.contentsOfDirectory(atPath: folder.file("records")).count == 6)
        #expect(all(records).map { Int($0.duration.rounded()) } == [3, 3])
    }

    @Test("Frames that come late and then catch up have their own times; a clock that was set decides a file later")
    func late() async throws {
        let frames = try await frames(seconds: 12)
        for name in ["late", "set"] {
            var limits = RecordingFolder.Limits()
            limits.fileDuration = .seconds(2)
            let records = try RecordingFolder(path: folder.file(name), limits: limits, log: Self.log)
            let writer = try RecordingWriter(records)
            for var frame in frames {
                let ms = frame.header.ptsMicroseconds / 1000
                // A burst of three seconds comes at once, and the rest at its time.
                let delay = name == "set" ? ms < 3000 ? 0 : 7_200_000 : (3000..<6000).contains(ms) ? 6000 - ms : 0
                frame.header.captureMilliseconds = UInt32(truncatingIfNeeded: Self.base + ms + delay)
                writer.write(frame)
            }
            await writer.finish()
            let found = all(records).map { Int($0.duration.rounded()) }
            #expect(name == "late" ? found == [12] : found.count == 2 && found.reduce(0, +) == 12, "\(name): \(found)")
        }
    }
}

import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Testing

@Suite(
    "Recordings on a disk that fails (IV-C5)", .serialized,
    .enabled(if: TestDisk.canBeMade, "a disk in memory cannot be made here"))
struct RecordingDiskTests {
    private let disk = TestDisk(byteCount: 1 << 20)
    private let base = Int64(Date().timeIntervalSince1970) * 1000 - 3_600_000

    private func folder() throws -> RecordingFolder {
        var limits = RecordingFolder.Limits()
        (limits.fileDuration, limits.retryInterval) = (.seconds(2), .milliseconds(200))
        return try RecordingFolder(path: disk.path + "/records", limits: limits, log: ClientSession.loggingDisabled)
    }

    private func frames(seconds: UInt64) async throws -> [MediaFrame] {
        var pattern = try TestPattern(width: 128, height: 64, frameRate: 10)
        (pattern.keyIntervalSeconds, pattern.bitsPerSecond) = (1, 2_000_000)
        return try await TestPatternSource(pattern, frameCountMax: seconds * 10, isPaced: false)
            .allFrames(byteCountMax: 64 << 20)
    }

    private func write(_ frames: some Sequence<MediaFrame>, to writer: RecordingWriter) {
        for var frame in frames {
            let time = base + frame.header.ptsMicroseconds / 1000
            frame.header.captureMilliseconds = UInt32(truncatingIfNeeded: time)
            writer.write(frame)
        }
    }

    private func all(_ records: RecordingFolder) -> [Recording] {
        records.recordings(of: 0, from: .distantPast, to: .distantFuture, limit: 100)
    }

    @Test("A full disk gives up the oldest files, and the newest are recorded and can be read")
    func full() async throws {
        let records = try folder()
        let frames = try await frames(seconds: 120)
        let byteCount = frames.reduce(0) { $0 + $1.payload.readableBytes }
        try #require(byteCount > 2 << 20, "more than the disk takes: \(byteCount)")
        let writer = try RecordingWriter(records)
        write(frames, to: writer)
        await writer.finish()
        #expect(records.byteCount < 1 << 20 && records.byteCount > 1 << 18, "\(records.byteCount)")
        let last = try #require(all(records).last)
        #expect(last.end.timeIntervalSince1970 * 1000 > Double(base + 118_000))
        let reader = try records.reader(of: 0, in: last, at: last.start)
        var count = 0
        reading: while true {
            switch try reader.next() {
            case .frame: count += 1
            case .configuration: break
            case .ended, .failed: break reading
            }
        }
        #expect(count > 20)
        // What is found after a restart is the same.
        #expect(all(try folder()).last?.end == last.end)
    }

    @Test("A disk that is read-only is tried again, and what is recorded then can be read; nothing is lost of before")
    func readOnly() async throws {
        let records = try folder()
        let frames = try await frames(seconds: 9)
        let first = try RecordingWriter(records)
        write(frames.prefix { $0.header.ptsMicroseconds < 3_000_000 }, to: first)
        await first.finish()
        let before = all(records)
        try #require(before.count == 1 && disk.remount(isReadOnly: true))
        let configurations = frames.filter { $0.header.flags.contains(.configuration) }
        let second = try RecordingWriter(records)
        write(
            configurations + frames.filter { (3_000_000..<6_000_000).contains($0.header.ptsMicroseconds) }, to: second)
        try await Task.sleep(for: .milliseconds(300))
        #expect(all(records) == before)
        try #require(disk.remount(isReadOnly: false))
        write(frames.filter { $0.header.ptsMicroseconds >= 6_000_000 }, to: second)
        await second.finish()
        #expect(all(records).count == 2 && all(records).first == before.first)
        #expect((all(records).last?.duration ?? 0) > 2)
    }
}

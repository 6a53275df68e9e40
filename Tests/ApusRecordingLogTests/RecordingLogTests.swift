import ApusCore
import ApusMedia
import ApusRecordingLog
import ApusTestKit
import Foundation
import NIOCore
import Testing

@Suite("Recording log: files of the system")
struct RecordingLogTests {
    private let folder = Folder()
    private var directory: String { folder.file("log") }

    private func frames(_ range: Range<UInt64>, _ channel: String = "camera", epoch: UInt32 = 1) -> [LoggedFrame] {
        range.map { LogFrames.frame(channel, $0, epoch: epoch) }
    }

    private func open(
        _ limits: RecordingLogLimits = LogFrames.limits, sealing: any LogSealing = UnsealedLog()
    ) throws -> RecordingLog {
        try RecordingLog(directory: directory, limits: limits, sealing: sealing)
    }

    @Test("What is written is read in order, before and after a restart, and what is not written is not")
    func restart() async throws {
        let log = try open()
        let (first, other) = (frames(0..<20), frames(0..<5, "door-bell", epoch: 7))
        #expect(log.append("camera", first) == 0 && log.append("door-bell", other) == 0)
        #expect(log.logged("camera") == nil && log.channels.isEmpty)
        #expect(try await log.read("camera", after: nil, byteCountMax: 1 << 20).isEmpty)
        try await log.write()
        #expect(log.logged("camera") == first.last?.position)
        #expect(try await log.everything("camera") == first)
        let middle = FramePosition(epoch: 1, sequence: 9)
        #expect(try await log.read("camera", after: middle, byteCountMax: 1 << 20) == Array(first[10...]))
        #expect(try await log.read("camera", after: middle, byteCountMax: 1).map(\.position.sequence) == [10])
        #expect(log.append("camera", frames(20..<30)) == 0)
        await log.close()

        let again = try open()
        #expect(try await again.everything("camera") == first)
        #expect(try await again.everything("door-bell") == other)
        let channel = try #require(again.channels.first { $0.name == "door-bell" })
        #expect(channel.first == other[0].position && channel.last == other[4].position)
        #expect(channel.oldestMicroseconds == other[0].receivedMicroseconds && channel.byteCount > 0)
        #expect(again.append("camera", frames(20..<30)) == 0)
        try await again.write()
        #expect(try await again.everything("camera") == frames(0..<30))
        await again.close()
    }

    @Test("A release ends frames also after a restart, and cuts a section")
    func release() async throws {
        let log = try open()
        #expect(log.append("camera", frames(0..<20)) == 0)
        try await log.write()
        log.release("camera", through: FramePosition(epoch: 1, sequence: 6))
        #expect(log.channels.first?.first == FramePosition(epoch: 1, sequence: 7))
        #expect(try await log.everything("camera") == frames(7..<20))
        try await log.write()
        await log.close()
        let again = try open()
        #expect(try await again.everything("camera") == frames(7..<20))
        again.releaseAll("camera")
        #expect(again.channels.isEmpty && again.logged("camera") == nil)
        // A camera that is registered again may begin with a lower epoch.
        #expect(again.append("camera", frames(0..<3, epoch: 0)) == 0)
        try await again.write()
        await again.close()
        let last = try open()
        #expect(try await last.everything("camera") == frames(0..<3, epoch: 0))
        await last.close()
    }

    @Test("A second process is refused while the first one has the directory")
    func lock() async throws {
        let log = try open()
        #expect(throws: ApusError(.stateForeign)) { try open() }
        await log.close()
        await #expect(throws: ApusError(.storageFailed)) { try await log.write() }
        #expect(log.append("camera", frames(0..<1)) == 1)
        await (try open()).close()
    }

    @Test("A position that is appended twice is read once")
    func duplicates() async throws {
        let log = try open()
        #expect(log.append("camera", frames(0..<10)) == 0)
        try await log.write()
        #expect(log.append("camera", frames(5..<15)) == 0)
        #expect(log.append("camera", frames(3..<4) + frames(12..<13)) == 0)
        try await log.write()
        #expect(try await log.everything("camera", byteCountMax: 1) == frames(0..<15))
        #expect(try await log.everything("camera", byteCountMax: 1 << 20) == frames(0..<15))
        await log.close()
    }

    @Test("Two channels whose names are two normalizations of one text are two channels")
    func names() async throws {
        let (one, other) = ("caf\u{e9}", "cafe\u{301}")
        let log = try open()
        #expect(log.append(one, frames(0..<2)) == 0 && log.append(other, frames(5..<7)) == 0)
        try await log.write()
        log.releaseAll(one)
        #expect(try await log.everything(one).isEmpty)
        #expect(try await log.everything(other) == frames(5..<7))
        await log.close()
    }

    @Test("Files of another size, and more than there may be, are removed when they are free")
    func sizes() async throws {
        let log = try open()
        #expect(log.append("camera", (0..<100).map { LogFrames.frame("camera", $0) }) == 0)
        try await log.write()
        let before = log.status
        #expect(before.fileCount >= 2 && before.usedFileCount == before.fileCount)
        await log.close()
        var limits = LogFrames.limits
        limits.fileByteCount = 128 << 10
        limits.fileCountMax = 2
        let larger = try open(limits)
        #expect(try await larger.everything("camera") == frames(0..<100))
        larger.releaseAll("camera")
        #expect(larger.append("camera", frames(100..<101)) == 0)
        try await larger.write()
        #expect(larger.status.fileCount == 1 && larger.status.byteCount == 128 << 10)
        await larger.close()
    }

    @Test("Bounds that do not fit are refused, and frames, names and channels beyond the bounds too")
    func bounds() async throws {
        var limits = LogFrames.limits
        limits.groupByteCountMax = limits.fileByteCount
        #expect(throws: ApusError(.configurationInvalid)) { try open(limits) }
        limits = LogFrames.limits
        limits.channelCountMax = 2
        limits.channelWaitingByteCountMax = 10_000
        let log = try open(limits)
        let large = LoggedFrame(
            position: FramePosition(epoch: 1, sequence: 0), receivedMicroseconds: 0,
            content: ByteBuffer(repeating: 1, count: limits.frameByteCountMax + 1))
        #expect(log.append("a", [large]) == 1)
        #expect(log.append(String(repeating: "n", count: 257), frames(0..<2)) == 2)
        let refused = log.append("a", (0..<20).map { LogFrames.frame("a", $0) })
        #expect(refused > 0 && refused < 20)
        #expect(log.append("b", frames(0..<1)) == 0 && log.append("c", frames(0..<1)) == 1)
        try await log.write()
        #expect(log.append("c", frames(0..<1)) == 1, "two channels are in the log")
        log.releaseAll("b")
        #expect(log.append("c", frames(0..<1)) == 0)
        #expect(log.status.refusedFrameCount == 1 + 2 + refused + 2)
        await log.close()
    }

    @Test("A disk that is full or read-only does not stop a log whose files exist", .enabled(if: TestDisk.canBeMade))
    func fullDisk() async throws {
        let disk = TestDisk(byteCount: 1 << 20)
        let path = disk.path + "/log"
        let log = try RecordingLog(directory: path, limits: LogFrames.limits)
        #expect(disk.fill(disk.path + "/other"))
        for round in 0..<20 as Range<UInt64> {
            let some = frames(round * 20..<(round + 1) * 20)
            #expect(log.append("camera", some) == 0)
            try await log.write()
            #expect(try await log.everything("camera") == some)
            log.release("camera", through: some[19].position)
        }
        #expect(log.status.fileCount == 2)
        let last = frames(400..<410)
        #expect(log.append("camera", last) == 0)
        try await log.write()
        await log.close()
        #expect(disk.remount(isReadOnly: true))
        let reading = try RecordingLog(directory: path, limits: LogFrames.limits)
        #expect(try await reading.everything("camera") == last)
        #expect(reading.append("camera", frames(410..<411)) == 0)
        await #expect(throws: ApusError(.storageFailed)) { try await reading.write() }
        #expect(reading.status.failure?.code == .storageFailed)
        await reading.close()
    }

    @Test("No frame is in clear text in the files of a sealed log, and both keys of the cluster open them")
    func sealing() async throws {
        let (old, new) = ([UInt8](repeating: 1, count: 32), [UInt8](repeating: 2, count: 32))
        let log = try open(sealing: ClusterLogSealing(keys: ClusterKeys(current: old)))
        #expect(log.append("camera", frames(0..<60)) == 0)
        try await log.write()
        try expectNoClearText()
        // The steps of a change of the key: both are accepted, then the new one seals, then the old one is removed.
        try await log.use(ClusterLogSealing(keys: ClusterKeys(current: new, other: old)))
        #expect(log.append("camera", frames(60..<80)) == 0)
        try await log.write()
        await log.close()
        let foreign = try open(sealing: ClusterLogSealing(keys: ClusterKeys(current: old)))
        #expect(foreign.channels.isEmpty)
        let count = foreign.status.unreadableFileCount
        #expect(count >= 2)
        #expect(foreign.append("other", [LogFrames.frame("other", 1)]) == 0)
        try await foreign.write()
        #expect(foreign.status.unreadableFileCount == count, "files of an unknown key are kept")
        await foreign.close()
        let again = try open(
            sealing: ClusterLogSealing(keys: ClusterKeys(current: new, other: old)))
        #expect(try await again.everything("camera") == frames(0..<80))
        #expect(try await again.everything("other") == [LogFrames.frame("other", 1)])
        await again.close()
        // Opening has wrapped the other file again.
        let last = try open(sealing: ClusterLogSealing(keys: ClusterKeys(current: new)))
        #expect(try await last.everything("camera") == frames(0..<80) && last.status.unreadableFileCount == 0)
        await last.close()
        try expectNoClearText()
    }

    private func expectNoClearText() throws {
        for name in try FileManager.default.contentsOfDirectory(atPath: directory) {
            let content = FileManager.default.contents(atPath: "\(directory)/\(name)") ?? Data()
            for text in [LogFrames.mark, "camera"] {
                #expect(content.range(of: Data(text.utf8)) == nil, "\(name) has clear text")
            }
        }
    }

    @Test("A log that is not sealed has the frames in clear text, so the search above finds them")
    func clearText() async throws {
        let log = try open()
        #expect(log.append("camera", frames(0..<1)) == 0)
        try await log.write()
        await log.close()
        let content = try #require(FileManager.default.contents(atPath: directory + "/log-00000"))
        #expect(content.range(of: Data(LogFrames.mark.utf8)) != nil)
    }

    @Test("A quarter of a second of 64 cameras with 2 Mb/s each is written with one sync, in a fraction of it")
    func load() async throws {
        let log = try RecordingLog(directory: directory)
        let payload = ByteBuffer(repeating: 7, count: 8_000)
        var (durations, sequence) = ([Duration](), UInt64(0))
        for _ in 0..<20 {
            for camera in 0..<64 {
                // 25 frames a second and audio: 62,500 bytes in a quarter of a second.
                let frames = (0..<8 as Range<UInt64>).map { index in
                    LoggedFrame(
                        position: FramePosition(epoch: 1, sequence: sequence + index),
                        receivedMicroseconds: Int64(index), content: payload)
                }
                #expect(log.append("camera-\(camera)", frames) == 0)
            }
            sequence += 8
            let start = MonotonicTime.now()
            try await log.write()
            durations.append(.now() - start)
        }
        for camera in 0..<64 {
            #expect(log.logged("camera-\(camera)") == FramePosition(epoch: 1, sequence: sequence - 1))
        }
        durations.sort()
        #expect(durations[10] < .milliseconds(250), "\(durations)")
        await log.close()
    }
}

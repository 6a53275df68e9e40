import ApusCore
import ApusMedia
import ApusRecordingLog
import ApusTestKit
import NIOCore
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite("Recording log: disks that fail")
struct RecordingLogFaultTests {
    private static let sealings: [any LogSealing] = [
        UnsealedLog(), ClusterLogSealing(keys: ClusterKeys(current: [UInt8](repeating: 9, count: 32))),
    ]

    private func frames(_ range: Range<UInt64>, _ channel: String = "camera") -> [LoggedFrame] {
        range.map { LogFrames.frame(channel, $0) }
    }

    private func open(
        _ files: any LogFiles, _ limits: RecordingLogLimits = LogFrames.limits, sealing: any LogSealing = UnsealedLog()
    ) throws -> RecordingLog {
        try RecordingLog(directory: "/log", limits: limits, sealing: sealing, files: files)
    }

    @Test("A power cut at any step takes nothing that was durable", arguments: 0..<2, [0, 0.5, 1])
    func powerCut(sealing: Int, remains: Double) async throws {
        let sealing = Self.sealings[sealing]
        var step = 0
        while true {
            let disk = SimulatedDisk(seed: UInt64(step))
            let log = try open(disk.session(), sealing: sealing)
            #expect(log.append("camera", frames(0..<30)) == 0)
            try await log.write()
            log.release("camera", through: FramePosition(epoch: 1, sequence: 9))
            // The second write needs a second file, so headers are among the steps.
            #expect(log.append("camera", frames(30..<70)) == 0)
            disk.cutPower(at: step)
            let isWritten = (try? await log.write()) != nil
            let wasCut = disk.isCut
            let files = disk.session()
            disk.cutPower(remains: remains)
            await log.close()
            let again = try open(files, sealing: sealing)
            let found = try await again.everything("camera")
            let required = isWritten ? 10..<70 : 10..<30 as Range<UInt64>
            #expect(Set(frames(required)).isSubset(of: found), "step \(step)")
            #expect(found.allSatisfy { $0 == LogFrames.frame("camera", $0.position) && $0.position.sequence < 70 })
            #expect(again.append("camera", frames(70..<80)) == 0)
            try await again.write()
            #expect(Set(frames(70..<80)).isSubset(of: try await again.everything("camera")))
            await again.close()
            guard wasCut else { break }
            step += 1
        }
        #expect(step > 6)
    }

    @Test(
        "An error at any step keeps all frames, and the next write makes them durable", arguments: [EIO, ENOSPC, EROFS])
    func errors(number: CInt) async throws {
        var (step, failures) = (0, 0)
        while true {
            let disk = SimulatedDisk(seed: UInt64(step))
            let log = try open(disk.session())
            #expect(log.append("camera", frames(0..<30)) == 0)
            try await log.write()
            #expect(log.append("camera", frames(30..<70)) == 0)
            disk.fail(at: step, with: number)
            do { try await log.write() } catch {
                failures += 1
                #expect(error.code == (number == ENOSPC ? .storageFull : .storageFailed))
                #expect(log.status.failure == error && log.status.waitingByteCount > 0)
                #expect(log.append("camera", frames(70..<71)) == 0)
                try await log.write()
                #expect(log.status.failure == nil)
            }
            let hasFailed = disk.failureCount > 0
            disk.fail(at: nil, with: 0)
            let expected = frames(0..<(hasFailed ? 71 : 70))
            #expect(try await log.everything("camera") == expected, "step \(step)")
            #expect(log.status.waitingByteCount == 0)
            let files = disk.session()
            disk.cutPower(remains: 0)
            await log.close()
            let again = try open(files)
            #expect(try await again.everything("camera") == expected, "step \(step)")
            await again.close()
            guard hasFailed else { break }
            step += 1
        }
        #expect(failures > 6)
    }

    @Test("After a sync that failed, what a restart finds is written again before it counts as durable")
    func failedSync() async throws {
        let disk = SimulatedDisk()
        let log = try open(disk.session())
        #expect(log.append("camera", frames(0..<5)) == 0)
        try await log.write()
        #expect(log.append("camera", frames(5..<10)) == 0)
        disk.fail([.sync: 1])
        await #expect(throws: ApusError(.storageFailed)) { try await log.write() }
        disk.fail([:])
        // The process dies. The system still has the pages, and takes them for written.
        let files = disk.session()
        await log.close()
        let again = try open(files)
        let found = try await again.everything("camera")
        #expect(found == frames(0..<10) && again.logged("camera") == found.last?.position)
        let last = disk.session()
        disk.cutPower(remains: 0)
        await again.close()
        let third = try open(last)
        #expect(try await third.everything("camera") == found)
        await third.close()
    }

    @Test("After a sync that failed, the log continues in another file, and uses this one last")
    func anotherFile() async throws {
        let disk = SimulatedDisk()
        let log = try open(disk.session())
        #expect(log.append("camera", frames(0..<2)) == 0)
        try await log.write()
        disk.fail([.sync: 1])
        #expect(log.append("camera", frames(2..<4)) == 0)
        await #expect(throws: ApusError(.storageFailed)) { try await log.write() }
        disk.fail([:])
        let failed = disk.bytes("/log/log-00000")
        try await log.write()
        #expect(try await log.everything("camera") == frames(0..<4))
        #expect(disk.bytes("/log/log-00000") == failed && disk.bytes("/log/log-00001")[8192] != 0)
        await log.close()
    }

    @Test("Nothing is overwritten while all files are in use; frames are refused and counted until some are released")
    func fullLog() async throws {
        let disk = SimulatedDisk()
        disk.setFileCountMax(3)
        var limits = LogFrames.limits
        limits.waitingByteCountMax = 20_000
        limits.channelWaitingByteCountMax = 20_000
        let log = try open(disk.session(), limits)
        var accepted: [LoggedFrame] = []
        var next: UInt64 = 0
        var failure: ApusError?
        while log.status.refusedFrameCount == 0 {
            let frame = LogFrames.frame("camera", next)
            if log.append("camera", [frame]) == 0 { accepted.append(frame) }
            next += 1
            if next % 5 == 0 { do { try await log.write() } catch { failure = error } }
        }
        #expect(failure?.code == .storageFull)
        let full = log.status
        // The disk has room for three files, and the log may have four.
        #expect(full.fileCount == 3 && full.usedFileCount == 3 && full.failure?.code == .storageFull)
        let durable = try await log.everything("camera")
        #expect(durable == Array(accepted.prefix(durable.count)) && durable.count < accepted.count)
        log.release("camera", through: durable[durable.count / 2].position)
        try await log.write()
        #expect(log.status.failure == nil && !log.status.isFull && log.status.waitingByteCount == 0)
        #expect(try await log.everything("camera") == Array(accepted[(durable.count / 2 + 1)...]))
        await log.close()
    }

    @Test("The log says that it is full when it has all of its files")
    func allFiles() async throws {
        let log = try open(SimulatedDisk().session())
        #expect(log.append("camera", frames(0..<300)) == 0)
        await #expect(throws: ApusError(.storageFull)) { try await log.write() }
        #expect(log.status.isFull && log.status.fileCount == 4)
        let written = try await log.everything("camera")
        log.release("camera", through: written[written.count - 1].position)
        #expect(!log.status.isFull)
        try await log.write()
        #expect(try await log.everything("camera") == Array(frames(0..<300)[written.count...]))
        await log.close()
    }

    @Test("A disk that does not answer stops no append and no status, and the bound holds")
    func slowSync() async throws {
        let slow = SlowFiles(SimulatedDisk().session())
        var limits = LogFrames.limits
        limits.waitingByteCountMax = 20_000
        limits.channelWaitingByteCountMax = 20_000
        let log = try open(slow, limits)
        #expect(log.append("camera", frames(0..<3)) == 0)
        slow.hold()
        async let written: Void = log.write()
        try await eventually("the sync begins") { slow.waitingCount == 1 }
        var refused = 0
        for sequence in 3..<40 as Range<UInt64> { refused += log.append("camera", frames(sequence..<sequence + 1)) }
        let status = log.status
        #expect(refused > 0 && status.refusedFrameCount == refused && status.waitingByteCount <= 20_000)
        #expect(status.writing != nil && log.logged("camera") == nil)
        log.releaseAll("camera")
        slow.goOn()
        try await written
        #expect(log.status.writing == nil && log.status.waitingByteCount == 0 && log.channels.isEmpty)
        try await log.write()
        #expect(try await log.everything("camera").isEmpty, "all was released during the write")
        await log.close()
    }

    @Test("A bit that flips changes no frame, and costs at most its own group", arguments: 0..<2)
    func bitFlips(sealing: Int) async throws {
        let sealing = Self.sealings[sealing]
        let disk = SimulatedDisk()
        var limits = LogFrames.limits
        limits.fileCountMin = 0
        let log = try open(disk.session(), limits, sealing: sealing)
        for group in 0..<4 as Range<UInt64> {
            #expect(log.append("camera", frames(group * 2..<group * 2 + 2)) == 0)
            try await log.write()
        }
        await log.close()
        let path = "/log/log-00000"
        let whole = disk.bytes(path)
        let used = 8192 + 4 * 8192
        var random = SeededRandom(seed: 5)
        for place in stride(from: 0, to: used, by: 7) {
            var bytes = whole
            bytes[place] ^= 1 << UInt8.random(in: 0..<8, using: &random)
            disk.set(path, bytes)
            let again = try open(disk.session(), limits, sealing: sealing)
            let found = try await again.everything("camera")
            #expect(found.allSatisfy { $0 == LogFrames.frame("camera", $0.position) }, "byte \(place)")
            #expect(found.count >= 6 && Set(found).count == found.count, "byte \(place)")
            // The last group without its mark or identity looks as the rest of the file does.
            let isMark = place % 4096 < 16 && found == frames(0..<6)
            #expect(found.count == 8 || again.status.damagedRecordCount > 0 || isMark, "byte \(place)")
            await again.close()
        }
    }

    @Test("A file whose two headers are damaged is kept, and the log goes on in others")
    func damagedHeaders() async throws {
        let disk = SimulatedDisk()
        let log = try open(disk.session())
        #expect(log.append("camera", frames(0..<2)) == 0)
        try await log.write()
        await log.close()
        var bytes = disk.bytes("/log/log-00000")
        bytes[100] ^= 1
        bytes[4196] ^= 1
        disk.set("/log/log-00000", bytes)
        let again = try open(disk.session())
        #expect(again.channels.isEmpty && again.status.unreadableFileCount == 1)
        for round in 0..<20 as Range<UInt64> {
            #expect(again.append("camera", frames(round * 20..<round * 20 + 20)) == 0)
            try await again.write()
            again.releaseAll("camera")
        }
        #expect(disk.bytes("/log/log-00000") == bytes)
        await again.close()
    }

    @Test("An older copy of a file brings back what it had, and harms no other frame", arguments: 0..<2)
    func olderCopy(sealing: Int) async throws {
        let sealing = Self.sealings[sealing]
        let disk = SimulatedDisk()
        let log = try open(disk.session(), sealing: sealing)
        #expect(log.append("camera", frames(0..<3)) == 0)
        try await log.write()
        let old = disk.bytes("/log/log-00000")
        #expect(log.append("camera", frames(3..<60)) == 0)
        try await log.write()
        await log.close()
        disk.set("/log/log-00000", old)
        let again = try open(disk.session(), sealing: sealing)
        let found = try await again.everything("camera")
        #expect(found.prefix(3) == frames(0..<3)[...] && found.last == LogFrames.frame("camera", 59))
        #expect(found.allSatisfy { $0 == LogFrames.frame("camera", $0.position) })
        #expect(again.append("camera", frames(60..<90)) == 0)
        try await again.write()
        #expect(Set(found + frames(60..<90)) == Set(try await again.everything("camera")))
        await again.close()
    }

    @Test("A group of another log or of an earlier use is never taken for one of the file")
    func foreignGroups() async throws {
        let disk = SimulatedDisk()
        let log = try open(disk.session())
        #expect(log.append("camera", frames(0..<1)) == 0)
        try await log.write()
        await log.close()
        // With a valid checksum: a camera may send it inside of a frame.
        let group = Array(disk.bytes("/log/log-00000")[8192..<8192 + 3000])
        let victim = SimulatedDisk()
        let second = try open(victim.session())
        #expect(second.append("victim", frames(0..<10)) == 0)
        try await second.write()
        await second.close()
        var bytes = victim.bytes("/log/log-00000")
        // No table is left, so the search looks at each block.
        for block in stride(from: 8192, to: bytes.count, by: 4096) {
            bytes.replaceSubrange(block..<block + 3000, with: group)
        }
        victim.set("/log/log-00000", bytes)
        let again = try open(victim.session())
        #expect(again.channels.isEmpty)
        await again.close()
        // The same bytes with the file's own header are a group, so the test would find one.
        disk.set("/log/log-00000", Array(disk.bytes("/log/log-00000")[..<8192]) + bytes[8192...])
        let own = try open(disk.session())
        #expect(own.channels.map(\.name) == ["camera"])
        await own.close()
    }

    @Test("A section that cannot be read is left out after some tries, and the ones after it are read")
    func readErrors() async throws {
        let disk = SimulatedDisk()
        let log = try open(disk.session())
        #expect(log.append("camera", frames(0..<1)) == 0)
        try await log.write()
        disk.fail([.read: 1])
        for _ in 0..<3 {
            await #expect(throws: ApusError(.storageFailed)) {
                try await log.read("camera", after: nil, byteCountMax: 1)
            }
        }
        disk.fail([:])
        #expect(try await log.everything("camera") == frames(0..<1), "the error was a passing one")
        disk.fail([.read: 1])
        _ = try? await log.read("camera", after: nil, byteCountMax: 1)
        disk.fail([:])
        #expect(log.append("camera", frames(1..<3)) == 0)
        try await log.write()
        #expect(try await log.everything("camera") == frames(1..<3))
        #expect(log.status.damagedRecordCount == 1)
        await log.close()
    }
}

/// Files whose syncs wait while they are held.
private final class SlowFiles: LogFiles {
    private struct State {
        var isHeld = false
        var waitingCount = 0
    }

    private let files: SimulatedFiles
    private let state = Mutex(State())

    init(_ files: SimulatedFiles) { self.files = files }

    var waitingCount: Int { state.withLock { $0.waitingCount } }
    func hold() { state.withLock { $0.isHeld = true } }
    func goOn() { state.withLock { $0.isHeld = false } }

    func sync(_ file: CInt, of path: String) throws(FileFailure) {
        state.withLock { $0.waitingCount += 1 }
        while state.withLock({ $0.isHeld }) { usleep(1000) }
        state.withLock { $0.waitingCount -= 1 }
        try files.sync(file, of: path)
    }

    func makeFolder(_ path: String) throws(FileFailure) { try files.makeFolder(path) }
    func lock(_ path: String) throws(FileFailure) -> CInt { try files.lock(path) }
    func list(_ folder: String) throws(FileFailure) -> [String] { try files.list(folder) }
    func make(_ path: String, byteCount: Int) throws(FileFailure) -> CInt {
        try files.make(path, byteCount: byteCount)
    }
    func open(_ path: String) throws(FileFailure) -> CInt { try files.open(path) }
    func byteCount(_ file: CInt, of path: String) throws(FileFailure) -> Int { try files.byteCount(file, of: path) }
    func write(_ bytes: ByteBuffer, to file: CInt, at offset: Int, of path: String) throws(FileFailure) {
        try files.write(bytes, to: file, at: offset, of: path)
    }
    func read(_ file: CInt, at offset: Int, countMax: Int, of path: String) throws(FileFailure) -> [UInt8] {
        try files.read(file, at: offset, countMax: countMax, of: path)
    }
    func close(_ file: CInt) { files.close(file) }
    func remove(_ path: String) throws(FileFailure) { try files.remove(path) }
}

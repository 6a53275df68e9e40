import ApusCore
import ApusMedia
import ApusRecordingLog
import ApusTestKit
import NIOCore
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// One random schedule: a log on a simulated disk, and what must and may be in it.
private final class LogSchedule {
    private struct Channel {
        var next = FramePosition(epoch: 1, sequence: 0)
        /// All frames that were accepted.
        var appended: Set<FramePosition> = []
        /// Those that no successful write has followed.
        var queued: Set<FramePosition> = []
        var durable: Set<FramePosition> = []
        var released: Set<FramePosition> = []
        /// Released before a successful write: they must not return.
        var gone: Set<FramePosition> = []
        /// Released, and a write has failed since: it may have overwritten the file with the releases.
        var unsure: Set<FramePosition> = []
        /// They may be there or not.
        var optional: Set<FramePosition> = []
    }

    private static let directory = "/log"

    private let seed: UInt64
    private let disk: SimulatedDisk
    private let limits = LogFrames.limits
    private let sealing: any LogSealing
    private var random: SeededRandom
    private var channels = Dictionary(uniqueKeysWithValues: (0..<4).map { ("camera-\($0)", Channel()) })
    private var log: RecordingLog
    private(set) var reopenedCount = 0
    private(set) var writtenCount = 0
    private(set) var failedCount = 0

    private var names: [String] { channels.keys.sorted() }

    init(seed: UInt64) throws {
        self.seed = seed
        random = SeededRandom(seed: seed)
        disk = SimulatedDisk(seed: seed &* 31)
        sealing =
            seed % 2 == 0
            ? UnsealedLog() : ClusterLogSealing(keys: ClusterKeys(current: [UInt8](repeating: 7, count: 32)))
        log = try RecordingLog(directory: Self.directory, limits: limits, sealing: sealing, files: disk.session())
    }

    func run(steps: Int) async throws {
        for _ in 0..<steps {
            switch Int.random(in: 0..<100, using: &random) {
            case ..<45: append()
            case ..<70: try await write()
            case ..<80: try await release()
            case ..<81: releaseAll()
            case ..<85: changeFaults()
            case ..<91: try await reopen(after: .death)
            case ..<96: try await reopen(after: .powerCut)
            case ..<98: try await reopen(after: .powerCutInWrite)
            default: try await check()
            }
        }
        disk.fail([:])
        try await check()
        try await reopen(after: .powerCut)
        try await expectRecycling()
        await log.close()
    }

    private func append() {
        let name = pick()
        for _ in 0..<Int.random(in: 1...6, using: &random) {
            var position = channels[name]?.next ?? FramePosition(epoch: 1, sequence: 0)
            switch Int.random(in: 0..<40, using: &random) {
            case 0: position = FramePosition(epoch: position.epoch + 1, sequence: 0)
            case 1: position.sequence += UInt64.random(in: 1...5, using: &random)
            case 2:
                // A frame that came before, or was skipped.
                position.sequence -= UInt64.random(in: 0...min(8, position.sequence), using: &random)
            default: break
            }
            if let next = channels[name]?.next, position >= next {
                channels[name]?.next = FramePosition(epoch: position.epoch, sequence: position.sequence + 1)
            }
            guard log.append(name, [LogFrames.frame(name, position)]) == 0 else { continue }
            channels[name]?.appended.insert(position)
            channels[name]?.queued.insert(position)
            // The release was one of the earlier copy.
            if channels[name]?.released.remove(position) != nil { channels[name]?.durable.remove(position) }
            channels[name]?.gone.remove(position)
        }
    }

    private func write() async throws {
        do {
            try await log.write()
            writtenCount += 1
            for name in names {
                guard var channel = channels[name] else { continue }
                channel.durable.formUnion(channel.queued.subtracting(channel.optional))
                channel.queued = []
                channel.gone.formUnion(channel.released)
                channel.unsure = []
                channels[name] = channel
                let newest = channel.durable.subtracting(channel.released).max()
                if let newest, !channel.optional.contains(newest) {
                    #expect((log.logged(name) ?? FramePosition(epoch: 0, sequence: 0)) >= newest)
                }
            }
        } catch {
            failedCount += 1
            // Some of the groups may be durable already.
            for name in names {
                let released = channels[name]?.released ?? []
                channels[name]?.unsure = released
            }
        }
    }

    private func release() async throws {
        let name = pick()
        let frames = try await read(name)
        guard let frame = frames.randomElement(using: &random) else { return }
        log.release(name, through: frame.position)
        guard var channel = channels[name] else { return }
        let queued = channel.queued.filter { $0 <= frame.position }
        channel.optional.formUnion(queued)
        // Frames that wait are not released, but those of a write that failed half way may be in the log.
        channel.released.formUnion(channel.appended.filter { $0 <= frame.position && !queued.contains($0) })
        channel.durable.subtract(queued)
        channels[name] = channel
    }

    private func releaseAll() {
        let name = pick()
        log.releaseAll(name)
        guard var channel = channels[name] else { return }
        channel.released = channel.appended
        channel.queued = []
        channel.optional = []
        channels[name] = channel
    }

    private func changeFaults() {
        let chance = Double.random(in: 0...0.3, using: &random)
        switch Int.random(in: 0..<5, using: &random) {
        case 0: disk.fail([.sync: chance])
        case 1: disk.fail([.write: chance, .sync: chance])
        case 2: disk.fail([.write: chance], with: EROFS)
        case 3: disk.fail([.make: 1], with: ENOSPC)
        default: disk.fail([:])
        }
    }

    private enum End { case death, powerCut, powerCutInWrite }

    private func reopen(after end: End) async throws {
        disk.fail([:])
        reopenedCount += 1
        if end == .powerCutInWrite {
            append()
            disk.cutPower(at: Int.random(in: 0..<8, using: &random))
            try await write()
        }
        // The files of the old process fail from now on.
        let files = disk.session()
        if end != .death { disk.cutPower(remains: [0, 0.5, 0.9, 1].randomElement(using: &random) ?? 0) }
        await log.close()
        log = try RecordingLog(directory: Self.directory, limits: limits, sealing: sealing, files: files)
        #expect(log.status.failure == nil)
        for name in names {
            guard var channel = channels[name] else { continue }
            channel.gone.subtract(channel.unsure)
            channel.unsure = []
            channel.optional.formUnion(channel.released.subtracting(channel.gone))
            channel.optional.formUnion(channel.queued)
            channel.released = channel.gone
            channel.queued = []
            channels[name] = channel
        }
        try await check()
        for name in names {
            let found = try await read(name).map(\.position)
            // What is found is durable from now on.
            channels[name]?.durable.formUnion(found)
            channels[name]?.optional = []
            channels[name]?.durable.formIntersection(found)
            channels[name]?.released.subtract(found)
        }
    }

    private func read(_ name: String) async throws -> [LoggedFrame] {
        try await log.everything(name, byteCountMax: Int.random(in: 1...20_000, using: &random))
    }

    /// What must be there is there, and nothing else, in order.
    private func check() async throws {
        for name in names {
            guard let channel = channels[name] else { continue }
            let frames = try await read(name)
            let positions = frames.map(\.position)
            let found = Set(positions)
            #expect(zip(positions, positions.dropFirst()).allSatisfy { $0 < $1 }, "seed \(seed): the order of \(name)")
            #expect(
                frames.allSatisfy { $0 == LogFrames.frame(name, $0.position) }, "seed \(seed): the content of \(name)")
            let lost = channel.durable.subtracting(channel.released).subtracting(channel.optional).subtracting(found)
            #expect(lost.isEmpty, "seed \(seed): \(name) has lost \(lost.sorted())")
            let foreign = found.subtracting(channel.appended)
            #expect(foreign.isEmpty, "seed \(seed): \(name) has \(foreign.sorted()), which were not appended")
            let back = found.intersection(channel.released).subtracting(channel.optional)
            #expect(back.isEmpty, "seed \(seed): \(name) has released frames \(back.sorted())")
        }
        let status = log.status
        #expect(status.fileCount <= limits.fileCountMax && disk.names.count <= limits.fileCountMax)
        #expect(status.unreadableFileCount == 0)
    }

    /// When all is released, the log writes many times its size.
    private func expectRecycling() async throws {
        for name in names { log.releaseAll(name) }
        let name = names[0]
        for round in 0..<30 {
            let frames = (0..<10).map { LogFrames.frame(name, UInt64(round * 10 + $0), epoch: 1000) }
            #expect(log.append(name, frames) == 0)
            try await log.write()
            let read = try await read(name)
            #expect(read == frames)
            log.release(name, through: frames[9].position)
        }
        #expect(log.status.usedByteCount == 0 && log.status.waitingByteCount == 0)
    }

    private func pick() -> String { names.randomElement(using: &random) ?? "" }
}

@Suite("Recording log: random schedules")
struct RecordingLogModelTests {
    @Test(
        "Each durable frame that is not released is read after deaths, power cuts and disk errors; nothing else is",
        arguments: SeedShare.chunks(of: 0..<4500, size: 50))
    func schedules(seeds: [UInt64]) async throws {
        var (reopened, written, failed) = (0, 0, 0)
        for seed in seeds {
            let schedule = try LogSchedule(seed: seed)
            try await schedule.run(steps: 120)
            reopened += schedule.reopenedCount
            written += schedule.writtenCount
            failed += schedule.failedCount
        }
        #expect(reopened > seeds.count && written > 10 * seeds.count && failed > seeds.count)
    }
}

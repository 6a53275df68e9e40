import ApusCore
import ApusMedia
import NIOCore
import Synchronization

/// What the writer's thread does.
extension RecordingLog {
    /// The file that is written, and where.
    private struct Target {
        var slot: Int
        var offset: Int
        var file: OpenFile
    }

    func writeNow() throws(ApusError) {
        var batch = state.withLock { $0.beginWrite() }
        guard !batch.isEmpty else { return state.withLock { $0.endWrite(batch, nil) } }
        // What to put back: the batch without what is durable.
        var durable = batch
        do throws(ApusError) {
            repeat { try writeOneFile(&batch, &durable) } while !batch.isEmpty
            state.withLock { $0.endWrite(durable, nil) }
        } catch {
            state.withLock { $0.endWrite(durable, error) }
            throw error
        }
    }

    /// Writes groups until the batch is written or the file is full, and syncs the file.
    private func writeOneFile(_ batch: inout LogBatch, _ durable: inout LogBatch) throws(ApusError) {
        var target = try currentTarget(&batch)
        // Written, and not durable yet.
        var groups: [(group: LogGroup, offset: Int)] = []
        do throws(ApusError) {
            while !batch.isEmpty, let group = try nextGroup(&batch, in: target) {
                do throws(FileFailure) { try target.file.file.write(group.bytes, at: target.offset) } catch {
                    throw error.error
                }
                groups.append((group, target.offset))
                target.offset += group.bytes.readableBytes
            }
            if !groups.isEmpty { try sync(target.file.file) }
        } catch {
            state.withLock { $0.failed(target.slot, error) }
            throw error
        }
        state.withLock { $0.commit(groups, target.slot, at: target.offset, before: durable, after: batch) }
        durable = batch
        // What is left does not fit.
        if batch.hasFrames { state.withLock { $0.leave(target.slot) } }
    }

    private func sync(_ file: LogFile) throws(ApusError) {
        let start = MonotonicTime.now()
        do throws(FileFailure) { try file.sync() } catch { throw error.error }
        state.withLock { $0.lastSync = .now() - start }
    }

    /// The next group of the batch; nil if the file has no room for it.
    private func nextGroup(_ batch: inout LogBatch, in target: Target) throws(ApusError) -> LogGroup? {
        let room = min(limits.groupByteCountMax, limits.fileByteCount - target.offset)
        guard room >= LogFormat.blockByteCount else { return nil }
        let (number, durable) = state.withLock { ($0.index.newGroup(in: target.slot), $0.durableGroup) }
        var builder = LogGroupBuilder(
            identity: target.file.header.identity, number: number, cipher: target.file.cipher, byteCountMax: room,
            sectionByteCountMax: limits.sectionByteCountMax)
        builder.add(batch.releases)
        batch.releases = []
        try builder.add(&batch)
        return try builder.group(durable: durable)
    }

    // MARK: Files

    /// The file to write: the current one, or the next one, whose first group has all releases that matter.
    private func currentTarget(_ batch: inout LogBatch) throws(ApusError) -> Target {
        let target = state.withLock { state -> Target? in
            guard let current = state.index.current, let file = state.open[current.slot],
                current.offset + LogFormat.blockByteCount <= limits.fileByteCount,
                state.sealing.isCurrent(file.header.wrappedKey)
            else { return nil }
            return Target(slot: current.slot, offset: current.offset, file: file)
        }
        if let target { return target }
        let next = try beginFile()
        batch.releases = state.withLock { $0.index.releases() }
        return next
    }

    private func beginFile() throws(ApusError) -> Target {
        let slot = try nextSlot()
        let sealing = state.withLock { $0.sealing }
        let key = try sealing.makeKey()
        let (file, header) = state.withLock { state -> (LogFile?, LogFileHeader) in
            if let current = state.index.current { state.leave(current.slot) }
            return (
                state.open[slot]?.file,
                LogFileHeader(
                    slot: UInt32(slot), generation: state.index.newGeneration(), identity: .random(in: .min ... .max),
                    previousGeneration: state.previous.generation, previousEnd: state.previous.end,
                    wrappedKey: key?.wrapped ?? [])
            )
        }
        guard let file else { throw ApusError(.internalFailure, "a file of the recording log is not open") }
        do throws(ApusError) {
            // The first copy is durable before the second one is written: one of them is always whole.
            do throws(FileFailure) { try file.write(header.encoded(), at: 0) } catch { throw error.error }
            try sync(file)
            do throws(FileFailure) { try file.write(header.encoded(), at: LogFormat.blockByteCount) } catch {
                throw error.error
            }
        } catch {
            state.withLock { $0.failed(slot, error) }
            throw error
        }
        let open = OpenFile(file: file, header: header, cipher: LogCipher(key: key?.key))
        state.withLock { state in
            state.open[slot] = open
            state.durableGroup = 0
            state.index.overwrite(slot, generation: header.generation, at: LogFormat.groupsOffset)
        }
        return Target(slot: slot, offset: LogFormat.groupsOffset, file: open)
    }

    /// A free file, which is created if there is none.
    private func nextSlot() throws(ApusError) -> Int {
        enum Choice { case free(Int), create(Int), none }
        let misfits = state.withLock { $0.removeMisfits(limits) }
        for file in misfits { try? files.remove(file.path) }
        let choice: Choice = state.withLock { state in
            if let free = state.index.freeSlot { return .free(free) }
            guard state.index.slots.count < limits.fileCountMax else {
                state.isFull = true
                return .none
            }
            return .create((0...).first { state.index.slots[$0] == nil } ?? 0)
        }
        switch choice {
        case .free(let slot): return slot
        case .create(let slot):
            let file = try LogOpening.create(slot, in: directory, limits, files)
            state.withLock { $0.add(file, slot, limits) }
            return slot
        case .none:
            throw ApusError(
                .storageFull, "all \(limits.fileCountMax) files of the recording log have frames that are not sealed")
        }
    }

    // MARK: Keys

    /// Wraps the keys of files again that the other key of the cluster has wrapped.
    func wrapAgain() throws(ApusError) {
        let (sealing, open) = state.withLock { ($0.sealing, $0.open) }
        for (slot, file) in open.sorted(by: { $0.key < $1.key }) {
            guard let key = file.cipher.key, !sealing.isCurrent(file.header.wrappedKey),
                let wrapped = try sealing.wrap(key)
            else { continue }
            var header = file.header
            header.wrappedKey = wrapped
            try LogOpening.write(header, to: file.file)
            state.withLock { $0.open[slot]?.header = header }
        }
    }
}

extension RecordingLog.State {
    mutating func beginWrite() -> LogBatch {
        writingSince = .now()
        defer { releases = [:] }
        let pending = releases.sorted { $0.key < $1.key }.flatMap { entry in entry.value.map { (entry.key, $0) } }
        return LogBatch(channels: queue.take(), releases: pending)
    }

    /// Adds a new file.
    mutating func add(_ file: RecordingLog.OpenFile, _ slot: Int, _ limits: RecordingLogLimits) {
        index.addSlot(slot, LogIndex.Slot(use: .free, generation: 0, byteCount: limits.fileByteCount))
        open[slot] = file
    }

    /// Forgets free files that have another size, or are more than there may be, and returns them: they are to be
    /// removed.
    mutating func removeMisfits(_ limits: RecordingLogLimits) -> [LogFile] {
        var files: [LogFile] = []
        for (number, slot) in index.slots.sorted(by: { $0.key > $1.key }) where slot.use == .free {
            guard slot.byteCount != limits.fileByteCount || index.slots.count > limits.fileCountMax,
                let file = open.removeValue(forKey: number)
            else { continue }
            index.removeSlot(number)
            files.append(file.file)
        }
        return files
    }

    /// The write has ended: what is left of its batch waits again.
    mutating func endWrite(_ rest: LogBatch, _ error: ApusError?) {
        writingSince = nil
        failure = error
        if error == nil { isFull = false }
        for (channel, release) in rest.releases {
            let isCovered = releases[channel]?.contains { $0.covers(release) } ?? false
            if !isCovered { releases[channel, default: []].append(release) }
        }
        var channels = rest.channels
        for name in lateReleases {
            for index in channels.indices where channels[index].name == name {
                queue.written(name, channels[index].frames[channels[index].next...])
                channels[index].next = channels[index].frames.count
            }
        }
        queue.putBack(channels)
        for name in lateReleases {
            release(name, through: RecordingLog.end)
            index.forget(name)
        }
        lateReleases = []
    }

    /// The groups are durable.
    mutating func commit(
        _ groups: [(group: LogGroup, offset: Int)], _ slot: Int, at offset: Int, before: LogBatch, after: LogBatch
    ) {
        for (group, start) in groups {
            for placed in group.sections {
                index.add(LogExtent(placed, slot: slot, group: group.number, at: start), of: placed.channel)
            }
        }
        if let last = groups.last { durableGroup = last.group.number }
        index.move(slot, to: offset)
        for (old, new) in zip(before.channels, after.channels) where old.next < new.next {
            queue.written(old.name, old.frames[old.next..<new.next])
        }
    }

    /// A write or sync of a file failed.
    mutating func failed(_ slot: Int, _ error: ApusError) {
        if index.current?.slot == slot { leave(slot) }
        index.fail(slot)
    }

    /// The file is not written any more.
    mutating func leave(_ slot: Int) {
        if let generation = index.slots[slot]?.generation { previous = (generation, durableGroup) }
        index.close(slot)
    }
}

extension LogExtent {
    init(_ placed: PlacedSection, slot: Int, group: UInt64, at start: Int) {
        let section = placed.section
        self.init(
            slot: UInt32(slot), part: placed.part, group: group, offset: UInt32(start + placed.offset),
            byteCount: UInt32(section.byteCount), checksum: section.checksum, epoch: section.epoch,
            first: section.first, last: section.last, receivedMicroseconds: section.receivedMicroseconds,
            frameCount: UInt32(section.frameCount))
    }
}

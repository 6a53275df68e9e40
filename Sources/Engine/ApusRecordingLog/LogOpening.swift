import ApusCore
import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Opens the files of a log, and finds out what is in them.
struct LogOpening {
    /// The name of the file that is locked.
    static let lockName = "lock"
    private static let prefix = "log-"

    let directory: String
    let limits: RecordingLogLimits
    let sealing: any LogSealing
    let files: any LogFiles
    private var state: RecordingLog.State

    init(directory: String, limits: RecordingLogLimits, sealing: any LogSealing, files: any LogFiles) {
        (self.directory, self.limits, self.sealing, self.files) = (directory, limits, sealing, files)
        state = RecordingLog.State(sealing: sealing)
    }

    /// - Throws: 10020 if another process has the directory, 10041 or 10021.
    mutating func open() throws(ApusError) -> RecordingLog.State {
        let names: [String]
        do throws(FileFailure) {
            try files.makeFolder(directory)
            let path = "\(directory)/\(Self.lockName)"
            state.lock = LogFile(path, try files.lock(path), files)
            names = try files.list(directory)
        } catch {
            guard error.number != EWOULDBLOCK else {
                throw ApusError(.stateForeign, "another process has the recording log in \(directory)")
            }
            throw error.error
        }
        for name in names.sorted() { if let slot = Self.slot(name) { openFile(slot) } }
        readGroups()
        for file in state.removeMisfits(limits) { try? files.remove(file.path) }
        while state.index.slots.count < limits.fileCountMin {
            let slot = (0...).first { state.index.slots[$0] == nil } ?? 0
            do throws(ApusError) { state.add(try Self.create(slot, in: directory, limits, files), slot, limits) } catch
            {
                // Later calls try again.
                state.failure = error
                break
            }
        }
        return state
    }

    // MARK: Files

    static func path(_ slot: Int, in directory: String) -> String {
        let digits = String(slot)
        return "\(directory)/\(prefix)\(String(repeating: "0", count: max(0, 5 - digits.count)))\(digits)"
    }

    /// The number of a name; nil if it is none of a log's file.
    private static func slot(_ name: String) -> Int? {
        guard name.utf8.starts(with: prefix.utf8), let slot = Int(name.dropFirst(prefix.count)), slot >= 0,
            path(slot, in: "") == "/\(name)"
        else { return nil }
        return slot
    }

    static func create(
        _ slot: Int, in directory: String, _ limits: RecordingLogLimits, _ files: any LogFiles
    ) throws(ApusError) -> RecordingLog.OpenFile {
        let path = path(slot, in: directory)
        do throws(FileFailure) {
            let file = LogFile(path, try files.make(path, byteCount: limits.fileByteCount), files)
            return RecordingLog.OpenFile(file: file, header: .none(slot), cipher: LogCipher(key: nil))
        } catch {
            throw error.error
        }
    }

    /// Writes both copies of a header, so that one of them is always whole.
    static func write(_ header: LogFileHeader, to file: LogFile) throws(ApusError) {
        do throws(FileFailure) {
            for offset in [0, LogFormat.blockByteCount] {
                try file.write(header.encoded(), at: offset)
                try file.sync()
            }
        } catch {
            throw error.error
        }
    }

    private mutating func openFile(_ slot: Int) {
        let path = Self.path(slot, in: directory)
        var byteCount = 0
        do throws(FileFailure) {
            let file = LogFile(path, try files.open(path), files)
            byteCount = try files.byteCount(file.descriptor, of: path)
            let head = try file.read(at: 0, countMax: LogFormat.groupsOffset)
            switch Self.content(head, slot: slot, sealing) {
            case .none:
                let open = RecordingLog.OpenFile(file: file, header: .none(slot), cipher: LogCipher(key: nil))
                state.open[slot] = open
                state.index.addSlot(slot, .init(use: .free, generation: 0, byteCount: byteCount))
            case .groups(let header, let cipher):
                state.open[slot] = RecordingLog.OpenFile(file: file, header: header, cipher: cipher)
                let use = LogIndex.Slot.Use.opening
                state.index.addSlot(slot, .init(use: use, generation: header.generation, byteCount: byteCount))
            case .unreadable(let generation):
                state.index.addSlot(
                    slot, .init(use: .unreadable, generation: generation, byteCount: byteCount))
            }
        } catch {
            state.failure = error.error
            state.index.addSlot(slot, .init(use: .unreadable, generation: 0, byteCount: byteCount))
        }
    }

    private enum Content {
        case none
        case groups(LogFileHeader, LogCipher)
        case unreadable(generation: UInt64)
    }

    /// What the two headers say.
    private static func content(_ head: [UInt8], slot: Int, _ sealing: any LogSealing) -> Content {
        // Its creation was interrupted.
        guard head.count == LogFormat.groupsOffset else { return .none }
        let second = head[LogFormat.blockByteCount...]
        let headers = [head[..<LogFormat.blockByteCount], second].compactMap { LogFileHeader(decoding: $0) }
        guard let newest = headers.map(\.generation).max() else {
            // The second copy is written when the first one is durable: the file was never used.
            return second.allSatisfy { $0 == 0 } ? .none : .unreadable(generation: 0)
        }
        for header in headers where header.generation == newest && header.slot == UInt32(slot) {
            if header.wrappedKey.isEmpty { return .groups(header, LogCipher(key: nil)) }
            if let key = sealing.unwrap(header.wrappedKey) { return .groups(header, LogCipher(key: key)) }
        }
        return .unreadable(generation: newest)
    }

    // MARK: Groups

    /// A file with its groups.
    private struct Scanned {
        var slot: Int
        var open: RecordingLog.OpenFile
        var scan: LogScan
        /// The last group that is known to be durable.
        var durable: UInt64
        /// False if a group that may not be durable could not be written again.
        var isHealthy = true
    }

    private mutating func readGroups() {
        var scans: [Scanned] = []
        for (slot, open) in state.open where state.index.slots[slot]?.use == .opening {
            let byteCount = state.index.slots[slot]?.byteCount ?? 0
            var scan = LogScan(
                file: open.file, identity: open.header.identity, cipher: open.cipher, byteCount: byteCount)
            scan.run()
            state.damagedRecordCount += scan.damagedCount
            let durable = scan.groups.map(\.header.durable).max() ?? 0
            scans.append(Scanned(slot: slot, open: open, scan: scan, durable: durable))
        }
        scans.sort { ($0.open.header.generation, $0.slot) < ($1.open.header.generation, $1.slot) }
        let ends = Dictionary(
            scans.map { ($0.open.header.previousGeneration, $0.open.header.previousEnd) }, uniquingKeysWith: max)
        for index in scans.indices {
            scans[index].durable = max(scans[index].durable, ends[scans[index].open.header.generation] ?? 0)
            add(&scans[index], isNewest: index == scans.count - 1)
        }
        for scan in scans.dropLast() { state.index.opened(scan.slot) }
        if let newest = scans.last { goOn(newest) }
    }

    /// Adds the groups of a file to the index.
    private mutating func add(_ scanned: inout Scanned, isNewest: Bool) {
        let slot = scanned.slot
        var isWritten = false
        for group in scanned.scan.groups {
            state.index.found(group: group.header.number, in: slot)
            // As when it was written: the releases came before its frames, which may have released positions again.
            for case .release(let channel, let release) in group.entries {
                _ = state.index.apply(release, to: channel)
                if release.through == RecordingLog.end { state.index.forget(channel) }
            }
            var sections = group.sections
            if group.header.number > scanned.durable {
                sections = check(group, &scanned)
                isWritten = true
            }
            for placed in sections {
                let extent = LogExtent(placed, slot: slot, group: group.header.number, at: group.offset)
                state.index.add(extent, of: placed.channel)
            }
        }
        // The newest file is continued.
        guard isWritten || isNewest else { return }
        do throws(ApusError) { try Self.write(scanned.open.header, to: scanned.open.file) } catch {
            state.failure = error
            scanned.isHealthy = false
        }
    }

    /// The sections of a group that are whole. The group is written again, without those that are not, and then the
    /// file's header: after a sync that failed, the system has pages that are not on the disk, and does not write them
    /// by itself.
    private mutating func check(_ group: FoundGroup, _ scanned: inout Scanned) -> [PlacedSection] {
        let bytes: [UInt8]
        do throws(FileFailure) {
            bytes = try scanned.open.file.read(at: group.offset, countMax: group.header.byteCount)
            guard bytes.count == group.header.byteCount else { throw FileFailure(scanned.open.file.path, EIO) }
        } catch {
            state.failure = error.error
            scanned.isHealthy = false
            return []
        }
        let sections = group.sections.filter { placed in
            let end = placed.offset + placed.section.byteCount
            return LogFormat.checksum(bytes[placed.offset..<end]) == placed.section.checksum
        }
        state.damagedRecordCount += group.sections.count - sections.count
        do throws(ApusError) {
            let whole = Set(sections.map(\.part))
            let group = (content: try group.bytes(bytes, whole: whole, scanned.open.cipher), offset: group.offset)
            do throws(FileFailure) { try scanned.open.file.write(group.content, at: group.offset) } catch {
                throw error.error
            }
        } catch {
            // They can be read, at least until the machine restarts.
            state.failure = error
            scanned.isHealthy = false
        }
        return sections
    }

    /// Continues in the newest file, if it can be written.
    private mutating func goOn(_ newest: Scanned) {
        let (header, last) = (newest.open.header, newest.scan.groups.last?.header.number ?? 0)
        let byteCount = state.index.slots[newest.slot]?.byteCount
        guard newest.isHealthy, byteCount == limits.fileByteCount, sealing.isCurrent(header.wrappedKey) else {
            state.previous = (header.generation, newest.isHealthy ? last : newest.durable)
            return state.index.opened(newest.slot)
        }
        state.durableGroup = last
        state.index.goOn(newest.slot, generation: header.generation, at: newest.scan.end)
    }
}

extension LogFileHeader {
    /// The header of a file that was never used.
    static func none(_ slot: Int) -> Self {
        Self(
            slot: UInt32(slot), generation: 0, identity: 0, previousGeneration: 0, previousEnd: 0, wrappedKey: [])
    }
}

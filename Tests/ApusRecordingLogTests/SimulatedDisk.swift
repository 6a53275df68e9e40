import ApusCore
import ApusRecordingLog
import NIOCore
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A disk in memory, whose power can be cut: what was not synced is lost or torn, in sectors of 512 bytes.
///
/// A sync that fails loses what was not synced, as ext4 does: reads return it until the power is cut, and a later sync
/// does not write it.
///
/// Concurrency model: any thread. A `Mutex` guards the state.
final class SimulatedDisk: Sendable {
    static let sectorByteCount = 512

    enum Operation: Hashable { case makeFolder, lock, list, make, open, size, write, sync, read, remove }

    fileprivate struct File {
        var durable: [UInt8]
        var visible: [UInt8]
        var dirty: Set<Int> = []
    }

    fileprivate struct State {
        var files: [String: File] = [:]
        var paths: [CInt: String] = [:]
        var locks: [CInt: String] = [:]
        var lastDescriptor: CInt = 100
        var session = 0
        var random = SeededRandom(seed: 0)
        var step = 0
        /// The number of the operation that fails, from 0 on.
        var failsAt: Int?
        /// The chance of each operation to fail.
        var chances: [Operation: Double] = [:]
        var number: CInt = EIO
        var failureCount = 0
        var cutsAt: Int?
        var isCut = false
        var syncCount = 0
        var fileCountMax = Int.max
    }

    fileprivate let state: Mutex<State>

    init(seed: UInt64 = 0) {
        var first = State()
        first.random = SeededRandom(seed: seed)
        state = Mutex(first)
    }

    /// The files for a process that starts now. Those of earlier processes fail from now on.
    func session() -> SimulatedFiles {
        let number = state.withLock { state in
            state.session += 1
            (state.paths, state.locks) = ([:], [:])
            (state.isCut, state.cutsAt) = (false, nil)
            return state.session
        }
        return SimulatedFiles(disk: self, session: number)
    }

    /// What is not durable is lost, or each of its sectors remains with a chance.
    func cutPower(remains chance: Double) {
        state.withLock { $0.cut(chance) }
    }

    /// The power is cut at an operation: it and all later ones of the session fail.
    func cutPower(at step: Int) {
        state.withLock { ($0.step, $0.cutsAt) = (0, step) }
    }

    var isCut: Bool { state.withLock { $0.isCut } }
    var failureCount: Int { state.withLock { $0.failureCount } }
    var syncCount: Int { state.withLock { $0.syncCount } }
    var names: [String] { state.withLock { $0.files.keys.sorted() } }

    func fail(at step: Int?, with number: CInt) {
        state.withLock { ($0.step, $0.failsAt, $0.number) = (0, step, number) }
    }

    func fail(_ chances: [Operation: Double], with number: CInt = EIO) {
        state.withLock { ($0.chances, $0.number) = (chances, number) }
    }

    func setFileCountMax(_ count: Int) { state.withLock { $0.fileCountMax = count } }

    func bytes(_ path: String) -> [UInt8] { state.withLock { $0.files[path]?.visible ?? [] } }

    /// Replaces the content of a file, durably.
    func set(_ path: String, _ bytes: [UInt8]) {
        state.withLock { $0.files[path] = File(durable: bytes, visible: bytes) }
    }

    /// All that any file has.
    var everything: [UInt8] { state.withLock { state in state.files.values.flatMap(\.visible) } }
}

extension SimulatedDisk.State {
    mutating func cut(_ chance: Double) {
        for (path, var file) in files.sorted(by: { $0.key < $1.key }) {
            for sector in file.dirty.sorted() where random.nextUnit() < chance {
                file.store(sector)
            }
            (file.visible, file.dirty) = (file.durable, [])
            files[path] = file
        }
    }
}

extension SimulatedDisk.File {
    mutating func store(_ sector: Int) {
        let start = sector * SimulatedDisk.sectorByteCount
        let range = start..<min(start + SimulatedDisk.sectorByteCount, visible.count)
        durable.replaceSubrange(range, with: visible[range])
    }
}

/// The files of a disk, for one process.
struct SimulatedFiles: LogFiles {
    let disk: SimulatedDisk
    let session: Int

    private func enter<Value>(
        _ operation: SimulatedDisk.Operation, _ path: String,
        _ body: (inout SimulatedDisk.State, _ failure: FileFailure?) throws(FileFailure) -> Value
    ) throws(FileFailure) -> Value {
        let result: Result<Value, FileFailure> = disk.state.withLock { state in
            guard state.session == session, !state.isCut else { return .failure(FileFailure(path, EBADF)) }
            defer { state.step += 1 }
            if state.step == state.cutsAt {
                state.isCut = true
                return .failure(FileFailure(path, EIO))
            }
            var failure: FileFailure?
            let chance = state.chances[operation] ?? 0
            if state.step == state.failsAt || (chance > 0 && state.random.nextUnit() < chance) {
                state.failureCount += 1
                failure = FileFailure(path, state.number)
            }
            do throws(FileFailure) { return .success(try body(&state, failure)) } catch { return .failure(error) }
        }
        return try result.get()
    }

    func makeFolder(_ path: String) throws(FileFailure) {
        try enter(.makeFolder, path) { _, failure throws(FileFailure) in if let failure { throw failure } }
    }

    func lock(_ path: String) throws(FileFailure) -> CInt {
        try enter(.lock, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            guard !state.locks.values.contains(path) else { throw FileFailure(path, EWOULDBLOCK) }
            state.lastDescriptor += 1
            state.locks[state.lastDescriptor] = path
            return state.lastDescriptor
        }
    }

    func list(_ folder: String) throws(FileFailure) -> [String] {
        try enter(.list, folder) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            return state.files.keys.filter { $0.hasPrefix(folder + "/") }.map { String($0.dropFirst(folder.count + 1)) }
        }
    }

    func make(_ path: String, byteCount: Int) throws(FileFailure) -> CInt {
        try enter(.make, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            guard state.files[path] == nil else { throw FileFailure(path, EEXIST) }
            guard state.files.count < state.fileCountMax else { throw FileFailure(path, ENOSPC) }
            let bytes = [UInt8](repeating: 0, count: byteCount)
            state.files[path] = SimulatedDisk.File(durable: bytes, visible: bytes)
            state.lastDescriptor += 1
            state.paths[state.lastDescriptor] = path
            return state.lastDescriptor
        }
    }

    func open(_ path: String) throws(FileFailure) -> CInt {
        try enter(.open, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            guard state.files[path] != nil else { throw FileFailure(path, ENOENT) }
            state.lastDescriptor += 1
            state.paths[state.lastDescriptor] = path
            return state.lastDescriptor
        }
    }

    func byteCount(_ file: CInt, of path: String) throws(FileFailure) -> Int {
        try enter(.size, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            return state.files[path]?.visible.count ?? 0
        }
    }

    func write(_ bytes: ByteBuffer, to file: CInt, at offset: Int, of path: String) throws(FileFailure) {
        try enter(.write, path) { state, failure throws(FileFailure) in
            guard state.paths[file] == path else { throw FileFailure(path, EBADF) }
            var bytes = Array(bytes.readableBytesView)
            // A write that fails has written a part.
            if failure != nil { bytes = Array(bytes.prefix(Int.random(in: 0...bytes.count, using: &state.random))) }
            let end = offset + bytes.count
            precondition(end <= state.files[path]?.visible.count ?? 0, "a file of the log never grows")
            if !bytes.isEmpty {
                state.files[path]?.visible.replaceSubrange(offset..<end, with: bytes)
                let size = SimulatedDisk.sectorByteCount
                for sector in offset / size...(end - 1) / size { state.files[path]?.dirty.insert(sector) }
            }
            if let failure { throw failure }
        }
    }

    func sync(_ file: CInt, of path: String) throws(FileFailure) {
        try enter(.sync, path) { state, failure throws(FileFailure) in
            guard state.paths[file] == path else { throw FileFailure(path, EBADF) }
            state.syncCount += 1
            for sector in (state.files[path]?.dirty ?? []).sorted() {
                // A sync that fails has written some.
                if failure == nil || state.random.nextUnit() < 0.3 { state.files[path]?.store(sector) }
            }
            state.files[path]?.dirty = []
            if let failure { throw failure }
        }
    }

    func read(_ file: CInt, at offset: Int, countMax: Int, of path: String) throws(FileFailure) -> [UInt8] {
        try enter(.read, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            guard state.paths[file] == path, let bytes = state.files[path]?.visible else {
                throw FileFailure(path, EBADF)
            }
            guard offset < bytes.count else { return [] }
            return Array(bytes[offset..<min(offset + countMax, bytes.count)])
        }
    }

    func close(_ file: CInt) {
        disk.state.withLock { state in
            state.paths[file] = nil
            state.locks[file] = nil
        }
    }

    func remove(_ path: String) throws(FileFailure) {
        try enter(.remove, path) { state, failure throws(FileFailure) in
            if let failure { throw failure }
            state.files[path] = nil
        }
    }
}

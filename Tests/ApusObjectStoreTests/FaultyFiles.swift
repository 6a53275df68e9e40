import ApusCore
import ApusObjectStore
import Foundation
import Synchronization

/// The file system, of which one operation fails, or all wait; it records what a power cut would take.
///
/// Concurrency model: any thread. A `Mutex` guards the state.
final class FaultyFiles: ObjectFiles {
    private struct State {
        var step = 0
        var failsAt: Int?
        var number: CInt = 0
        var hasFailed = false
        var failsSyncFolder = false
        /// Files with content that is not durable, by descriptor.
        var written: [CInt: String] = [:]
        /// Names that are not durable, by their folder.
        var names: [String: Set<String>] = [:]
    }

    private let system = SystemObjectFiles()
    private let state = Mutex(State())
    private let gate = NSCondition()
    private nonisolated(unsafe) var isHung = false  // SAFETY: guarded by the condition.
    private nonisolated(unsafe) var hangingCount = 0  // SAFETY: guarded by the condition.

    /// The operation of this number, from 0 on, fails; nil: none.
    func fail(at step: Int?, with number: CInt) {
        state.withLock { ($0.step, $0.failsAt, $0.number, $0.hasFailed) = (0, step, number, false) }
    }

    var hasFailed: Bool { state.withLock { $0.hasFailed } }

    var failsSyncFolder: Bool {
        get { state.withLock { $0.failsSyncFolder } }
        set { state.withLock { $0.failsSyncFolder = newValue } }
    }

    /// What is not durable. Temporary names need not be.
    var unsynced: [String] {
        state.withLock { state in
            state.written.values.filter { !$0.contains("/.new/") }
                + state.names.flatMap { folder, names in names.map { "\(folder)/\($0)" } }
        }
    }

    /// From now on all operations wait.
    func hang() { change(isHung: true) }
    func goOn() { change(isHung: false) }

    /// The calls that have hung since the start.
    var hungCount: Int {
        gate.lock()
        defer { gate.unlock() }
        return hangingCount
    }

    private func change(isHung: Bool) {
        gate.lock()
        self.isHung = isHung
        gate.broadcast()
        gate.unlock()
    }

    private func enter(_ path: String) throws(FileFailure) {
        gate.lock()
        hangingCount += isHung ? 1 : 0
        while isHung { gate.wait() }
        gate.unlock()
        let number: CInt? = state.withLock { state in
            defer { state.step += 1 }
            guard state.step == state.failsAt else { return nil }
            state.hasFailed = true
            return state.number
        }
        if let number { throw FileFailure(path, number) }
    }

    private static func split(_ path: String) -> (folder: String, name: String) {
        let parts = path.split(separator: "/")
        return ("/" + parts.dropLast().joined(separator: "/"), String(parts.last ?? ""))
    }

    private func changed(_ path: String) {
        let (folder, name) = Self.split(path)
        guard !folder.hasSuffix(".new"), name != ".new", name != "objects" else { return }
        state.withLock { _ = $0.names[folder, default: []].insert(name) }
    }

    func make(_ path: String) throws(FileFailure) -> CInt {
        try enter(path)
        let file = try system.make(path)
        state.withLock { $0.written[file] = path }
        return file
    }

    func open(_ path: String) throws(FileFailure) -> CInt {
        try enter(path)
        return try system.open(path)
    }

    func write(_ bytes: [UInt8], to file: CInt, of path: String) throws(FileFailure) {
        try enter(path)
        try system.write(bytes, to: file, of: path)
        state.withLock { $0.written[file] = path }
    }

    func sync(_ file: CInt, of path: String) throws(FileFailure) {
        try enter(path)
        try system.sync(file, of: path)
        state.withLock { $0.written[file] = nil }
    }

    func read(_ file: CInt, at offset: Int, countMax: Int, of path: String) throws(FileFailure) -> [UInt8] {
        try enter(path)
        return try system.read(file, at: offset, countMax: countMax, of: path)
    }

    func status(_ file: CInt, of path: String) throws(FileFailure) -> ObjectFileStatus {
        try enter(path)
        return try system.status(file, of: path)
    }

    func status(_ path: String) throws(FileFailure) -> ObjectFileStatus? {
        try enter(path)
        return try system.status(path)
    }

    func close(_ file: CInt) {
        state.withLock { $0.written[file] = nil }
        system.close(file)
    }

    func link(_ path: String, to name: String) throws(FileFailure) {
        try enter(name)
        // The content must be durable before it has its name.
        let isDurable = state.withLock { state in !state.written.values.contains(path) }
        precondition(isDurable, "\(path) is named before it is durable")
        try system.link(path, to: name)
        changed(name)
    }

    func remove(_ path: String) throws(FileFailure) {
        try enter(path)
        try system.remove(path)
        changed(path)
    }

    func makeFolder(_ path: String) throws(FileFailure) {
        try enter(path)
        try system.makeFolder(path)
        changed(path)
    }

    func removeFolder(_ path: String) throws(FileFailure) {
        try enter(path)
        try system.removeFolder(path)
        // A folder that returns after a power cut is empty. What was in it is gone with it.
        let (folder, name) = Self.split(path)
        state.withLock { state in
            state.names[path] = nil
            state.names[folder]?.remove(name)
        }
    }

    func syncFolder(_ path: String) throws(FileFailure) {
        try enter(path)
        if failsSyncFolder { throw FileFailure(path, EIO) }
        try system.syncFolder(path)
        state.withLock { $0.names[path] = nil }
    }

    func list(_ folder: String) throws(FileFailure) -> [ObjectFolderEntry] {
        try enter(folder)
        return try system.list(folder)
    }

    func isLocked(_ path: String) throws(FileFailure) -> Bool {
        try enter(path)
        return try system.isLocked(path)
    }
}

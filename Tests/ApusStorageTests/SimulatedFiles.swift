import ApusCore
import ApusStorage
import Foundation
import Synchronization

/// A file system in memory with a page cache: what was written, named or removed is durable only when it was synced,
/// and a power cut keeps any part of the rest, by seed.
///
/// Every operation, and each step of a write, can be the last one: ``cutAfter`` counts them down. Content that was not
/// synced comes back whole, torn or empty; a name in a directory that was not synced comes back or not, a removed one
/// stays or not, each by itself, as file systems without ordered names may do.
final class SimulatedFiles: StoreFiles {
    /// The power is gone; not an error of the file system, so nothing may catch and survive it but the test.
    static let powerCut: CInt = 9999

    private struct Inode {
        var bytes: [UInt8] = []
        var durableBytes: [UInt8] = []
        /// Names of a directory; nil for a file.
        var names: [String: Int]?
        var durableNames: [String: Int] = [:]
        var changeCount: Int64 = 0
    }

    private struct State {
        var inodes: [Inode] = [Inode(names: [:])]
        var stepCount = 0
        var cutAfter: Int?
        var failures: [String: CInt] = [:]
        var clock: Int64 = 0
        var calls: [String: Int] = [:]
    }

    private let state = Mutex(State())
    /// Steps since the start.
    var stepCount: Int { state.withLock { $0.stepCount } }
    /// The power goes when this many steps were made; nil: never.
    func cut(after count: Int?) { state.withLock { $0.cutAfter = count } }
    /// From now on an operation fails; nil: no longer.
    func fail(_ operation: String, with number: CInt?) { state.withLock { $0.failures[operation] = number } }
    func callCount(_ operation: String) -> Int { state.withLock { $0.calls[operation] ?? 0 } }

    /// The power comes back: what the disk has, of all that could have reached it.
    func restart(random: inout SeededRandom) {
        state.withLock { state in
            for index in state.inodes.indices {
                var inode = state.inodes[index]
                if inode.bytes != inode.durableBytes {
                    switch random.next() % 3 {
                    case 0: inode.bytes = inode.durableBytes
                    case 1: break
                    default: inode.bytes = Array(inode.bytes.prefix(Int(random.next() % UInt64(inode.bytes.count + 1))))
                    }
                }
                if let names = inode.names {
                    var kept = inode.durableNames
                    for name in Set(names.keys).union(kept.keys).sorted()
                    where names[name] != kept[name] && random.next() % 2 == 0 {
                        kept[name] = names[name]
                    }
                    inode.names = kept
                    inode.durableNames = kept
                }
                inode.durableBytes = inode.bytes
                state.inodes[index] = inode
            }
            state.cutAfter = nil
        }
    }

    // MARK: Operations

    func list(_ directory: String) throws(FileFailure) -> StoreDirectory {
        try perform("list", directory) { (state) throws(FileFailure) in
            let index = try Self.find(directory, in: state)
            guard let names = state.inodes[index].names else { throw FileFailure(directory, ENOTDIR) }
            return StoreDirectory(inode: UInt64(index), names: names.keys.sorted())
        }
    }

    func read(_ path: String, byteCountMax: Int) throws(FileFailure) -> [UInt8] {
        try perform("read", path) { (state) throws(FileFailure) in
            let bytes = state.inodes[try Self.find(path, in: state)].bytes
            guard bytes.count <= byteCountMax else { throw FileFailure(path, EFBIG) }
            return bytes
        }
    }

    func mark(_ path: String) throws(FileFailure) -> FileMark {
        try perform("mark", path) { (state) throws(FileFailure) in
            let index = try Self.find(path, in: state)
            let inode = state.inodes[index]
            let linkCount = state.inodes.reduce(0) { sum, directory in
                sum + (directory.names?.values.count { $0 == index } ?? 0)
            }
            return FileMark(
                inode: UInt64(index), linkCount: linkCount, byteCount: inode.bytes.count,
                modifiedNanoseconds: inode.changeCount,
                changedNanoseconds: inode.changeCount)
        }
    }

    func write(_ bytes: [UInt8], to path: String) throws(FileFailure) {
        let index = try perform("write", path) { (state) throws(FileFailure) in
            let (parent, name) = try Self.place(path, in: state)
            guard state.inodes[parent].names?[name] == nil else { throw FileFailure(path, EEXIST) }
            state.clock += 1
            let index = state.inodes.count
            state.inodes.append(Inode(changeCount: state.clock))
            state.inodes[parent].names?[name] = index
            return index
        }
        try perform("write content", path) { state in state.inodes[index].bytes = bytes }
        try perform("sync", path) { state in state.inodes[index].durableBytes = state.inodes[index].bytes }
    }

    func link(_ path: String, to name: String) throws(FileFailure) {
        try perform("link", name) { (state) throws(FileFailure) in
            let index = try Self.find(path, in: state)
            let (parent, last) = try Self.place(name, in: state)
            guard state.inodes[parent].names?[last] == nil else { throw FileFailure(name, EEXIST) }
            state.inodes[parent].names?[last] = index
        }
    }

    func rename(_ path: String, to name: String) throws(FileFailure) {
        try perform("rename", path) { (state) throws(FileFailure) in
            let index = try Self.find(path, in: state)
            let (from, old) = try Self.place(path, in: state)
            let (parent, new) = try Self.place(name, in: state)
            if let taken = state.inodes[parent].names?[new], state.inodes[taken].names?.isEmpty == false {
                throw FileFailure(name, ENOTEMPTY)
            }
            state.inodes[from].names?[old] = nil
            state.inodes[parent].names?[new] = index
        }
    }

    func remove(_ path: String) throws(FileFailure) {
        try perform("remove", path) { (state) throws(FileFailure) in
            _ = try Self.find(path, in: state)
            let (parent, name) = try Self.place(path, in: state)
            state.inodes[parent].names?[name] = nil
        }
    }

    func makeDirectory(_ path: String) throws(FileFailure) {
        try perform("makeDirectory", path) { (state) throws(FileFailure) in
            let (parent, name) = try Self.place(path, in: state)
            guard state.inodes[parent].names?[name] == nil else { throw FileFailure(path, EEXIST) }
            let index = state.inodes.count
            state.inodes.append(Inode(names: [:]))
            state.inodes[parent].names?[name] = index
        }
    }

    func syncDirectory(_ path: String) throws(FileFailure) {
        try perform("syncDirectory", path) { (state) throws(FileFailure) in
            let index = try Self.find(path, in: state)
            state.inodes[index].durableNames = state.inodes[index].names ?? [:]
        }
    }

    /// Overwrites a file in place, as a disk that fails or a person would.
    func damage(_ path: String) throws(FileFailure) {
        try perform("damage", path) { (state) throws(FileFailure) in
            let index = try Self.find(path, in: state)
            state.clock += 1
            state.inodes[index].bytes[state.inodes[index].bytes.count / 2] ^= 0x10
            state.inodes[index].changeCount = state.clock
        }
    }

    // MARK: Steps

    @discardableResult
    private func perform<Value>(
        _ operation: String, _ path: String, _ body: (inout State) throws(FileFailure) -> Value
    ) throws(FileFailure) -> Value {
        return try state.withLock { (state) throws(FileFailure) -> Value in
            state.calls[operation, default: 0] += 1
            if let left = state.cutAfter {
                guard left > 0 else { throw FileFailure(path, Self.powerCut) }
                state.cutAfter = left - 1
            }
            if let number = state.failures[operation] { throw FileFailure(path, number) }
            state.stepCount += 1
            return try body(&state)
        }
    }

    private static func find(_ path: String, in state: State) throws(FileFailure) -> Int {
        var index = 0
        for name in path.split(separator: "/") {
            guard let next = state.inodes[index].names?[String(name)] else { throw FileFailure(path, ENOENT) }
            index = next
        }
        return index
    }

    private static func place(_ path: String, in state: State) throws(FileFailure) -> (parent: Int, name: String) {
        let parts = path.split(separator: "/").map { String($0) }
        guard let name = parts.last else { throw FileFailure(path, EINVAL) }
        return (try find(parts.dropLast().joined(separator: "/"), in: state), name)
    }
}

/// Holds its caller before one operation, as SIGSTOP holds a process, until it may go on.
final class PausingFiles: StoreFiles {
    private let base: any StoreFiles
    private let count = Mutex(-1)
    private let arrived = DispatchSemaphore(value: 0)
    private let released = DispatchSemaphore(value: 0)

    init(_ base: any StoreFiles) { self.base = base }

    /// The operation, counted from 0, before which the caller is held next.
    func pause(before operation: Int) { count.withLock { $0 = operation } }
    /// False where the operation never came.
    func waitUntilPaused() -> Bool { arrived.wait(timeout: .now() + .seconds(5)) == .success }
    func resume() { released.signal() }

    private func step() {
        let isHere = count.withLock { count in
            count -= 1
            return count == -1
        }
        guard isHere else { return }
        arrived.signal()
        released.wait()
    }

    func list(_ directory: String) throws(FileFailure) -> StoreDirectory {
        step()
        return try base.list(directory)
    }
    func read(_ path: String, byteCountMax: Int) throws(FileFailure) -> [UInt8] {
        step()
        return try base.read(path, byteCountMax: byteCountMax)
    }
    func mark(_ path: String) throws(FileFailure) -> FileMark {
        step()
        return try base.mark(path)
    }
    func write(_ bytes: [UInt8], to path: String) throws(FileFailure) {
        step()
        try base.write(bytes, to: path)
    }
    func link(_ path: String, to name: String) throws(FileFailure) {
        step()
        try base.link(path, to: name)
    }
    func rename(_ path: String, to name: String) throws(FileFailure) {
        step()
        try base.rename(path, to: name)
    }
    func remove(_ path: String) throws(FileFailure) {
        step()
        try base.remove(path)
    }
    func makeDirectory(_ path: String) throws(FileFailure) {
        step()
        try base.makeDirectory(path)
    }
    func syncDirectory(_ path: String) throws(FileFailure) {
        step()
        try base.syncDirectory(path)
    }
}

package import ApusCore
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The lock under which one process of a machine writes a SQLite file and writes its log back (docs/decisions/21).
///
/// It is a file beside the database, with record locks of fcntl(2). The kernel names the process that holds one
/// (`F_GETLK`) and releases it when the process ends. The length of the locked range encodes the holder
/// (``RecordWriter/mark(of:)``) and the number of its turn, so that one call returns both.
///
/// It is fair between processes: a writer first takes the gate, and keeps it until it may write. A process that writes
/// without a pause therefore lets others in between.
///
/// Record locks belong to a process, and closing any descriptor of the file releases them. A process therefore opens
/// the file once for all stores on it. These take turns by a semaphore.
///
/// Concurrency model: any thread that may block; never the Swift pool.
final class WriteLock: Sendable {
    /// The device and the inode of a file.
    struct FileIdentity: Hashable, Sendable {
        var device: UInt64
        var inode: UInt64

        /// Nil if there is no such file.
        init?(_ path: String) {
            var status = stat()
            guard stat(path, &status) == 0 else { return nil }
            device = UInt64(status.st_dev)
            inode = UInt64(status.st_ino)
        }
    }

    /// Byte ranges of the file with a meaning. Nothing is ever written there.
    private enum Place: Int64 {
        case write = 0
        case gate = 0x0200_0000_0000_0000
        /// Held by every process that uses the database: shared, or exclusively during a restore.
        case use = 0x0400_0000_0000_0000

        /// 16 bits of the turn above the 40 bits of the mark.
        static let lengthMax: Int64 = 1 << 56
    }

    private struct Entry {
        var lock: WriteLock
        var useCount: Int
    }

    /// A use of the database by a store of this process. It lasts as long as this object exists.
    final class Use: Sendable {
        let lock: WriteLock
        fileprivate init(_ lock: WriteLock) { self.lock = lock }
        deinit { WriteLock.endUse(lock) }
    }

    private static let entries = Mutex<[FileIdentity: Entry]>([:])

    private let path: String
    private let identity: FileIdentity
    private let descriptor: Int32
    private let turn = DispatchSemaphore(value: 1)
    private let turnCount = Atomic<UInt64>(0)

    private init(path: String, identity: FileIdentity, descriptor: Int32) {
        (self.path, self.identity, self.descriptor) = (path, identity, descriptor)
    }

    /// Starts to use the database whose lock is at this path.
    ///
    /// - Parameter isAlone: True for exclusive use.
    /// - Throws: 10021 if the file cannot be created, or another process excludes it; the message names the process.
    static func use(_ path: String, isAlone: Bool = false) throws -> Use {
        try entries.withLock { entries in
            if let identity = FileIdentity(path), var entry = entries[identity] {
                guard !isAlone else { throw ApusError(.storageFailed, "\(path) is in use by this process") }
                entry.useCount += 1
                entries[identity] = entry
                return Use(entry.lock)
            }
            let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
            guard descriptor >= 0, let identity = FileIdentity(path) else {
                if descriptor >= 0 { close(descriptor) }
                throw ApusError(
                    .storageFailed, "\(path) cannot be opened; check that its directory exists and is writable")
            }
            PrivateFile.give(path, toOwnerOf: path.hasSuffix("-lock") ? String(path.dropLast(5)) : path)
            let lock = WriteLock(path: path, identity: identity, descriptor: descriptor)
            guard lock.set(.use, isAlone ? F_WRLCK : F_RDLCK, length: 1) else {
                let process = lock.holder(of: .use).map { "process \($0.process)" } ?? "another process"
                close(descriptor)
                throw ApusError(.storageFailed, "\(path): the database is in use by \(process)")
            }
            entries[identity] = Entry(lock: lock, useCount: 1)
            return Use(lock)
        }
    }

    private static func endUse(_ lock: WriteLock) {
        entries.withLock { entries in
            guard let count = entries[lock.identity]?.useCount else { return }
            entries[lock.identity]?.useCount = count - 1
            guard count == 1 else { return }
            entries[lock.identity] = nil
            close(lock.descriptor)
        }
    }

    /// Runs `body` while no other process and no other store of this process writes.
    ///
    /// - Throws: 10021 if another one writes for longer than the time-out; the message names the process.
    func withLock<Value>(
        timeout: Duration, mark: UInt64, _ body: () throws -> Value
    ) throws -> Value {
        let deadline = MonotonicTime.now() + timeout
        guard turn.wait(timeout: .now() + .nanoseconds(Int(clamping: timeout.nanoseconds))) == .success else {
            throw ApusError(.storageFailed, "\(path) is locked by this process for too long")
        }
        defer { turn.signal() }
        let number = turnCount.wrappingAdd(1, ordering: .relaxed).newValue & 0xFFFF
        let length = Int64(number << 40 | mark & UInt64(RecordWriter.markMax)) + 1
        try take(.gate, length, until: deadline)
        do {
            try take(.write, length, until: deadline)
        } catch {
            release(.gate)
            throw error
        }
        release(.gate)
        defer { release(.write) }
        guard FileIdentity(path) == identity else {
            throw ApusError(.storageFailed, "\(path) was replaced while it was in use; restart the node")
        }
        return try body()
    }

    /// The process that writes, or that writes next.
    func holder() -> RecordLockHolder? { holder(of: .write) ?? holder(of: .gate) }

    // MARK: fcntl(2)

    private func take(_ place: Place, _ length: Int64, until deadline: MonotonicTime) throws {
        var pause: UInt32 = 50
        while !set(place, F_WRLCK, length: length) {
            guard errno == EAGAIN || errno == EACCES || errno == EINTR else {
                throw ApusError(.storageFailed, "\(path) cannot be locked: \(String(cString: strerror(errno)))")
            }
            guard MonotonicTime.now() < deadline else {
                let process = holder(of: place).map { "process \($0.process)" } ?? "another process"
                throw ApusError(.storageFailed, "\(path) is locked by \(process) for too long")
            }
            usleep(pause)
            pause = min(1000, pause * 2)
        }
    }

    private func release(_ place: Place) { _ = set(place, F_UNLCK, length: Place.lengthMax) }

    /// Sets or releases a lock of this process, without a wait.
    private func set(_ place: Place, _ type: Int32, length: Int64) -> Bool {
        var range = flock()
        range.l_type = Int16(type)
        range.l_whence = Int16(SEEK_SET)
        range.l_start = off_t(place.rawValue)
        range.l_len = off_t(length)
        return withUnsafeMutablePointer(to: &range) { fcntl(descriptor, F_SETLK, UnsafeMutableRawPointer($0)) == 0 }
    }

    private func holder(of place: Place) -> RecordLockHolder? {
        var range = flock()
        range.l_type = Int16(F_WRLCK)
        range.l_whence = Int16(SEEK_SET)
        range.l_start = off_t(place.rawValue)
        range.l_len = 1
        let isAsked = withUnsafeMutablePointer(to: &range) {
            fcntl(descriptor, F_GETLK, UnsafeMutableRawPointer($0)) == 0
        }
        guard isAsked, range.l_type != Int16(F_UNLCK), range.l_pid > 0 else { return nil }
        let length = UInt64(max(1, range.l_len) - 1)
        return RecordLockHolder(
            process: range.l_pid, mark: length & UInt64(RecordWriter.markMax),
            turn: UInt16(truncatingIfNeeded: length >> 40))
    }
}

/// Identifies the user of a store to other processes that wait for its lock.
package enum RecordWriter {
    /// The highest mark: 40 bits.
    static let markMax: Int64 = (1 << 40) - 1

    /// The mark of a node's incarnation; 0 for a program that is not a node.
    package static func mark(of node: NodeID) -> UInt64 {
        max(1, StableHash.hash(node.description) & UInt64(markMax))
    }
}

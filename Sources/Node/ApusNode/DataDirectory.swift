package import ApusCore
import Foundation
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A node's own folder, marked with its cluster and node, and locked by its process.
package struct DataDirectory {
    /// How long a process waits for the lock: the one before it may be about to end.
    package static let lockTimeout = Duration.seconds(2)

    package let path: String

    package init(path: String) { self.path = path }

    /// Creates the folder if it is missing, locks it, and marks it.
    /// - Returns: the lock. It ends with the process at the latest.
    /// - Throws: 10020 if the folder belongs to another cluster or node, or another process uses it; 10021 if it cannot
    ///   be created, written or locked.
    package func claim(
        cluster: ClusterID, node: NodeName, timeout: Duration = lockTimeout
    ) async throws(ApusError) -> DataDirectoryLock {
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        } catch {
            throw Self.failed(path, error)
        }
        let lock = try await lock(timeout: timeout)
        do throws(ApusError) {
            try mark(cluster: cluster, node: node)
        } catch {
            lock.release()
            throw error
        }
        return lock
    }

    private func mark(cluster: ClusterID, node: NodeName) throws(ApusError) {
        let marker = "\(path)/node"
        let mine = "cluster \(cluster)\nnode \(node)\n"
        if let found = try? String(contentsOfFile: marker, encoding: .utf8) {
            guard found == mine else {
                let owner = found.split(separator: "\n").joined(separator: ", ")
                throw ApusError(
                    .stateForeign,
                    "the data directory \(path) belongs to \(owner); this is cluster \(cluster), node \(node)")
            }
            return
        }
        do {
            try Data(mine.utf8).write(to: URL(fileURLWithPath: marker), options: .atomic)
        } catch {
            throw Self.failed(path, error)
        }
    }

    private static func failed(_ path: String, _ error: any Error) -> ApusError {
        ApusError(.storageFailed, "the data directory \(path) cannot be written: \(error.localizedDescription)")
    }

    /// Locks the file `lock` in the folder (flock(2)). The kernel ends the lock with the process.
    private func lock(timeout: Duration) async throws(ApusError) -> DataDirectoryLock {
        let file = "\(path)/lock"
        let descriptor = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0o644)
        guard descriptor >= 0 else {
            throw ApusError(.storageFailed, "the file \(file) cannot be opened: \(Self.reason(errno))")
        }
        let lock = DataDirectoryLock(descriptor: descriptor)
        let deadline = MonotonicTime.now() + timeout
        while flock(descriptor, LOCK_EX | LOCK_NB) != 0 {
            let number = errno
            // A file system without locks. The number in the join, and the lease, keep two processes apart still.
            if [ENOLCK, ENOSYS, EOPNOTSUPP].contains(number) { return lock }
            guard number == EWOULDBLOCK || number == EINTR else {
                lock.release()
                throw ApusError(.storageFailed, "the file \(file) cannot be locked: \(Self.reason(number))")
            }
            guard MonotonicTime.now() < deadline else {
                let holder = (try? String(contentsOfFile: file, encoding: .utf8)).flatMap { Int32($0.dropLast()) }
                lock.release()
                throw ApusError(
                    .stateForeign,
                    "the data directory \(path) is in use by another process"
                        + (holder.map { " (\($0))" } ?? "")
                        + "; stop that one, or give this node a directory of its own")
            }
            do {
                try await Task.sleep(for: .milliseconds(20))
            } catch {
                lock.release()
                throw ApusError(.cancelled)
            }
        }
        // For the message of the other process. The lock does not depend on it.
        let line = Array("\(getpid())\n".utf8)
        if ftruncate(descriptor, 0) == 0 { _ = pwrite(descriptor, line, line.count, 0) }
        return lock
    }

    private static func reason(_ number: CInt) -> String { String(cString: strerror(number)) }
}

/// The lock of a data directory. Concurrency: any thread.
package final class DataDirectoryLock: Sendable {
    private let descriptor: Mutex<CInt>

    init(descriptor: CInt) { self.descriptor = Mutex(descriptor) }

    /// Ends the lock. Has no effect the second time.
    package func release() {
        let held = descriptor.withLock { descriptor in
            defer { descriptor = -1 }
            return descriptor
        }
        if held >= 0 { close(held) }
    }

    deinit { release() }
}

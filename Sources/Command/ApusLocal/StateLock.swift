import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The lock of a local cluster's state directory. If two commands would start or stop its nodes, the second is refused.
/// The system releases the lock when a command ends, also by a crash.
extension StateDirectory {
    /// Contains the process id of the current or the last command.
    package var lockFile: String { "\(path)/\(Self.lockName)" }
    /// The lock's name in the directory.
    package static let lockName = "cluster.lock"
    private static let lockAttempts = 10

    /// Runs a body that no other command can run on this directory at the same time. Creates the directory if it is
    /// missing.
    /// - Throws: 10007 if another command is running, 10020 if the directory belongs to something else, 10021 if it
    ///   cannot be written; the body's errors.
    package func locked<Value>(_ body: () async throws -> Value) async throws -> Value {
        let lock = try takeLock()
        defer { close(lock) }
        return try await body()
    }

    private func takeLock() throws(ApusError) -> CInt {
        // The directory's mark is checked first: nothing is written to a foreign directory. A directory with a lock
        // belongs to a cluster, and its content is checked under the lock.
        if !FileManager.default.fileExists(atPath: lockFile) { _ = try mark() }
        for _ in 0..<Self.lockAttempts {
            try? FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
            let file = open(lockFile, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
            guard file >= 0 else {
                throw ApusError(.storageFailed, "\(lockFile) cannot be opened: \(String(cString: strerror(errno)))")
            }
            guard flock(file, LOCK_EX | LOCK_NB) == 0 else {
                close(file)
                throw busy()
            }
            // The id is for the message. It also shows that the file is still in its place: `down --purge` removes it
            // under its own lock, and a lock on a removed file excludes no command.
            let number = "\(getpid())\n"
            ftruncate(file, 0)
            _ = pwrite(file, number, number.utf8.count, 0)
            if (try? String(contentsOfFile: lockFile, encoding: .utf8)) == number { return file }
            close(file)
        }
        throw busy()
    }

    private func busy() -> ApusError {
        let text = (try? String(contentsOfFile: lockFile, encoding: .utf8)) ?? ""
        let holder = text.trimmingCharacters(in: .whitespacesAndNewlines)
        return ApusError(
            .overloaded,
            "another apus command\(holder.isEmpty ? "" : ", process \(holder),") is changing the nodes of \(path): "
                + "run this one again after it has ended")
    }
}

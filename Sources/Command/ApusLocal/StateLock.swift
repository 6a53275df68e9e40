import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The lock of a local cluster's state directory: of two commands that would start or stop its nodes, the second is
/// refused. The system lets go of the lock when a command ends, however it ends.
extension StateDirectory {
    /// Holds the number of the command that is at work, or was last.
    package var lockFile: String { "\(path)/\(Self.lockName)" }
    /// The lock's name in the directory.
    package static let lockName = "cluster.lock"
    private static let lockAttempts = 10

    /// Runs a body that no other command can run at the same time on this directory, which is made where it is
    /// missing.
    ///
    /// - Throws: 10007 where another command is at work, 10020 where the directory belongs to something else, 10021
    ///   where it cannot be written; what the body throws.
    package func locked<Value>(_ body: () async throws -> Value) async throws -> Value {
        let lock = try takeLock()
        defer { close(lock) }
        return try await body()
    }

    private func takeLock() throws(ApusError) -> CInt {
        // Whose the directory is comes first: nothing is written to another's. With a lock in it it is a cluster's,
        // and what it holds is looked at when nobody else is at work there.
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
            // The number is for the message, and shows that the file is in its place: `down --purge` removes it under
            // its own lock, and a lock on a removed file keeps nobody out.
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
            "another apus command\(holder.isEmpty ? "" : ", process \(holder),") starts or stops the nodes of \(path); "
                + "run this one again when it has ended")
    }
}

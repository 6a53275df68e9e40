package import ApusCore
import Foundation
import GRDB

/// Backup and restore of a records file (`apus admin backup`, `restore`). A backup is made while the cluster runs, a
/// restore while it does not.
///
/// A backup is the file at one moment: the copying connection holds a read transaction from the first page to the last.
/// Commits of the nodes continue and do not restart the copy. The log grows in the meantime, because it is not
/// overwritten.
package enum RecordBackup {
    /// Pages per step. The file's writers do not wait for it.
    private static let stepPageCount: CInt = 256

    /// The contents of a backup.
    package struct Summary: Sendable, Equatable {
        package var byteCount: Int
        package var recordCount: Int
    }

    /// Copies the records to a new file. The file gets its name when it is complete and synced.
    ///
    /// - Throws: 10020 if the records are another cluster's, or `target` exists; 10021 if one of the files cannot be
    ///   used.
    package static func make(
        of path: String, cluster: ClusterID, to target: String
    ) async throws(ApusError) -> Summary {
        guard FileManager.default.fileExists(atPath: path) else {
            throw ApusError(.storageFailed, "there are no records at \(path)")
        }
        guard !FileManager.default.fileExists(atPath: target) else {
            throw ApusError(.stateForeign, "\(target) exists; a backup replaces nothing")
        }
        let source = try await SQLiteFile(
            path: path, cluster: cluster, limits: SQLiteLimits(), migrator: SQLiteRecordStore.migrator)
        let outcome = await result { () async throws(ApusError) in
            try await source.copy(to: partial(target), stepPageCount: stepPageCount)
            return try await finish(partial(target), as: target, cluster: cluster)
        }
        if case .failure = outcome { discard(partial(target)) }
        await source.close()
        return try outcome.get()
    }

    /// Replaces the records by a backup. The old file is kept beside it, with `.replaced` after its name.
    ///
    /// - Throws: 10020 if the backup is damaged, or another cluster's; 10021 if a process uses the records, or a file
    ///   cannot be used.
    package static func restore(
        _ copy: String, to path: String, cluster: ClusterID
    ) async throws(ApusError) -> Summary {
        guard FileManager.default.fileExists(atPath: copy) else {
            throw ApusError(.storageFailed, "there is no backup at \(copy)")
        }
        let partial = partial(path)
        do {
            return try await SQLiteFile.offPool {
                let use = try WriteLock.use(path + "-lock", isAlone: true)
                defer { withExtendedLifetime(use) {} }
                discard(partial)
                // Removed if the restore fails.
                defer { discard(partial) }
                try FileManager.default.copyItem(atPath: copy, toPath: partial)
                let summary = try check(partial, cluster: cluster)
                PrivateFile.give(partial, toOwnerOf: path)
                try keep(path)
                try publish(partial, as: path)
                return summary
            }
        } catch {
            throw SQLiteFile.failure(error, path: copy)
        }
    }

    private static func partial(_ path: String) -> String { path + ".partial" }

    private static func discard(_ partial: String) {
        for suffix in ["", "-journal", "-wal", "-shm"] { unlink(partial + suffix) }
    }

    private static func finish(
        _ partial: String, as target: String, cluster: ClusterID
    ) async throws(ApusError) -> Summary {
        do {
            return try await SQLiteFile.offPool {
                let summary = try check(partial, cluster: cluster)
                try publish(partial, as: target)
                return summary
            }
        } catch {
            throw SQLiteFile.failure(error, path: partial)
        }
    }

    /// Reads every page, and changes the file's journal mode so that it needs no log.
    private static func check(_ path: String, cluster: ClusterID) throws -> Summary {
        chmod(path, 0o600)
        let queue = try DatabaseQueue(path: path)
        let count = try queue.writeWithoutTransaction { database in
            guard try String.fetchOne(database, sql: "PRAGMA integrity_check(1)") == "ok" else {
                throw ApusError(.stateForeign, "\(path) is damaged")
            }
            try SQLiteFile.check(path, belongsTo: cluster, database)
            guard try String.fetchOne(database, sql: "PRAGMA journal_mode = DELETE") == "delete" else {
                throw ApusError(.storageFailed, "\(path) is in use")
            }
            return try Int.fetchOne(database, sql: "SELECT count(*) FROM records WHERE body IS NOT NULL") ?? 0
        }
        try queue.close()
        let size = try FileManager.default.attributesOfItem(atPath: path)[.size] as? NSNumber
        return Summary(byteCount: size?.intValue ?? 0, recordCount: count)
    }

    /// Gives the old file a second name. It keeps its first one until the backup takes it, so after a crash at any
    /// moment there is a file of that name. Otherwise a node would start with an empty one.
    private static func keep(_ path: String) throws {
        let files = FileManager.default
        for suffix in ["", "-wal", "-shm"] where files.fileExists(atPath: path + ".replaced" + suffix) {
            try files.removeItem(atPath: path + ".replaced" + suffix)
        }
        guard files.fileExists(atPath: path) else { return }
        // The newest changes move from the log into the file. If the file is damaged, they stay in the log.
        if let queue = try? DatabaseQueue(path: path) {
            try? queue.writeWithoutTransaction { try $0.execute(sql: "PRAGMA wal_checkpoint(TRUNCATE)") }
            try? queue.close()
        }
        try files.linkItem(atPath: path, toPath: path + ".replaced")
        for suffix in ["-wal", "-shm"] where files.fileExists(atPath: path + suffix) {
            try files.moveItem(atPath: path + suffix, toPath: path + ".replaced" + suffix)
        }
    }

    /// Syncs the file, gives it its name and syncs the name.
    private static func publish(_ partial: String, as target: String) throws {
        try sync(partial)
        guard rename(partial, target) == 0 else {
            throw ApusError(.storageFailed, "\(target) cannot be made: \(String(cString: strerror(errno)))")
        }
        try sync(URL(fileURLWithPath: target).deletingLastPathComponent().path)
    }

    private static func sync(_ path: String) throws {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        defer { if descriptor >= 0 { close(descriptor) } }
        guard descriptor >= 0, fsync(descriptor) == 0 else {
            throw ApusError(.storageFailed, "\(path) cannot be synced: \(String(cString: strerror(errno)))")
        }
    }

    private static func result<Value>(
        _ body: () async throws(ApusError) -> Value
    ) async -> Result<Value, ApusError> {
        do throws(ApusError) {
            return .success(try await body())
        } catch {
            return .failure(error)
        }
    }
}

package import ApusCore
import Foundation
import GRDB
import Synchronization

/// Records in a SQLite file that all node processes of one machine share (D9, D16).
///
/// Concurrency model: commits run on the queue of ``GroupCommit``, reads on the file's reading connection; callers only
/// wait.
package final class SQLiteRecordStore: RecordStore {
    private let file: SQLiteFile
    private let commits: GroupCommit

    /// Opens or creates the file, and updates it to the catalogue: tables of earlier releases become records, and
    /// changed indexes are created again, in one transaction.
    ///
    /// - Parameters:
    ///   - mark: Identifies the user (``RecordWriter/mark(of:)``); 0 for a program that is not a node.
    /// - Throws: 10020 if it is something else or belongs to another cluster, 10021 if it cannot be used; the message
    ///   contains the path.
    package init(
        path: String, cluster: ClusterID, catalogue: RecordCatalogue = RecordCatalogue([]),
        limits: RecordStoreLimits = RecordStoreLimits(), files: SQLiteLimits = SQLiteLimits(), mark: UInt64 = 0
    ) async throws(ApusError) {
        let file = try await SQLiteFile(
            path: path, cluster: cluster, limits: files, mark: mark, migrator: Self.migrator
        ) { try RecordTables.adopt(catalogue, $0) }
        self.file = file
        let memory = Mutex(RecordHeadMemory())
        commits = GroupCommit(limits: limits) { steps throws(ApusError) in
            // Held through the commit. There is one commit at a time.
            try memory.withLock { memory throws(ApusError) in
                do throws(ApusError) {
                    let made = try file.commit { database in
                        try memory.begin(database)
                        return try RecordTables.make(steps, hasRoom: try file.hasRoom(database), &memory, database)
                    }
                    memory.note(made.changes)
                    return made.outcomes
                } catch {
                    memory.forget()
                    throw error
                }
            }
        }
    }

    static var migrator: DatabaseMigrator {
        var migrator = DatabaseMigrator()
        migrator.registerMigration(RecordTables.migration, migrate: RecordTables.create)
        return migrator
    }

    package func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) { commits.commit(steps, then: completion) }

    package func records(
        _ collection: String, _ keys: [OrderedKey]
    ) async throws(ApusError) -> [StoredRecord?] {
        guard keys.count <= RecordLimits.pageCountMax else { throw ApusError(.badParameter, "too many keys") }
        return try await file.read { database in
            var found: [StoredRecord?] = []
            for key in keys { found.append(try RecordTables.record(collection, key, database)) }
            return found
        }
    }

    package func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage {
        try await file.read { try RecordTables.page(scan, $0) }
    }

    package func lockHolder() async -> RecordLockHolder? { await file.lockHolder() }

    /// Blocks all other writers for a time, as a process that is stopped in a commit does. For tests of that.
    ///
    /// - Parameter inTransaction: True to hold SQLite's own lock too.
    /// - Throws: 10021 if another process holds the lock for too long.
    package func holdLock(
        for time: Duration, inTransaction: Bool = true, began: @escaping @Sendable () -> Void
    ) async throws(ApusError) {
        let hold: @Sendable () -> Void = {
            began()
            Thread.sleep(forTimeInterval: Double(time.nanoseconds) / 1e9)
        }
        if inTransaction { try await file.write { _ in hold() } } else { try await file.locked(hold) }
    }

    package func close() async {
        await commits.close()
        await file.close()
    }
}

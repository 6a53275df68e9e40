package import ApusCore
import Foundation
import GRDB

/// The ownership store of nodes on one machine: a SQLite file (D4, D9).
///
/// It is linearizable because the kernel serialises the file's locks: every swap is one immediate transaction,
/// synced to the disk before it is reported. Nodes on several machines must not share it over a network file
/// system, whose locks do not keep this promise.
///
/// The file holds nothing else, so that a process that is stopped in the middle of other writes never holds its lock.
/// What remains is a stop in the middle of a swap: then the others' swaps fail with 10021 after the busy timeout.
///
/// Concurrency model: all work runs on the file's own serial queue; callers only wait.
package final class LocalOwnershipStore: OwnershipStore {
    private let file: SQLiteFile

    /// Opens the file, or makes it.
    ///
    /// - Throws: 10020 where it is something else or belongs to another cluster, 10021 where it cannot be used; the
    ///   message names the path.
    package init(path: String, cluster: ClusterID, limits: SQLiteLimits = SQLiteLimits()) async throws(ApusError) {
        var migrator = DatabaseMigrator()
        migrator.registerMigration("1 ownership value") { database in
            try database.execute(
                sql: """
                    CREATE TABLE ownership (
                        id INTEGER PRIMARY KEY CHECK (id = 1),
                        revision INTEGER NOT NULL CHECK (revision > 0),
                        value BLOB NOT NULL
                    ) STRICT
                    """)
        }
        file = try await SQLiteFile(path: path, cluster: cluster, limits: limits, migrator: migrator)
    }

    package func read() async throws(ApusError) -> OwnershipValue? {
        try await file.access { database in
            guard let row = try Row.fetchOne(database, sql: "SELECT revision, value FROM ownership WHERE id = 1") else {
                return nil
            }
            let revision: Int64 = row["revision"]
            let bytes: Data = row["value"]
            return OwnershipValue(revision: UInt64(revision), bytes: [UInt8](bytes))
        }
    }

    package func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64? {
        guard value.count <= OwnershipLimits.valueByteCountMax else { throw ApusError(.frameTooLarge) }
        let bytes = Data(value)
        return try await file.write { database in
            let revision = try Self.revision(in: database)
            guard revision == expected else { return nil }
            try database.execute(
                sql: """
                    INSERT INTO ownership (id, revision, value) VALUES (1, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, value = excluded.value
                    """,
                arguments: [Int64(revision + 1), bytes])
            return revision + 1
        }
    }

    package func revision() async throws(ApusError) -> UInt64 {
        try await file.access { try Self.revision(in: $0) }
    }

    /// Ends all work and closes the file; later calls fail with 10021.
    package func close() async { await file.close() }

    private static func revision(in database: Database) throws -> UInt64 {
        let statement = try database.cachedStatement(sql: "SELECT revision FROM ownership WHERE id = 1")
        return UInt64(try Int64.fetchOne(statement) ?? 0)
    }
}

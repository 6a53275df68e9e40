import ApusCore
import Foundation
import GRDB

/// The SQLite file in which earlier releases kept the ownership value, taken over once.
///
/// Nodes of an earlier release may still run on it. So the value is replaced in the same transaction that reads it,
/// by one that they cannot read and under a revision above all that they know: from then on they decide nothing, and
/// go on with what they serve until they are restarted with this release. The old value stands in the new one until
/// the directory has it, so that a crash in between loses nothing; every process that takes it over takes the same.
enum EarlierOwnership {
    /// No protobuf message begins with this byte: it is a field of a wire type that does not exist.
    private static let moving = [UInt8(0x07)] + Array("moved to a directory of revisions\n".utf8)
    private static let moved = [UInt8(0x07)] + Array("is in a directory of revisions\n".utf8)

    /// The value that the file holds, under the revision that it has from now on; nil if there is none, or no file.
    ///
    /// - Throws: 10020 for another cluster's file, one that is no such file, or one that was taken over before.
    static func take(from path: String, cluster: ClusterID) async throws(ApusError) -> OwnershipValue? {
        guard FileManager.default.fileExists(atPath: path) else { return nil }
        let file = try await open(path, cluster: cluster)
        let taken = try await file.write { database in
            let row = try Row.fetchOne(database, sql: "SELECT revision, value FROM ownership WHERE id = 1")
            let revision: Int64 = row?["revision"] ?? 0
            let bytes: Data = row?["value"] ?? Data()
            let value = [UInt8](bytes)
            guard !value.starts(with: moved) else {
                throw ApusError(
                    .stateForeign,
                    "the map of \(path) was moved to a directory that is gone; "
                        + LocalOwnershipStore.remedy)
            }
            if value.starts(with: moving) {
                return OwnershipValue(revision: UInt64(revision), bytes: Array(value.dropFirst(moving.count)))
            }
            try replace(with: moving + value, revision: revision + 1, in: database)
            return OwnershipValue(revision: UInt64(revision + 1), bytes: value)
        }
        await file.close()
        return taken.bytes.isEmpty ? nil : taken
    }

    /// The directory has the value; nobody takes it from the file again.
    static func finish(_ path: String, cluster: ClusterID) async {
        guard FileManager.default.fileExists(atPath: path), let file = try? await open(path, cluster: cluster) else {
            return
        }
        // Where this fails the file keeps a value that is used only if the directory is empty.
        try? await file.write { database in
            let revision = try Int64.fetchOne(database, sql: "SELECT revision FROM ownership WHERE id = 1") ?? 0
            try replace(with: moved, revision: revision + 1, in: database)
        }
        await file.close()
    }

    private static func replace(with value: [UInt8], revision: Int64, in database: Database) throws {
        try database.execute(
            sql: """
                INSERT INTO ownership (id, revision, value) VALUES (1, ?, ?)
                ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, value = excluded.value
                """,
            arguments: [revision, Data(value)])
    }

    private static func open(_ path: String, cluster: ClusterID) async throws(ApusError) -> SQLiteFile {
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
        return try await SQLiteFile(path: path, cluster: cluster, limits: SQLiteLimits(), migrator: migrator)
    }
}

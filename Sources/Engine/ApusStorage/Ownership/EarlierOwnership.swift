import ApusCore
import Foundation
import GRDB

/// Imports the ownership value once from the SQLite file of earlier releases.
///
/// Nodes of an earlier release may still use the file. The transaction that reads the value therefore replaces it by
/// one that they cannot decode, under a revision above all that they know. From then on they decide nothing, and
/// continue to serve until they are restarted with this release. The new value contains the old one until the directory
/// has it, so a crash in between loses nothing. Every process that imports it gets the same value.
enum EarlierOwnership {
    /// No protobuf message begins with this byte: its wire type does not exist.
    private static let moving = [UInt8(0x07)] + Array("moved to a directory of revisions\n".utf8)
    private static let moved = [UInt8(0x07)] + Array("is in a directory of revisions\n".utf8)

    /// The value in the file, under its new revision; nil if there is no value or no file.
    ///
    /// - Throws: 10020 if the file is another cluster's, is not such a file, or was imported before.
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

    /// The directory has the value. The file is not imported again.
    static func finish(_ path: String, cluster: ClusterID) async {
        guard FileManager.default.fileExists(atPath: path), let file = try? await open(path, cluster: cluster) else {
            return
        }
        // If this fails the file keeps a value that is used only if the directory is empty.
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

package import ApusCore
import GRDB

/// Records in a SQLite file that all node processes of one machine share (D9).
///
/// Concurrency model: all work runs on the file's own serial queue; callers only wait.
package final class SQLiteRecordStore: RecordStore {
    let file: SQLiteFile

    /// Opens the file, or makes it, and brings its tables up to date.
    ///
    /// - Throws: 10020 where it is something else or belongs to another cluster, 10021 where it cannot be used; the
    ///   message names the path.
    package init(path: String, cluster: ClusterID, limits: SQLiteLimits = SQLiteLimits()) async throws(ApusError) {
        var migrator = DatabaseMigrator()
        migrator.registerMigration("1 devices") { database in
            try database.execute(
                sql: """
                    CREATE TABLE devices (
                        device TEXT PRIMARY KEY,
                        account TEXT,
                        bound_at_ms INTEGER,
                        last_seen_ms INTEGER,
                        epoch INTEGER NOT NULL,
                        removed INTEGER NOT NULL DEFAULT 0
                    ) STRICT, WITHOUT ROWID
                    """)
            try database.execute(sql: "CREATE INDEX devices_by_account ON devices (account, device) WHERE removed = 0")
        }
        migrator.registerMigration("2 identities") { database in
            try database.execute(
                sql: """
                    CREATE TABLE identities (
                        identity TEXT PRIMARY KEY,
                        epoch INTEGER NOT NULL,
                        sequence INTEGER NOT NULL,
                        instance INTEGER NOT NULL,
                        superseded BLOB NOT NULL,
                        expires_s INTEGER NOT NULL
                    ) STRICT, WITHOUT ROWID
                    """)
            try database.execute(sql: "CREATE INDEX identities_by_expiry ON identities (expires_s)")
        }
        migrator.registerMigration("3 revocations") { database in
            try database.execute(
                sql: """
                    CREATE TABLE revocations (
                        number INTEGER PRIMARY KEY AUTOINCREMENT,
                        account TEXT,
                        identity TEXT,
                        token INTEGER,
                        issued_before_s INTEGER,
                        expires_s INTEGER NOT NULL
                    ) STRICT
                    """)
        }
        file = try await SQLiteFile(path: path, cluster: cluster, limits: limits, migrator: migrator)
    }

    package func record(of device: DeviceID) async throws(ApusError) -> DeviceRecord? {
        try await file.access { database in
            let statement = try database.cachedStatement(
                sql: "SELECT * FROM devices WHERE device = ? AND removed = 0")
            return try Row.fetchOne(statement, arguments: [device.rawValue]).map(Self.record)
        }
    }

    package func save(_ record: DeviceRecord) async throws(ApusError) {
        try await file.write { database in
            let statement = try database.cachedStatement(
                sql: """
                    INSERT INTO devices (device, account, bound_at_ms, last_seen_ms, epoch) VALUES (?, ?, ?, ?, ?)
                    ON CONFLICT (device) DO UPDATE SET account = excluded.account,
                        bound_at_ms = excluded.bound_at_ms, last_seen_ms = excluded.last_seen_ms,
                        epoch = excluded.epoch, removed = 0
                    WHERE devices.epoch <= excluded.epoch
                    """)
            try statement.execute(arguments: [
                record.device.rawValue, record.account?.rawValue, record.boundAtUnixMilliseconds,
                record.lastSeenUnixMilliseconds, Int64(record.epoch),
            ])
            try Self.checkWritten(database, device: record.device, epoch: record.epoch)
        }
    }

    package func bind(_ record: DeviceRecord) async throws(ApusError) -> DeviceRecord {
        try await file.write { database in
            let statement = try database.cachedStatement(
                sql: """
                    INSERT INTO devices (device, account, bound_at_ms, last_seen_ms, epoch) VALUES (?, ?, ?, ?, ?)
                    ON CONFLICT (device) DO UPDATE SET account = excluded.account,
                        bound_at_ms = excluded.bound_at_ms, last_seen_ms = excluded.last_seen_ms,
                        epoch = excluded.epoch, removed = 0
                    WHERE devices.account IS NULL AND devices.epoch <= excluded.epoch
                    """)
            try statement.execute(arguments: [
                record.device.rawValue, record.account?.rawValue, record.boundAtUnixMilliseconds,
                record.lastSeenUnixMilliseconds, Int64(record.epoch),
            ])
            if database.changesCount > 0 { return record }
            let read = try database.cachedStatement(
                sql: "SELECT * FROM devices WHERE device = ? AND account IS NOT NULL AND removed = 0")
            guard let bound = try Row.fetchOne(read, arguments: [record.device.rawValue]).map(Self.record) else {
                throw ApusError(.staleEpoch, "the record of \(record.device) was written under a later epoch")
            }
            return bound
        }
    }

    package func remove(_ device: DeviceID, epoch: Epoch) async throws(ApusError) {
        try await file.write { database in
            let statement = try database.cachedStatement(
                sql: """
                    INSERT INTO devices (device, epoch, removed) VALUES (?, ?, 1)
                    ON CONFLICT (device) DO UPDATE SET account = NULL, bound_at_ms = NULL, last_seen_ms = NULL,
                        epoch = excluded.epoch, removed = 1
                    WHERE devices.epoch <= excluded.epoch
                    """)
            try statement.execute(arguments: [device.rawValue, Int64(epoch)])
            try Self.checkWritten(database, device: device, epoch: epoch)
        }
    }

    package func records(
        of account: AccountID, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        try await file.access { database in
            let statement = try database.cachedStatement(
                sql: """
                    SELECT * FROM devices WHERE account = ? AND device > ? AND removed = 0 ORDER BY device LIMIT ?
                    """)
            let limit = max(0, min(limit, RecordLimits.pageCountMax))
            return try Row.fetchAll(statement, arguments: [account.rawValue, last?.rawValue ?? "", limit])
                .map(Self.record)
        }
    }

    /// Ends all work and closes the file; later calls fail with 10021.
    package func close() async { await file.close() }

    /// A write that changed no row met a later epoch.
    private static func checkWritten(_ database: Database, device: DeviceID, epoch: Epoch) throws {
        guard database.changesCount == 0 else { return }
        throw ApusError(.staleEpoch, "the record of \(device) was written under a later epoch than \(epoch)")
    }

    private static func record(_ row: Row) -> DeviceRecord {
        let device: String = row["device"]
        let account: String? = row["account"]
        let epoch: Int64 = row["epoch"]
        return DeviceRecord(
            device: DeviceID(unchecked: device), account: account.map(AccountID.init(unchecked:)),
            boundAtUnixMilliseconds: row["bound_at_ms"], lastSeenUnixMilliseconds: row["last_seen_ms"],
            epoch: Epoch(truncatingIfNeeded: epoch))
    }
}

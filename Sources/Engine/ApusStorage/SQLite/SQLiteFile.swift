import ApusCore
import Foundation
import GRDB

/// The bounds of a SQLite file (D13).
package struct SQLiteLimits: Sendable, Equatable {
    /// How long one transaction waits for another process's lock.
    package var busyTimeout: Duration = .seconds(2)
    /// The largest file, in bytes; a write beyond it fails with 10021. The log beside it is not counted.
    package var fileByteCountMax: Int = 4 << 30
    /// Tries to open a file that another process is opening for the first time.
    package var openAttemptCountMax: Int = 40

    package init() {}
}

/// One SQLite file that the node processes of a machine share (D9): opened, checked to be ours, and never
/// used on the Swift pool's threads.
///
/// Journal: write-ahead, so that readers never wait for a writer; every commit is synced (`synchronous =
/// FULL`), so that what was acknowledged survives a power cut. The file carries Apus's application id and the
/// name of its cluster.
///
/// Concurrency model: GRDB's `DatabaseQueue` runs all work on one serial dispatch queue.
final class SQLiteFile: Sendable {
    /// "Apus", in the file's header.
    private static let applicationID = 0x4170_7573

    private let queue: DatabaseQueue
    let path: String

    /// Opens or makes the file and brings its tables up to date.
    ///
    /// - Throws: 10020 where the file is something else or another cluster's, 10021 where it cannot be used.
    init(
        path: String, cluster: ClusterID, limits: SQLiteLimits, migrator: DatabaseMigrator
    ) async throws(ApusError) {
        self.path = path
        queue = try await Self.open(path: path, limits: limits)
        var migrations = DatabaseMigrator()
        migrations.registerMigration("0 identity") { database in
            try database.execute(sql: "PRAGMA application_id = \(Self.applicationID)")
            try database.execute(sql: "CREATE TABLE identity (cluster TEXT NOT NULL) STRICT")
            try database.execute(sql: "INSERT INTO identity (cluster) VALUES (?)", arguments: [cluster.rawValue])
        }
        do {
            try await queue.write { try Self.checkIsOurs($0, path: path) }
            try await Self.migrate(queue, with: [migrations, migrator], limits: limits)
            try await queue.write { try Self.check(cluster: cluster, in: $0, path: path) }
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    /// One immediate transaction; it is made whole or not at all.
    func write<Value: Sendable>(
        _ body: @escaping @Sendable (Database) throws -> Value
    ) async throws(ApusError) -> Value {
        do {
            return try await queue.write(body)
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    /// Statements without a transaction of their own, each of which sees the newest commit.
    func access<Value: Sendable>(
        _ body: @escaping @Sendable (Database) throws -> Value
    ) async throws(ApusError) -> Value {
        do {
            return try await queue.writeWithoutTransaction(body)
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    func close() async {
        let queue = queue
        // A statement that still runs keeps the file open until the queue goes; nothing is lost by that.
        _ = try? await Self.offPool { try queue.close() }
    }

    // MARK: Opening

    private static func open(path: String, limits: SQLiteLimits) async throws(ApusError) -> DatabaseQueue {
        var configuration = Configuration()
        configuration.label = "apus.sqlite"
        configuration.journalMode = .wal
        configuration.busyMode = .timeout(Double(limits.busyTimeout.nanoseconds) / 1e9)
        let fileByteCountMax = limits.fileByteCountMax
        configuration.prepareDatabase { database in
            let pageByteCount = try Int.fetchOne(database, sql: "PRAGMA page_size") ?? 4096
            try database.execute(sql: "PRAGMA max_page_count = \(max(1, fileByteCountMax / pageByteCount))")
        }
        PrivateFile.make(path)
        // Two processes that make the file at the same moment meet a lock that SQLite does not wait for.
        var attemptCount = 0
        while true {
            attemptCount += 1
            do {
                let configuration = configuration
                return try await offPool {
                    let queue = try DatabaseQueue(path: path, configuration: configuration)
                    try queue.writeWithoutTransaction(syncEveryCommit)
                    return queue
                }
            } catch let error as DatabaseError
                where error.resultCode == .SQLITE_BUSY && attemptCount < limits.openAttemptCountMax
            {
                try? await Task.sleep(for: .milliseconds(50))
            } catch {
                throw failure(error, path: path)
            }
        }
    }

    /// GRDB sets `synchronous` to NORMAL when it has set up the journal, which is after its hook for new connections;
    /// so it is set when the queue is there, on its one connection, and looked at once more.
    private static func syncEveryCommit(_ database: Database) throws {
        try database.execute(sql: "PRAGMA synchronous = FULL")
        let level = try Int.fetchOne(database, sql: "PRAGMA synchronous")
        guard level == 2 else {
            throw ApusError(.internalFailure, "SQLite does not sync every commit: synchronous is \(level ?? -1)")
        }
    }

    /// Runs the migrations that are missing. Where another process runs the same ones at the same moment, one of
    /// the two fails whole and finds them done the next time.
    private static func migrate(
        _ queue: DatabaseQueue, with migrators: [DatabaseMigrator], limits: SQLiteLimits
    ) async throws {
        var attemptCount = 0
        while true {
            attemptCount += 1
            do {
                return try await offPool { for migrator in migrators { try migrator.migrate(queue) } }
            } catch let error as DatabaseError where attemptCount < limits.openAttemptCountMax {
                switch error.resultCode {
                case .SQLITE_BUSY, .SQLITE_LOCKED, .SQLITE_CONSTRAINT, .SQLITE_ERROR:
                    try await Task.sleep(for: .milliseconds(50))
                default: throw error
                }
            }
        }
    }

    private static func checkIsOurs(_ database: Database, path: String) throws {
        let applicationID = try Int.fetchOne(database, sql: "PRAGMA application_id") ?? 0
        // The migrator's own table comes in a transaction of its own, before the one that says whose file this
        // is: between the two, another process that makes the same file has left a table and no id.
        let tableCount =
            try Int.fetchOne(
                database, sql: "SELECT count(*) FROM sqlite_master WHERE tbl_name <> 'grdb_migrations'") ?? 0
        guard applicationID == Self.applicationID || (applicationID == 0 && tableCount == 0) else {
            throw ApusError(.stateForeign, "\(path) is a database of another program; choose another directory")
        }
    }

    private static func check(cluster: ClusterID, in database: Database, path: String) throws {
        let owner = try String.fetchOne(database, sql: "SELECT cluster FROM identity") ?? ""
        guard owner == cluster.rawValue else {
            throw ApusError(
                .stateForeign, "\(path) belongs to the cluster \(owner), not to \(cluster); choose another directory")
        }
    }

    /// Runs blocking work on a dispatch thread, never on the Swift pool.
    private static func offPool<Value: Sendable>(_ body: @escaping @Sendable () throws -> Value) async throws -> Value {
        try await withCheckedThrowingContinuation { continuation in
            DispatchQueue.global().async { continuation.resume(with: Result(catching: body)) }
        }
    }

    private static func failure(_ error: any Error, path: String) -> ApusError {
        if let error = error as? ApusError { return error }
        if error is CancellationError { return ApusError(.cancelled) }
        guard let error = error as? DatabaseError else {
            return ApusError(.storageFailed, "\(path) cannot be used: \(error)")
        }
        switch error.resultCode {
        case .SQLITE_NOTADB, .SQLITE_CORRUPT:
            return ApusError(.stateForeign, "\(path) is not a database of this program, or is damaged")
        case .SQLITE_CANTOPEN:
            return ApusError(
                .storageFailed, "\(path) cannot be opened; check that its directory exists and is writable")
        case .SQLITE_READONLY, .SQLITE_PERM:
            return ApusError(.storageFailed, "\(path) cannot be written; check its owner and permissions")
        case .SQLITE_FULL:
            return ApusError(.storageFailed, "\(path) cannot grow; the disk or the file's limit is full")
        case .SQLITE_BUSY, .SQLITE_LOCKED:
            return ApusError(.storageFailed, "\(path) is locked by another process for too long")
        case .SQLITE_INTERRUPT, .SQLITE_ABORT:
            return ApusError(.cancelled)
        default:
            return ApusError(.storageFailed, "\(path) cannot be used: \(error.message ?? "\(error.resultCode)")")
        }
    }
}

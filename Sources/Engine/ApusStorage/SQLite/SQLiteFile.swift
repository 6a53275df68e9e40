import ApusCore
import CoreMetrics
import Foundation
import GRDB
import Synchronization

/// The limits of a SQLite file (D13).
package struct SQLiteLimits: Sendable, Equatable {
    /// The longest wait of one commit for another process that writes. It is well above the time in which a node is
    /// declared dead: a process that is stopped while it writes is ended then.
    package var lockTimeout: Duration = .seconds(5)
    /// The longest wait of one transaction for a process that does not use the lock: an earlier release, or another
    /// program.
    package var busyTimeout: Duration = .seconds(2)
    /// The largest file, in bytes; a write beyond it fails with 10021. The log beside it is not counted.
    package var fileByteCountMax: Int = 4 << 30
    /// The part of the largest file that client records may not use, in percent (10007). Operators can then still
    /// write, for example revocations, and records can be changed and removed.
    package var reservePercent = 10
    /// The number of pages in the log at which a commit writes them back to the file.
    package var checkpointPageCount = 1000
    /// The size to which the log is truncated once all of it is written back, in bytes.
    package var logByteCountKept = 64 << 20
    /// Attempts to open a file that an earlier release opens at the same moment.
    package var openAttemptCountMax: Int = 40

    package init() {}
}

/// One SQLite file that the node processes of a machine share (D9). It is opened, checked to belong to this cluster,
/// and never used on the Swift pool's threads.
///
/// Journal: write-ahead, so readers never wait for a writer. Every commit is synced (`synchronous = FULL`), so
/// acknowledged commits survive a power cut. The file carries Apus's application id and the name of its cluster.
///
/// Everything that writes the file or its log happens under ``WriteLock``: opening, commits, the checkpoints at their
/// end, and closing. SQLite before 3.51.3 can lose commits if two connections do that at once (docs/decisions/21). A
/// second connection reads.
///
/// Concurrency model: two GRDB `DatabaseQueue`s, each a serial dispatch queue.
final class SQLiteFile: Sendable {
    /// "Apus", in the file's header.
    private static let applicationID = 0x4170_7573

    private let connections: Connections
    private let identity: WriteLock.FileIdentity?
    private let limits: SQLiteLimits
    private let mark: UInt64
    /// True after a commit failed in a way that leaves the disk's state unknown.
    private let isBroken = Mutex(false)
    /// Bytes of the log beside the file.
    private let logBytes = Gauge(label: "apus_records_log_bytes")
    let path: String

    /// The two connections, and the use of the lock that ends with them.
    ///
    /// Concurrency model: the queues are serial; a `Mutex` guards the use.
    private final class Connections: Sendable {
        let writer: DatabaseQueue
        let reader: DatabaseQueue
        private let use: Mutex<WriteLock.Use?>
        private let limits: SQLiteLimits
        private let mark: UInt64

        init(
            _ use: WriteLock.Use, writer: DatabaseQueue, reader: DatabaseQueue, limits: SQLiteLimits, mark: UInt64
        ) {
            (self.writer, self.reader, self.limits, self.mark) = (writer, reader, limits, mark)
            self.use = Mutex(use)
        }

        /// Runs `body` while no other process writes.
        ///
        /// - Throws: 10021 if another one writes for too long, or the file was closed.
        func withLock<Value>(_ body: (DatabaseQueue) throws -> Value) throws -> Value {
            guard let use = use.withLock({ $0 }) else { throw SQLiteFile.closed }
            return try withExtendedLifetime(use) {
                try use.lock.withLock(timeout: limits.lockTimeout, mark: mark) { try body(writer) }
            }
        }

        var lockHolder: RecordLockHolder? {
            guard let use = use.withLock({ $0 }) else { return nil }
            return withExtendedLifetime(use) { use.lock.holder() }
        }

        /// Closes the connections. The last connection to close writes the log back, so this happens under the lock. A
        /// statement that still runs keeps the file open until its queue is released. When this returns, the file no
        /// longer uses the database, even if there are other references to it.
        func close() {
            guard let use = use.withLock({ $0.take() }) else { return }
            try? withExtendedLifetime(use) {
                try use.lock.withLock(timeout: limits.lockTimeout, mark: mark) {
                    try reader.close()
                    try writer.close()
                }
            }
        }
    }

    private static var closed: ApusError { ApusError(.storageFailed, "the record store was closed") }

    /// Opens or creates the file and updates its tables.
    ///
    /// - Parameters:
    ///   - mark: Identifies the user (``RecordWriter``).
    ///   - prepare: Runs in a transaction at the end.
    /// - Throws: 10020 if the file is something else or another cluster's, 10021 if it cannot be used.
    init(
        path: String, cluster: ClusterID, limits: SQLiteLimits, mark: UInt64 = 0, migrator: DatabaseMigrator,
        prepare: @escaping @Sendable (Database) throws -> Void = { _ in }
    ) async throws(ApusError) {
        (self.path, self.limits, self.mark) = (path, limits, mark)
        do {
            connections = try await Self.offPool {
                let use = try WriteLock.use(path + "-lock")
                return try use.lock.withLock(timeout: limits.lockTimeout, mark: mark) { () -> Connections in
                    let writer = try Self.openWriter(path: path, limits: limits)
                    try writer.write { try Self.checkIsOurs($0, path: path) }
                    try Self.migrate(writer, with: [Self.identity(of: cluster), migrator], limits: limits)
                    try writer.write { database in
                        try Self.check(cluster: cluster, in: database, path: path)
                        try prepare(database)
                    }
                    let reader = try Self.openReader(path: path, limits: limits)
                    return Connections(use, writer: writer, reader: reader, limits: limits, mark: mark)
                }
            }
        } catch {
            throw Self.failure(error, path: path)
        }
        identity = WriteLock.FileIdentity(path)
    }

    /// Runs one immediate transaction. It is applied as a whole or not at all, and is durable when this returns.
    func write<Value: Sendable>(
        _ body: @escaping @Sendable (Database) throws -> Value
    ) async throws(ApusError) -> Value {
        do {
            return try await Self.offPool { [self] in try commit(body) }
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    /// Runs `body` while no other process writes, without a transaction.
    func locked(_ body: @escaping @Sendable () -> Void) async throws(ApusError) {
        let connections = connections
        do {
            try await Self.offPool { try connections.withLock { _ in body() } }
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    /// As ``write(_:)``, on a thread that may block.
    func commit<Value>(_ body: (Database) throws -> Value) throws(ApusError) -> Value {
        guard !isBroken.withLock({ $0 }) else {
            throw ApusError(.storageFailed, "\(path) could not be synced before; restart the node")
        }
        do {
            let value = try connections.withLock { writer in
                // Another process would continue with the file that has the name now.
                guard WriteLock.FileIdentity(path) == identity else {
                    throw ApusError(.storageFailed, "\(path) was replaced while it was in use; restart the node")
                }
                return try writer.write(body)
            }
            var status = stat()
            if stat(path + "-wal", &status) == 0 { logBytes.record(Int(status.st_size)) }
            return value
        } catch {
            if Self.leavesDiskUnknown(error) { isBroken.withLock { $0 = true } }
            throw Self.failure(error, path: path)
        }
    }

    /// True if client records may grow, in this transaction.
    func hasRoom(_ database: Database) throws -> Bool {
        let pageCountMax = try Int.fetchOne(database.cachedStatement(sql: "PRAGMA max_page_count")) ?? 0
        let pageCount = try Int.fetchOne(database.cachedStatement(sql: "PRAGMA page_count")) ?? 0
        let limit = pageCountMax * (100 - limits.reservePercent) / 100
        guard pageCount >= limit else { return true }
        // Free pages are used again.
        return pageCount - (try Int.fetchOne(database.cachedStatement(sql: "PRAGMA freelist_count")) ?? 0) < limit
    }

    /// True if the error leaves the disk's state unknown. After a failed sync, a later sync that succeeds proves
    /// nothing. The log's index is not synced: on a full disk it can fail to grow before anything is written.
    private static func leavesDiskUnknown(_ error: any Error) -> Bool {
        guard let error = error as? DatabaseError, error.resultCode == .SQLITE_IOERR else { return false }
        switch error.extendedResultCode {
        case .SQLITE_IOERR_SHMOPEN, .SQLITE_IOERR_SHMSIZE, .SQLITE_IOERR_SHMMAP, .SQLITE_IOERR_SHMLOCK,
            .SQLITE_IOERR_NOMEM, .SQLITE_IOERR_LOCK, .SQLITE_IOERR_RDLOCK:
            return false
        default: return true
        }
    }

    /// Reads without an enclosing transaction. Each read sees the newest commit.
    func read<Value: Sendable>(
        _ body: @escaping @Sendable (Database) throws -> Value
    ) async throws(ApusError) -> Value {
        do {
            return try await connections.reader.writeWithoutTransaction(body)
        } catch {
            throw Self.failure(error, path: path)
        }
    }

    /// Copies the file, as it is at this moment, into a new one, in steps.
    func copy(to target: String, stepPageCount: CInt) async throws(ApusError) {
        do {
            let reader = connections.reader
            try await Self.offPool {
                try? FileManager.default.removeItem(atPath: target)
                let copy = try DatabaseQueue(path: target)
                try copy.writeWithoutTransaction { target in
                    try reader.writeWithoutTransaction { source in
                        // One snapshot for all steps. Otherwise each commit of another process would restart the copy.
                        try source.inTransaction(.deferred) {
                            _ = try Int.fetchOne(source, sql: "SELECT count(*) FROM sqlite_master")
                            try source.backup(to: target, pagesPerStep: stepPageCount)
                            return .commit
                        }
                    }
                }
                try copy.close()
            }
        } catch {
            throw Self.failure(error, path: target)
        }
    }

    /// - Throws: 10020 if the open database is not a file of this cluster.
    static func check(_ path: String, belongsTo cluster: ClusterID, _ database: Database) throws {
        guard try Int.fetchOne(database, sql: "PRAGMA application_id") == applicationID else {
            throw ApusError(.stateForeign, "\(path) is not a records file")
        }
        try check(cluster: cluster, in: database, path: path)
    }

    func lockHolder() async -> RecordLockHolder? {
        let connections = connections
        return try? await Self.offPool { connections.lockHolder }
    }

    func close() async {
        let connections = connections
        _ = try? await Self.offPool { connections.close() }
    }

    deinit {
        let connections = connections
        DispatchQueue.global().async { connections.close() }
    }

    // MARK: Opening

    private static func openWriter(path: String, limits: SQLiteLimits) throws -> DatabaseQueue {
        var configuration = Configuration()
        configuration.label = "apus.sqlite.writer"
        configuration.journalMode = .wal
        configuration.busyMode = .timeout(Double(limits.busyTimeout.nanoseconds) / 1e9)
        configuration.prepareDatabase { database in
            let pageByteCount = try Int.fetchOne(database, sql: "PRAGMA page_size") ?? 4096
            try database.execute(sql: "PRAGMA max_page_count = \(max(1, limits.fileByteCountMax / pageByteCount))")
            // At the end of a commit, and so under the lock.
            try database.execute(sql: "PRAGMA wal_autocheckpoint = \(limits.checkpointPageCount)")
            try database.execute(sql: "PRAGMA journal_size_limit = \(limits.logByteCountKept)")
        }
        PrivateFile.make(path)
        // A process of an earlier release that creates the file takes a lock that SQLite does not wait for.
        for attempt in 1... {
            do {
                let queue = try DatabaseQueue(path: path, configuration: configuration)
                try queue.writeWithoutTransaction(syncEveryCommit)
                return queue
            } catch let error as DatabaseError
                where error.resultCode == .SQLITE_BUSY && attempt < limits.openAttemptCountMax
            {
                usleep(50_000)
            }
        }
        throw ApusError(.storageFailed)
    }

    private static func openReader(path: String, limits: SQLiteLimits) throws -> DatabaseQueue {
        var configuration = Configuration()
        configuration.label = "apus.sqlite.reader"
        configuration.readonly = true
        configuration.busyMode = .timeout(Double(limits.busyTimeout.nanoseconds) / 1e9)
        return try DatabaseQueue(path: path, configuration: configuration)
    }

    /// GRDB sets `synchronous` to NORMAL when it sets up the journal, after its hook for new connections. It is
    /// therefore set when the queue exists, on its one connection, and checked once more.
    private static func syncEveryCommit(_ database: Database) throws {
        try database.execute(sql: "PRAGMA synchronous = FULL")
        let level = try Int.fetchOne(database, sql: "PRAGMA synchronous")
        guard level == 2 else {
            throw ApusError(.internalFailure, "SQLite does not sync every commit: synchronous is \(level ?? -1)")
        }
    }

    private static func identity(of cluster: ClusterID) -> DatabaseMigrator {
        var migrator = DatabaseMigrator()
        migrator.registerMigration("0 identity") { database in
            try database.execute(sql: "PRAGMA application_id = \(Self.applicationID)")
            try database.execute(sql: "CREATE TABLE identity (cluster TEXT NOT NULL) STRICT")
            try database.execute(sql: "INSERT INTO identity (cluster) VALUES (?)", arguments: [cluster.rawValue])
        }
        return migrator
    }

    /// Runs the missing migrations. If a process of an earlier release runs the same ones at the same moment, one of
    /// the two fails as a whole and finds them done at its next attempt.
    private static func migrate(
        _ queue: DatabaseQueue, with migrators: [DatabaseMigrator], limits: SQLiteLimits
    ) throws {
        for attempt in 1... {
            do {
                for migrator in migrators { try migrator.migrate(queue) }
                return
            } catch let error as DatabaseError where attempt < limits.openAttemptCountMax {
                switch error.resultCode {
                case .SQLITE_BUSY, .SQLITE_LOCKED, .SQLITE_CONSTRAINT, .SQLITE_ERROR: usleep(50_000)
                default: throw error
                }
            }
        }
    }

    private static func checkIsOurs(_ database: Database, path: String) throws {
        let applicationID = try Int.fetchOne(database, sql: "PRAGMA application_id") ?? 0
        // The migrator creates its own table in a transaction before the one that sets the application id. Between the
        // two, another process that creates the same file leaves a table and no id.
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
    static func offPool<Value: Sendable>(_ body: @escaping @Sendable () throws -> Value) async throws -> Value {
        try await withCheckedThrowingContinuation { continuation in
            DispatchQueue.global().async { continuation.resume(with: Result(catching: body)) }
        }
    }

    static func failure(_ error: any Error, path: String) -> ApusError {
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

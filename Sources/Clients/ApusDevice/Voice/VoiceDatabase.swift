package import ApusContract
public import ApusCore
import Foundation
import GRDB
import SwiftProtobuf

/// The local database of a voice client (VA-2): its token, its settings and its alarms, in a file of SQLite. They
/// survive restarts, and a loss of power after the function that has written them has returned.
///
/// Concurrency model: any thread. A queue of GRDB serializes the access, and a function blocks for as long as the disk
/// takes.
public final class VoiceDatabase: Sendable {
    /// The most settings.
    public static let settingsMax = 256
    /// The longest value of a setting, in bytes.
    public static let settingByteCountMax = 8192
    /// The most alarms that are kept.
    package static let alarmsMax = 64
    private static let version = 1

    private let path: String
    private let queue: DatabaseQueue

    /// Opens the database, or creates it. The file can be read by its owner only.
    ///
    /// - Throws: 10020 if another process uses the file, or a newer release has written it; 10021 if it cannot be used.
    public init(path: String) throws(ApusError) {
        self.path = path
        let file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard file >= 0 else {
            throw ApusError(.storageFailed, "\(path) cannot be opened: \(String(cString: strerror(errno)))")
        }
        close(file)
        queue = try Self.attempt(path) {
            var configuration = Configuration()
            configuration.prepareDatabase { database in
                // Held until the end: two clients of one device would use each other's refresh tokens.
                try database.execute(sql: "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL")
            }
            return try DatabaseQueue(path: path, configuration: configuration)
        }
        let found = try Self.attempt(path) { [queue] in
            try queue.write { database -> Int in
                let found = try Int.fetchOne(database, sql: "PRAGMA user_version") ?? 0
                guard found <= Self.version else { return found }
                try database.execute(
                    sql: """
                        CREATE TABLE IF NOT EXISTS token (
                            id INTEGER PRIMARY KEY CHECK (id = 1), owner TEXT NOT NULL, token TEXT NOT NULL,
                            refresh TEXT NOT NULL, received INTEGER NOT NULL, expires INTEGER NOT NULL
                        ) STRICT;
                        CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, json TEXT NOT NULL) STRICT;
                        CREATE TABLE IF NOT EXISTS alarms (id INTEGER PRIMARY KEY, message BLOB NOT NULL) STRICT;
                        PRAGMA user_version = \(Self.version)
                        """)
                return found
            }
        }
        guard found <= Self.version else {
            throw ApusError(.stateForeign, "a newer release has written \(path)")
        }
    }

    // MARK: - The token

    /// The token of an owner: of the authorization address, the client and the device. That of another owner is none.
    package func token(of owner: String) throws(ApusError) -> VoiceToken? {
        try read { database in
            let row = try Row.fetchOne(
                database, sql: "SELECT token, refresh, received, expires FROM token WHERE owner = ?",
                arguments: [owner])
            return row.map {
                VoiceToken(token: $0["token"], refresh: $0["refresh"], received: $0["received"], expires: $0["expires"])
            }
        }
    }

    package func store(_ token: VoiceToken, of owner: String) throws(ApusError) {
        try write { database in
            try database.execute(
                sql: """
                    INSERT OR REPLACE INTO token (id, owner, token, refresh, received, expires)
                    VALUES (1, ?, ?, ?, ?, ?)
                    """,
                arguments: [owner, token.token, token.refresh, token.received, token.expires])
        }
    }

    // MARK: - Settings

    /// The value of a setting of the app; nil if there is none.
    ///
    /// - Throws: 10021 if the file cannot be read.
    public func setting(_ name: String) throws(ApusError) -> String? {
        try read { database in
            try String.fetchOne(database, sql: "SELECT json FROM settings WHERE name = ?", arguments: [name])
        }
    }

    /// Sets a setting of the app, or removes it. It is on the disk when this returns.
    ///
    /// - Parameters:
    ///   - name: 1 to 63 bytes.
    ///   - value: any text, such as JSON, of at most ``settingByteCountMax``; nil: the setting is removed.
    /// - Throws: 21031 for a name that is none, 10002 for a value that is too long, 10007 beyond ``settingsMax``, 10021
    ///   if the file cannot be written.
    public func setSetting(_ name: String, _ value: String?) throws(ApusError) {
        guard (1...63).contains(name.utf8.count) else {
            throw ApusError(.badParameter, "the name of a setting has 1 to 63 bytes")
        }
        guard (value?.utf8.count ?? 0) <= Self.settingByteCountMax else { throw ApusError(.frameTooLarge) }
        let isFull = try write { database -> Bool in
            guard let value else {
                try database.execute(sql: "DELETE FROM settings WHERE name = ?", arguments: [name])
                return false
            }
            let others = try Int.fetchOne(
                database, sql: "SELECT count(*) FROM settings WHERE name <> ?", arguments: [name])
            guard others ?? 0 < Self.settingsMax else { return true }
            try database.execute(
                sql: "INSERT OR REPLACE INTO settings (name, json) VALUES (?, ?)", arguments: [name, value])
            return false
        }
        guard !isFull else { throw ApusError(.overloaded, "there are \(Self.settingsMax) settings already") }
    }

    // MARK: - Alarms

    /// The timers and alarm clocks of the device, as the cluster has last reported them.
    ///
    /// - Throws: 10021 if the file cannot be read.
    package func alarms() throws(ApusError) -> [ClientTimer] {
        try read { database in
            try Data.fetchAll(database, sql: "SELECT message FROM alarms ORDER BY id")
        }.compactMap { try? ClientTimer(serializedBytes: $0) }
    }

    /// Replaces all of them.
    package func setAlarms(_ alarms: [ClientTimer]) throws(ApusError) {
        let rows: [(UInt32, Data)] = alarms.prefix(Self.alarmsMax).compactMap { alarm in
            (try? alarm.serializedData()).map { (alarm.id, $0) }
        }
        try write { database in
            try database.execute(sql: "DELETE FROM alarms")
            for (id, message) in rows {
                try database.execute(
                    sql: "INSERT OR REPLACE INTO alarms (id, message) VALUES (?, ?)", arguments: [Int64(id), message])
            }
        }
    }

    /// Forgets the token, the settings and the alarms (VA-5).
    ///
    /// - Throws: 10021 if the file cannot be written.
    package func erase() throws(ApusError) {
        try write { database in
            try database.execute(sql: "DELETE FROM token; DELETE FROM settings; DELETE FROM alarms")
        }
    }

    // MARK: - SQLite

    private func read<Value>(_ body: (Database) throws -> Value) throws(ApusError) -> Value {
        try Self.attempt(path) { try queue.read(body) }
    }

    @discardableResult
    private func write<Value>(_ body: (Database) throws -> Value) throws(ApusError) -> Value {
        try Self.attempt(path) { try queue.write(body) }
    }

    private static func attempt<Value>(_ path: String, _ body: () throws -> Value) throws(ApusError) -> Value {
        do {
            return try body()
        } catch let error as DatabaseError where error.resultCode == .SQLITE_BUSY {
            throw ApusError(.stateForeign, "another process uses \(path)")
        } catch {
            throw ApusError(.storageFailed, "the database \(path) cannot be used: \(error)")
        }
    }
}

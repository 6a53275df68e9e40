package import ApusCore
import Foundation
import GRDB

/// Plain SQLite, as the reference for the commits of a record store in benchmarks.
package enum BareSQLite {
    /// Writes rows in transactions of `batchCount`, with the journal and the sync of ``SQLiteRecordStore``. Returns how
    /// long each row waited.
    ///
    /// - Throws: 10021 if the file cannot be written.
    package static func run(
        path: String, batchCount: Int, count: Int, seconds: Double, keyCount: Int, bodyByteCount: Int
    ) async throws(ApusError) -> [Duration] {
        do {
            return try await SQLiteFile.offPool {
                var configuration = Configuration()
                configuration.journalMode = .wal
                let queue = try DatabaseQueue(path: path, configuration: configuration)
                try queue.writeWithoutTransaction { database in
                    try database.execute(sql: "PRAGMA synchronous = FULL")
                    try database.execute(
                        sql: """
                            CREATE TABLE IF NOT EXISTS bare (
                                key BLOB PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL
                            ) STRICT, WITHOUT ROWID
                            """)
                }
                return try write(queue, batchCount, count, seconds, keyCount, bodyByteCount)
            }
        } catch {
            throw SQLiteFile.failure(error, path: path)
        }
    }

    private static func write(
        _ queue: DatabaseQueue, _ batchCount: Int, _ count: Int, _ seconds: Double, _ keyCount: Int,
        _ bodyByteCount: Int
    ) throws -> [Duration] {
        let body = Data(repeating: 7, count: bodyByteCount)
        let end = MonotonicTime.now() + .seconds(seconds)
        var times: [Duration] = []
        while times.count < count, MonotonicTime.now() < end {
            let start = MonotonicTime.now()
            let round = times.count / batchCount
            try queue.write { database in
                let statement = try database.cachedStatement(
                    sql: """
                        INSERT INTO bare (key, version, body) VALUES (?, 1, ?)
                        ON CONFLICT (key) DO UPDATE SET version = version + 1, body = excluded.body
                        """)
                for writer in 0..<batchCount {
                    let key = OrderedKey(.unsigned(UInt64(writer)), .unsigned(UInt64(round % keyCount)))
                    try statement.execute(arguments: [Data(key.bytes), body])
                }
            }
            let time = MonotonicTime.now() - start
            for _ in 0..<batchCount { times.append(time) }
        }
        return times
    }
}

package import ApusCore
import Foundation
import GRDB

/// What is remembered of identities' clients (IV-A5).
extension SQLiteRecordStore {
    package func identity(_ identity: String) async throws(ApusError) -> IdentityRecord? {
        try await file.access { database in
            let statement = try database.cachedStatement(sql: "SELECT * FROM identities WHERE identity = ?")
            return try Row.fetchOne(statement, arguments: [identity]).map(Self.identity)
        }
    }

    package func save(_ identities: [IdentityRecord], wallSeconds: Int64) async throws(ApusError) {
        try await file.write { database in
            let statement = try database.cachedStatement(
                sql: """
                    INSERT INTO identities (identity, epoch, sequence, instance, superseded, expires_s)
                    VALUES (?, ?, ?, ?, ?, ?)
                    ON CONFLICT (identity) DO UPDATE SET epoch = excluded.epoch, sequence = excluded.sequence,
                        instance = excluded.instance, superseded = excluded.superseded,
                        expires_s = excluded.expires_s
                    WHERE (identities.epoch, identities.sequence) <= (excluded.epoch, excluded.sequence)
                    """)
            for record in identities {
                try statement.execute(arguments: [
                    record.identity, Int64(record.epoch), Self.sortable(record.sequence),
                    Self.sortable(record.instance), Self.bytes(of: record.superseded), record.expires,
                ])
            }
            try database.cachedStatement(sql: "DELETE FROM identities WHERE expires_s <= ?")
                .execute(arguments: [wallSeconds])
        }
    }

    private static func identity(_ row: Row) -> IdentityRecord {
        let (epoch, sequence, instance): (Int64, Int64, Int64) = (row["epoch"], row["sequence"], row["instance"])
        return IdentityRecord(
            identity: row["identity"], epoch: Epoch(truncatingIfNeeded: epoch), sequence: number(sequence),
            instance: number(instance), superseded: numbers(in: row["superseded"]), expires: row["expires_s"])
    }

    /// SQLite's numbers have a sign: they are shifted, so that they compare as the numbers that they stand for do.
    private static func sortable(_ number: UInt64) -> Int64 { Int64(bitPattern: number ^ (1 << 63)) }
    private static func number(_ sortable: Int64) -> UInt64 { UInt64(bitPattern: sortable) ^ (1 << 63) }

    private static func bytes(of numbers: [UInt64]) -> Data {
        Data(numbers.flatMap { number in (0..<8).map { UInt8(truncatingIfNeeded: number >> (56 - 8 * $0)) } })
    }

    private static func numbers(in data: Data) -> [UInt64] {
        let bytes = [UInt8](data)
        return stride(from: 0, to: bytes.count - bytes.count % 8, by: 8).map { start in
            bytes[start..<(start + 8)].reduce(0) { $0 << 8 | UInt64($1) }
        }
    }
}

import ApusCore
import Foundation
import GRDB

/// The tables of a SQLite file for records.
///
/// `records` holds the rows; a removed record has no body. A row repeats the record's entries, so a write finds what to
/// remove from `record_entries` without a further index. `record_layouts` holds the newest layout of each collection.
enum RecordTables {
    static let migration = "1 records"

    static func create(_ database: Database) throws {
        try database.execute(
            sql: """
                CREATE TABLE records (
                    collection TEXT NOT NULL,
                    key BLOB NOT NULL,
                    version INTEGER NOT NULL,
                    epoch INTEGER NOT NULL,
                    writer TEXT NOT NULL,
                    entries BLOB NOT NULL,
                    body BLOB,
                    PRIMARY KEY (collection, key)
                ) STRICT, WITHOUT ROWID;
                CREATE TABLE record_entries (
                    collection TEXT NOT NULL,
                    name TEXT NOT NULL,
                    value BLOB NOT NULL,
                    key BLOB NOT NULL,
                    PRIMARY KEY (collection, name, value, key)
                ) STRICT, WITHOUT ROWID;
                CREATE TABLE record_layouts (
                    collection TEXT PRIMARY KEY,
                    layout INTEGER NOT NULL
                ) STRICT, WITHOUT ROWID;
                """)
    }

    // MARK: Writing

    /// Applies the steps, each on its own, within the current transaction.
    ///
    /// - Parameters:
    ///   - hasRoom: True if client records may grow.
    ///   - memory: The cache of what the transaction sees. What is read for the steps is added.
    /// - Returns: Each step's outcome, and the changes once the transaction is committed.
    static func make(
        _ steps: [RecordStep], hasRoom: Bool, _ memory: inout RecordHeadMemory, _ database: Database
    ) throws -> (outcomes: [GroupCommit.Outcome], changes: [RecordBatchStateMachine.Change]) {
        let layouts = try memory.layouts { try Self.layouts(database) }
        var machine = RecordBatchStateMachine(layouts: layouts, hasRoom: hasRoom, countMin: steps.count * 2)
        let outcomes = try steps.map { step in
            try machine.apply(step) { id in try memory.head(id) { try head(id, database) } }
        }
        let changes = machine.changes
        for change in changes { try make(change, database) }
        return (outcomes, changes)
    }

    private static func head(_ id: RecordID, _ database: Database) throws -> RecordBatchStateMachine.Head? {
        let statement = try database.cachedStatement(
            sql: """
                SELECT version, epoch, writer, entries, body IS NULL, length(body) FROM records
                WHERE collection = ? AND key = ?
                """)
        guard let row = try Row.fetchOne(statement, arguments: [id.collection, Data(id.key.bytes)]) else { return nil }
        let bytes: Data = row[3]
        let entries = RecordEntry.decode([UInt8](bytes))
        return RecordBatchStateMachine.Head(
            version: version(row, 0), fence: fence(row, 1), isRemoved: row[4], entries: entries ?? [],
            byteCount: row[5] ?? 0, isDamaged: entries == nil)
    }

    private static func make(_ change: RecordBatchStateMachine.Change, _ database: Database) throws {
        let (collection, key) = (change.id.collection, Data(change.id.key.bytes))
        for entry in change.removedEntries {
            try database.cachedStatement(
                sql: "DELETE FROM record_entries WHERE collection = ? AND name = ? AND value = ? AND key = ?"
            ).execute(arguments: [collection, entry.index, Data(entry.value.bytes), key])
        }
        for entry in change.addedEntries {
            try database.cachedStatement(
                sql: "INSERT OR REPLACE INTO record_entries (collection, name, value, key) VALUES (?, ?, ?, ?)"
            ).execute(arguments: [collection, entry.index, Data(entry.value.bytes), key])
        }
        guard let row = change.after else {
            try database.cachedStatement(sql: "DELETE FROM records WHERE collection = ? AND key = ?")
                .execute(arguments: [collection, key])
            return
        }
        // Not an update in place: the space on pages that removed bodies leave nearly empty would not be used by other
        // rows.
        try database.cachedStatement(
            sql: """
                INSERT OR REPLACE INTO records (collection, key, version, epoch, writer, entries, body)
                VALUES (?, ?, ?, ?, ?, ?, ?)
                """
        ).execute(arguments: [
            collection, key, Int64(bitPattern: row.head.version), Int64(row.head.fence.epoch), row.head.fence.writer,
            Data(RecordEntry.encode(row.head.entries)), row.body.map { Data($0) },
        ])
    }

    private static func layouts(_ database: Database) throws -> [String: UInt32] {
        var layouts: [String: UInt32] = [:]
        let statement = try database.cachedStatement(sql: "SELECT collection, layout FROM record_layouts")
        for row in try Row.fetchAll(statement) {
            let layout: Int64 = row[1]
            layouts[row[0]] = UInt32(truncatingIfNeeded: layout)
        }
        return layouts
    }

    // MARK: Reading

    static func record(_ collection: String, _ key: OrderedKey, _ database: Database) throws -> StoredRecord? {
        let statement = try database.cachedStatement(
            sql: """
                SELECT key, version, epoch, writer, body FROM records
                WHERE collection = ? AND key = ? AND body IS NOT NULL
                """)
        return try Row.fetchOne(statement, arguments: [collection, Data(key.bytes)]).map { record($0) }
    }

    static func page(_ scan: RecordScan, _ database: Database) throws -> RecordPage {
        let below = Data(scan.below?.bytes ?? [0xFF])
        let rows: RowCursor
        if let index = scan.index {
            let statement = try database.cachedStatement(
                sql: """
                    SELECT r.key, r.version, r.epoch, r.writer, r.body, e.value
                    FROM record_entries AS e CROSS JOIN records AS r ON r.collection = e.collection AND r.key = e.key
                    WHERE e.collection = ? AND e.name = ? AND (e.value, e.key) > (?, ?) AND e.value < ?
                        AND r.body IS NOT NULL
                    ORDER BY e.value, e.key LIMIT ?
                    """)
            rows = try Row.fetchCursor(
                statement,
                arguments: [
                    scan.collection, index, Data(scan.token?.value.bytes ?? scan.from?.bytes ?? []),
                    Data(scan.token?.key.bytes ?? []), below, scan.countMax + 1,
                ])
        } else {
            let statement = try database.cachedStatement(
                sql: """
                    SELECT key, version, epoch, writer, body, key FROM records
                    WHERE collection = ? AND key >= ? AND key > ? AND key < ? AND body IS NOT NULL
                    ORDER BY key LIMIT ?
                    """)
            rows = try Row.fetchCursor(
                statement,
                arguments: [
                    scan.collection, Data(scan.from?.bytes ?? []), Data(scan.token?.key.bytes ?? []), below,
                    scan.countMax + 1,
                ])
        }
        return try page(rows, scan)
    }

    private static func page(_ rows: RowCursor, _ scan: RecordScan) throws -> RecordPage {
        var page = RecordPage(records: [], next: nil)
        var byteCount = 0
        var last = RecordToken(value: OrderedKey(), key: OrderedKey())
        while let row = try rows.next() {
            guard page.records.count < scan.countMax, byteCount <= RecordLimits.pageByteCountMax else {
                page.next = last
                break
            }
            let record = record(row)
            let value: Data = row[5]
            last = RecordToken(value: OrderedKey(stored: [UInt8](value)), key: record.key)
            byteCount += record.body.count
            page.records.append(record)
        }
        return page
    }

    private static func record(_ row: Row) -> StoredRecord {
        let (key, body): (Data, Data) = (row[0], row[4])
        return StoredRecord(
            key: OrderedKey(stored: [UInt8](key)), version: version(row, 1), fence: fence(row, 2), body: [UInt8](body))
    }

    private static func version(_ row: Row, _ index: Int) -> UInt64 {
        let version: Int64 = row[index]
        return UInt64(bitPattern: version)
    }

    private static func fence(_ row: Row, _ index: Int) -> RecordFence {
        let (epoch, writer): (Int64, String) = (row[index], row[index + 1])
        return RecordFence(epoch: Epoch(truncatingIfNeeded: epoch), writer: writer)
    }

    // MARK: Opening

    /// Updates the file to what this program's services declare. Tables of earlier releases become records. If the
    /// indexes of a collection changed, the entries of all its records are created again.
    static func adopt(_ catalogue: RecordCatalogue, _ database: Database) throws {
        for collection in catalogue.collections {
            let known = try layouts(database)[collection.name] ?? 0
            guard known < collection.layout else { continue }
            if known > 0 { try remakeEntries(collection, database) }
            try database.execute(
                sql: "INSERT OR REPLACE INTO record_layouts (collection, layout) VALUES (?, ?)",
                arguments: [collection.name, Int64(collection.layout)])
        }
        for old in catalogue.imports where try database.tableExists(old.table) { try take(old, database) }
    }

    private static func remakeEntries(_ collection: any RecordCollectionDeclaration, _ database: Database) throws {
        try database.execute(sql: "DELETE FROM record_entries WHERE collection = ?", arguments: [collection.name])
        var token: RecordToken?
        repeat {
            let page = try page(RecordScan(collection.name, token: token), database)
            for record in page.records {
                let id = RecordID(collection.name, record.key)
                guard var head = try head(id, database) else { continue }
                (head.entries, head.isDamaged) = ([], false)
                var row = RecordBatchStateMachine.Row(head: head, body: record.body)
                row.head.entries = try collection.entries(record)
                try make(RecordBatchStateMachine.Change(id: id, before: head, after: row), database)
            }
            token = page.next
        } while token != nil
    }

    /// A row that is older than the existing record is skipped: a node of an earlier release wrote it in the meantime.
    private static func take(_ old: RecordImport, _ database: Database) throws {
        let rows = try Row.fetchAll(database, sql: "SELECT * FROM \(old.table.quotedDatabaseIdentifier)")
        let writes = try old.convert(rows.map { values(of: $0) })
        var memory = RecordHeadMemory()
        for start in stride(from: 0, to: writes.count, by: 1000) {
            let steps = writes[start..<min(start + 1000, writes.count)].map { RecordStep($0) }
            let made = try make(steps, hasRoom: true, &memory, database)
            memory.note(made.changes)
            for outcome in made.outcomes {
                if case .failure(let error) = outcome, error.code != .staleEpoch { throw error }
            }
        }
        try database.execute(sql: "DROP TABLE \(old.table.quotedDatabaseIdentifier)")
    }

    private static func values(of row: Row) -> [String: RecordImport.Value] {
        var values: [String: RecordImport.Value] = [:]
        for (column, value) in row {
            values[column] =
                switch value.storage {
                case .null, .double: .null
                case .int64(let number): .integer(number)
                case .string(let text): .text(text)
                case .blob(let data): .bytes([UInt8](data))
                }
        }
        return values
    }
}

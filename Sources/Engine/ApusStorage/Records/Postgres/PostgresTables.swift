import ApusCore
import ApusPQ

/// The tables of a PostgreSQL database for records. They correspond to ``RecordTables`` of a SQLite file.
enum PostgresTables {
    /// The lock under which tables are created. Without it two nodes that start at once would both create them.
    private static let openingLock = 0x4170_7573

    // MARK: Opening

    static func open(_ cluster: ClusterID, _ catalogue: RecordCatalogue, _ session: PostgresSession) throws {
        try session.run("BEGIN")
        try session.run("SELECT pg_advisory_xact_lock(\(openingLock))")
        for statement in tables { try session.run(statement) }
        let owner = try session.run("SELECT cluster FROM record_identity").rows.first?.first ?? nil
        if let owner {
            guard owner == cluster.rawValue else {
                throw ApusError(.stateForeign, "the records belong to the cluster \(owner), not to \(cluster)")
            }
        } else {
            try session.run("INSERT INTO record_identity (cluster) VALUES ($1)", [cluster.rawValue])
        }
        try adopt(catalogue, session)
        try session.run("COMMIT")
    }

    private static let tables = [
        "CREATE TABLE IF NOT EXISTS record_identity (cluster text NOT NULL)",
        """
        CREATE TABLE IF NOT EXISTS records (
            collection text COLLATE "C" NOT NULL, key bytea NOT NULL, version bigint NOT NULL, epoch bigint NOT NULL,
            writer text NOT NULL, entries bytea NOT NULL, body bytea, PRIMARY KEY (collection, key))
        """,
        """
        CREATE TABLE IF NOT EXISTS record_entries (
            collection text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, value bytea NOT NULL,
            key bytea NOT NULL, PRIMARY KEY (collection, name, value, key))
        """,
        """
        CREATE TABLE IF NOT EXISTS record_layouts (
            collection text COLLATE "C" PRIMARY KEY, layout bigint NOT NULL)
        """,
    ]

    /// Commits read the layouts within their transaction, so no commit runs in parallel to this.
    private static func adopt(_ catalogue: RecordCatalogue, _ session: PostgresSession) throws {
        let known = try layouts(session)
        let changed = catalogue.collections.filter { known[$0.name] ?? 0 < $0.layout }
        guard !changed.isEmpty else { return }
        try session.run("LOCK TABLE record_layouts IN ACCESS EXCLUSIVE MODE")
        for collection in changed {
            let layout = try layouts(session)[collection.name] ?? 0
            guard layout < collection.layout else { continue }
            if layout > 0 { try remakeEntries(collection, session) }
            try session.run(
                """
                INSERT INTO record_layouts (collection, layout) VALUES ($1, $2)
                ON CONFLICT (collection) DO UPDATE SET layout = excluded.layout
                """, [collection.name, "\(collection.layout)"])
        }
    }

    private static func remakeEntries(
        _ collection: any RecordCollectionDeclaration, _ session: PostgresSession
    ) throws {
        try session.run("DELETE FROM record_entries WHERE collection = $1", [collection.name])
        var token: RecordToken?
        repeat {
            let page = try page(RecordScan(collection.name, token: token), session)
            let ids = page.records.map { RecordID(collection.name, $0.key) }
            let heads = try heads(of: ids, session)
            var changes: [RecordBatchStateMachine.Change] = []
            for (record, id) in zip(page.records, ids) {
                guard var head = heads[id] else { continue }
                (head.entries, head.isDamaged) = ([], false)
                var row = RecordBatchStateMachine.Row(head: head, body: record.body)
                row.head.entries = try collection.entries(record)
                changes.append(RecordBatchStateMachine.Change(id: id, before: head, after: row))
            }
            try make(changes, session)
            token = page.next
        } while token != nil
    }

    // MARK: Writing

    static func make(_ steps: [RecordStep], _ session: PostgresSession) throws -> [GroupCommit.Outcome] {
        var ids: [RecordID] = []
        var seen: Set<RecordID> = []
        for step in steps {
            for write in step.writes where seen.insert(write.id).inserted { ids.append(write.id) }
        }
        let layouts = try layouts(session)
        let heads = try heads(of: ids, session)
        var machine = RecordBatchStateMachine(layouts: layouts, countMin: ids.count)
        let outcomes = steps.map { machine.apply($0) { heads[$0] } }
        try make(machine.changes, session)
        return outcomes
    }

    private static func make(_ changes: [RecordBatchStateMachine.Change], _ session: PostgresSession) throws {
        let removed = changes.flatMap { change in change.removedEntries.map { (change.id, $0) } }
        let added = changes.flatMap { change in change.addedEntries.map { (change.id, $0) } }
        try run(
            """
            DELETE FROM record_entries AS e
            USING unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[]) AS u (collection, name, value, key)
            WHERE e.collection = u.collection AND e.name = u.name AND e.value = u.value AND e.key = u.key
            """, entries: removed, session)
        try run(
            """
            INSERT INTO record_entries (collection, name, value, key)
            SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[]) ON CONFLICT DO NOTHING
            """, entries: added, session)
        try run(
            """
            INSERT INTO records (collection, key, version, epoch, writer, entries, body)
            SELECT * FROM unnest(
                $1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[], $7::bytea[])
            """, rows: changes.filter { $0.before == nil && $0.after != nil }, session)
        try run(
            """
            UPDATE records AS r SET version = u.version, epoch = u.epoch, writer = u.writer, entries = u.entries,
                body = u.body
            FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[], $7::bytea[])
                AS u (collection, key, version, epoch, writer, entries, body)
            WHERE r.collection = u.collection AND r.key = u.key
            """, rows: changes.filter { $0.before != nil && $0.after != nil }, session)
        let erased = changes.filter { $0.before != nil && $0.after == nil }.map(\.id)
        guard !erased.isEmpty else { return }
        let result = try session.run(
            """
            DELETE FROM records AS r USING unnest($1::text[], $2::bytea[]) AS u (collection, key)
            WHERE r.collection = u.collection AND r.key = u.key
            """, keys(erased))
        try check(result, erased.count)
    }

    private static func run(
        _ sql: String, entries: [(RecordID, RecordEntry)], _ session: PostgresSession
    ) throws {
        guard !entries.isEmpty else { return }
        try session.run(
            sql,
            [
                PostgresText.array(entries.map(\.0.collection)), PostgresText.array(entries.map(\.1.index)),
                PostgresText.array(entries.map { PostgresText.bytes($0.1.value.bytes) }),
                PostgresText.array(entries.map { PostgresText.bytes($0.0.key.bytes) }),
            ])
    }

    private static func run(
        _ sql: String, rows: [RecordBatchStateMachine.Change], _ session: PostgresSession
    ) throws {
        let after = rows.compactMap(\.after)
        guard !after.isEmpty else { return }
        let parameters: [String?] =
            keys(rows.map(\.id)) + [
                PostgresText.array(after.map { "\(Int64(bitPattern: $0.head.version))" }),
                PostgresText.array(after.map { "\($0.head.fence.epoch)" }),
                PostgresText.array(after.map(\.head.fence.writer)),
                PostgresText.array(after.map { PostgresText.bytes(RecordEntry.encode($0.head.entries)) }),
                PostgresText.array(after.map { $0.body.map { PostgresText.bytes($0) } }),
            ]
        try check(try session.run(sql, parameters), after.count)
    }

    private static func keys(_ ids: [RecordID]) -> [String?] {
        [
            PostgresText.array(ids.map(\.collection)),
            PostgresText.array(ids.map { PostgresText.bytes($0.key.bytes) }),
        ]
    }

    /// The rows were locked when they were read, so each must exist.
    private static func check(_ result: PostgresResult, _ count: Int) throws {
        guard result.changedCount == count else {
            throw ApusError(.storageFailed, "\(result.changedCount) of \(count) rows of a commit were written")
        }
    }

    // MARK: Reading

    private static func heads(
        of ids: [RecordID], _ session: PostgresSession
    ) throws -> [RecordID: RecordBatchStateMachine.Head] {
        let result = try session.run(
            """
            SELECT r.collection, r.key, r.version, r.epoch, r.writer, r.entries, r.body IS NULL,
                coalesce(octet_length(r.body), 0)
            FROM records AS r
            JOIN unnest($1::text[], $2::bytea[]) AS u (collection, key)
                ON r.collection = u.collection AND r.key = u.key
            ORDER BY r.collection, r.key FOR UPDATE OF r
            """, keys(ids))
        var heads: [RecordID: RecordBatchStateMachine.Head] = [:]
        for row in result.rows {
            let id = RecordID(try text(row, 0), OrderedKey(stored: try bytes(row, 1)))
            let entries = RecordEntry.decode(try bytes(row, 5))
            heads[id] = RecordBatchStateMachine.Head(
                version: UInt64(bitPattern: try number(row, 2)), fence: try fence(row, 3),
                isRemoved: try text(row, 6) == "t", entries: entries ?? [], byteCount: Int(try number(row, 7)),
                isDamaged: entries == nil)
        }
        return heads
    }

    private static func layouts(_ session: PostgresSession) throws -> [String: UInt32] {
        var layouts: [String: UInt32] = [:]
        for row in try session.run("SELECT collection, layout FROM record_layouts").rows {
            layouts[try text(row, 0)] = UInt32(truncatingIfNeeded: try number(row, 1))
        }
        return layouts
    }

    static func records(
        _ collection: String, _ keys: [OrderedKey], _ session: PostgresSession
    ) throws -> [StoredRecord?] {
        let result = try session.run(
            """
            SELECT key, version, epoch, writer, body FROM records
            WHERE collection = $1 AND key = ANY ($2::bytea[]) AND body IS NOT NULL
            """, [collection, PostgresText.array(keys.map { PostgresText.bytes($0.bytes) })])
        var found: [OrderedKey: StoredRecord] = [:]
        for row in result.rows {
            let record = try record(row)
            found[record.key] = record
        }
        return keys.map { found[$0] }
    }

    static func page(_ scan: RecordScan, _ session: PostgresSession) throws -> RecordPage {
        let below = PostgresText.bytes(scan.below?.bytes ?? [0xFF])
        let from = PostgresText.bytes(scan.token?.value.bytes ?? scan.from?.bytes ?? [])
        let key = PostgresText.bytes(scan.token?.key.bytes ?? [])
        let limit = "\(scan.countMax + 1)"
        if let index = scan.index {
            let result = try session.run(
                bounded(
                    """
                    SELECT r.key, r.version, r.epoch, r.writer, r.body, e.value
                    FROM record_entries AS e JOIN records AS r ON r.collection = e.collection AND r.key = e.key
                    WHERE e.collection = $1 AND e.name = $2 AND (e.value, e.key) > ($3::bytea, $4::bytea)
                        AND e.value < $5::bytea AND r.body IS NOT NULL
                    ORDER BY e.value, e.key LIMIT $6::bigint
                    """), [scan.collection, index, from, key, below, limit])
            return try page(result.rows, scan)
        }
        let result = try session.run(
            bounded(
                """
                SELECT key, version, epoch, writer, body, key AS value FROM records
                WHERE collection = $1 AND key >= $2::bytea AND key > $3::bytea AND key < $4::bytea
                    AND body IS NOT NULL
                ORDER BY key LIMIT $5::bigint
                """), [scan.collection, PostgresText.bytes(scan.from?.bytes ?? []), key, below, limit])
        return try page(result.rows, scan)
    }

    /// The rows up to the first that exceeds the bytes of a page, each with the total number of rows.
    private static func bounded(_ query: String) -> String {
        """
        SELECT key, version, epoch, writer, body, value, total FROM (
            SELECT *, count(*) OVER () AS total,
                sum(octet_length(body)) OVER (ORDER BY value, key) - octet_length(body) AS before FROM (\(query)) AS q
        ) AS p WHERE before <= \(RecordLimits.pageByteCountMax) ORDER BY value, key
        """
    }

    private static func page(_ rows: [[String?]], _ scan: RecordScan) throws -> RecordPage {
        let read = rows.prefix(scan.countMax)
        var page = RecordPage(records: [], next: nil)
        for row in read { page.records.append(try record(row)) }
        if let last = read.last, try number(last, 6) > page.records.count {
            page.next = RecordToken(
                value: OrderedKey(stored: try bytes(last, 5)), key: OrderedKey(stored: try bytes(last, 0)))
        }
        return page
    }

    private static func record(_ row: [String?]) throws -> StoredRecord {
        StoredRecord(
            key: OrderedKey(stored: try bytes(row, 0)), version: UInt64(bitPattern: try number(row, 1)),
            fence: try fence(row, 2), body: try bytes(row, 4))
    }

    private static func fence(_ row: [String?], _ index: Int) throws -> RecordFence {
        RecordFence(epoch: Epoch(truncatingIfNeeded: try number(row, index)), writer: try text(row, index + 1))
    }

    private static func text(_ row: [String?], _ index: Int) throws -> String {
        guard index < row.count, let text = row[index] else { throw unreadable }
        return text
    }

    private static func number(_ row: [String?], _ index: Int) throws -> Int64 {
        guard let number = Int64(try text(row, index)) else { throw unreadable }
        return number
    }

    private static func bytes(_ row: [String?], _ index: Int) throws -> [UInt8] {
        guard let bytes = PostgresText.bytes(from: try text(row, index)) else { throw unreadable }
        return bytes
    }

    private static var unreadable: ApusError { ApusError(.storageFailed, "a row of the records cannot be read") }
}

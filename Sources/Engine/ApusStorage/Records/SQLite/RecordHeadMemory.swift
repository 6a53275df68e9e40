import GRDB

/// A cache of the heads of recently written records, so that a commit need not read them.
///
/// It holds what the last transaction of this connection read and wrote. SQLite reports whether another connection has
/// committed since (`PRAGMA data_version`); then the cache is cleared. It is effective if one process writes, and costs
/// one query if several do.
struct RecordHeadMemory {
    /// The most cached records. When another is added, all are dropped.
    static let countMax = 16_384

    /// A nil head: there is no such record.
    private var heads: [RecordID: RecordBatchStateMachine.Head?] = [:]
    private var layouts: [String: UInt32]?
    private var dataVersion: Int64?

    /// A transaction begins. Clears the cache if another connection has committed since the last one.
    mutating func begin(_ database: Database) throws {
        let now = try Int64.fetchOne(database.cachedStatement(sql: "PRAGMA data_version"))
        if now == nil || now != dataVersion { forget() }
        dataVersion = now
    }

    /// The record's head; `read` is called if it is not cached.
    mutating func head(
        _ id: RecordID, read: () throws -> RecordBatchStateMachine.Head?
    ) rethrows -> RecordBatchStateMachine.Head? {
        if let known = heads[id] { return known }
        if heads.count >= Self.countMax { heads = [:] }
        let found = try read()
        heads.updateValue(found, forKey: id)
        return found
    }

    mutating func layouts(read: () throws -> [String: UInt32]) rethrows -> [String: UInt32] {
        if let layouts { return layouts }
        let found = try read()
        layouts = found
        return found
    }

    /// The transaction with these changes was committed.
    mutating func note(_ changes: [RecordBatchStateMachine.Change]) {
        for change in changes { heads.updateValue(change.after?.head, forKey: change.id) }
    }

    /// A transaction was not committed, or its outcome is unknown.
    mutating func forget() {
        heads = [:]
        layouts = nil
        dataVersion = nil
    }
}

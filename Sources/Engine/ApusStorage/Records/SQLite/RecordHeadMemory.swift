import GRDB

/// What is known of the records that were written last, so that a commit need not look for them.
///
/// It holds what the last transaction of this connection saw and made. SQLite says whether another connection has
/// committed since (`PRAGMA data_version`): then all is forgotten. So it is of use where one process writes, and costs
/// one look where several do.
struct RecordHeadMemory {
    /// Records that are remembered; where one more comes, all are forgotten.
    static let countMax = 16_384

    /// A nil head: there is no such record.
    private var heads: [RecordID: RecordBatchStateMachine.Head?] = [:]
    private var layouts: [String: UInt32]?
    private var dataVersion: Int64?

    /// A transaction begins: forgets what another connection may have changed since the last one.
    mutating func begin(_ database: Database) throws {
        let now = try Int64.fetchOne(database.cachedStatement(sql: "PRAGMA data_version"))
        if now == nil || now != dataVersion { forget() }
        dataVersion = now
    }

    /// The record's head, which `read` reads where it is not remembered.
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

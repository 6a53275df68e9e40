import ApusCore

/// Decides the writes of one commit: which steps are made, and what the rows and entries are afterwards.
///
/// A store hands in the heads of all records that the steps touch, as they are in the transaction, then the steps in
/// their order, and writes ``changes``. A step is judged whole before anything of it counts, so a refused one leaves
/// nothing, and the transaction needs no savepoints. Each step sees those before it. A record that several steps write
/// is written once.
///
/// All stores decide by this machine, so they agree. Pure.
struct RecordBatchStateMachine {
    /// A record without its body.
    struct Head: Equatable, Sendable {
        var version: UInt64
        var fence: RecordFence
        var isRemoved: Bool
        var entries: [RecordEntry]
        /// Of its body.
        var byteCount = 0
    }

    /// A record as it is to be stored; the body is nil where it is removed.
    struct Row: Equatable, Sendable {
        var head: Head
        var body: [UInt8]?
    }

    /// What a record was and is to be; nil: there is none.
    struct Change: Equatable, Sendable {
        var id: RecordID
        var before: Head?
        var after: Row?

        /// Entries that are to go.
        var removedEntries: [RecordEntry] {
            guard let before, before.entries != after?.head.entries else { return [] }
            let kept = Set(after?.head.entries ?? [])
            return before.entries.filter { !kept.contains($0) }
        }

        /// Entries that are to come.
        var addedEntries: [RecordEntry] {
            guard let after, after.head.entries != before?.entries else { return [] }
            let known = Set(before?.entries ?? [])
            return after.head.entries.filter { !known.contains($0) }
        }
    }

    private let heads: [RecordID: Head]
    /// By collection, the newest layout that its indexes were made by.
    private let layouts: [String: UInt32]
    /// Records of clients may grow.
    private let hasRoom: Bool
    /// Records that were written, in the order of their first write.
    private var order: [RecordID] = []
    private var rows: [RecordID: Row?] = [:]

    init(heads: [RecordID: Head], layouts: [String: UInt32] = [:], hasRoom: Bool = true) {
        self.heads = heads
        self.layouts = layouts
        self.hasRoom = hasRoom
    }

    /// What is to be written, in the order of the first write of each record.
    var changes: [Change] {
        order.map { Change(id: $0, before: heads[$0], after: rows[$0] ?? nil) }
    }

    /// Makes the step whole, and answers the new versions of its writes, or makes nothing of it.
    mutating func apply(_ step: RecordStep) -> Result<[UInt64], ApusError> {
        let orderCount = order.count
        var replaced: [(id: RecordID, row: Row??)] = []
        var versions: [UInt64] = []
        for write in step.writes {
            if let refusal = refusal(of: write) {
                for (id, row) in replaced.reversed() { rows[id] = row }
                order.removeLast(order.count - orderCount)
                return .failure(refusal)
            }
            if case .check = write.change {
                versions.append(head(write.id)?.version ?? 0)
                continue
            }
            replaced.append((write.id, rows[write.id]))
            versions.append(make(write))
        }
        return .success(versions)
    }

    private func head(_ id: RecordID) -> Head? {
        if let row = rows[id] { return row?.head }
        return heads[id]
    }

    private func refusal(of write: RecordWrite) -> ApusError? {
        let head = head(write.id)
        if let head, !write.fence.mayReplace(head.fence) {
            return ApusError(
                .staleEpoch, "the record \(write.id) was written under \(head.fence), not \(write.fence)")
        }
        if case .put(_, let layout, _) = write.change, layout < layouts[write.id.collection] ?? 0 {
            return ApusError(
                .versionUnsupported, "the collection \(write.id.collection) is written by a newer release")
        }
        if case .put(let body, _, _) = write.change, !hasRoom, !write.usesReserve, body.count > head?.byteCount ?? 0 {
            return ApusError(.overloaded, "the record store is nearly full; nothing in it may grow")
        }
        let isHeld =
            switch write.condition {
            case .any: true
            case .absent: head?.isRemoved ?? true
            case .version(let version): head.map { !$0.isRemoved && $0.version == version } ?? false
            }
        guard !isHeld else { return nil }
        let found = head.map { $0.isRemoved ? "it was removed" : "it has version \($0.version)" } ?? "there is none"
        return ApusError(.versionConflict, "the record \(write.id) is not as expected: \(found)")
    }

    private mutating func make(_ write: RecordWrite) -> UInt64 {
        let head = head(write.id)
        if rows[write.id] == nil { order.append(write.id) }
        let version = (head?.version ?? 0) + 1
        switch write.change {
        case .put(let body, _, let entries):
            let new = Head(
                version: version, fence: write.fence, isRemoved: false, entries: Self.unique(entries),
                byteCount: body.count)
            rows.updateValue(Row(head: new, body: body), forKey: write.id)
            return version
        case .remove:
            let new = Head(version: version, fence: write.fence, isRemoved: true, entries: [])
            rows.updateValue(Row(head: new, body: nil), forKey: write.id)
            return version
        case .erase:
            rows.updateValue(nil, forKey: write.id)
            return 0
        case .check: preconditionFailure("a check of \(write.id) writes nothing")
        }
    }

    private static func unique(_ entries: [RecordEntry]) -> [RecordEntry] {
        guard entries.count > 1 else { return entries }
        var seen: Set<RecordEntry> = []
        return entries.filter { seen.insert($0).inserted }
    }
}

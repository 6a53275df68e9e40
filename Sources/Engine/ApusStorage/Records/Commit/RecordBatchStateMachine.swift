package import ApusCore

extension ApusError {
    /// A write was refused because the record store has no room for it. ``isRecordStoreFull`` tells it from 10007 for
    /// other reasons.
    package static let recordStoreFull = ApusError(
        .overloaded, "the record store is nearly full; nothing in it may grow")

    /// True for ``recordStoreFull``.
    package var isRecordStoreFull: Bool { code == .overloaded && message == Self.recordStoreFull.message }
}

/// Decides the writes of one commit: which steps are made, and the resulting rows and entries.
///
/// A store passes the steps in their order, with a function that reads the heads of records in the transaction, and
/// then writes ``changes``. A step is checked as a whole before any part of it counts. A refused step therefore leaves
/// nothing, and the transaction needs no savepoints. Each step sees those before it. A record that several steps write
/// is written once.
///
/// All stores use this machine, so they agree. Pure value.
struct RecordBatchStateMachine {
    /// A record without its body.
    struct Head: Equatable, Sendable {
        var version: UInt64
        var fence: RecordFence
        var isRemoved: Bool
        var entries: [RecordEntry]
        /// The size of its body.
        var byteCount = 0
        /// The row's entries cannot be read. Steps that use the record are refused: its old entries would stay.
        var isDamaged = false
    }

    /// A record to store. The body is nil if the record is removed.
    struct Row: Equatable, Sendable {
        var head: Head
        var body: [UInt8]?
    }

    /// A record before and after; nil stands for no record.
    struct Change: Equatable, Sendable {
        var id: RecordID
        var before: Head?
        var after: Row?

        /// Entries to remove.
        var removedEntries: [RecordEntry] {
            guard let before, before.entries != after?.head.entries else { return [] }
            let kept = Set(after?.head.entries ?? [])
            return before.entries.filter { !kept.contains($0) }
        }

        /// Entries to add.
        var addedEntries: [RecordEntry] {
            guard let after, after.head.entries != before?.entries else { return [] }
            let known = Set(before?.entries ?? [])
            return after.head.entries.filter { !known.contains($0) }
        }
    }

    /// A record that a step uses.
    private struct Slot {
        var id: RecordID
        var before: Head?
        /// The record after the steps so far, if one of them writes it.
        var written: Row??

        var head: Head? { if let written { written?.head } else { before } }
    }

    /// By collection, the newest layout of its indexes.
    private let layouts: [String: UInt32]
    /// True if client records may grow.
    private let hasRoom: Bool
    /// Each record is looked up once for each write. Everything else uses its index in `slots`.
    private var indexes: [RecordID: Int] = [:]
    private var slots: [Slot] = []
    /// The slots of records that were written, in the order of their first write.
    private var order: [Int] = []

    init(layouts: [String: UInt32] = [:], hasRoom: Bool = true, countMin: Int = 0) {
        self.layouts = layouts
        self.hasRoom = hasRoom
        indexes.reserveCapacity(countMin)
        slots.reserveCapacity(countMin)
    }

    /// The changes to write, in the order of the first write of each record.
    var changes: [Change] {
        order.map { Change(id: slots[$0].id, before: slots[$0].before, after: slots[$0].written ?? nil) }
    }

    /// Applies a step as a whole and returns the new versions of its writes, or applies nothing and returns the error.
    ///
    /// - Parameter head: Reads a record in the transaction, nil if there is none. Called once for each record.
    mutating func apply(
        _ step: RecordStep, head: (RecordID) throws -> Head?
    ) rethrows -> Result<[UInt64], ApusError> {
        let orderCount = order.count
        var replaced: [(slot: Int, written: Row??)] = []
        var versions: [UInt64] = []
        versions.reserveCapacity(step.writes.count)
        for write in step.writes {
            let slot = try slot(of: write.id, head)
            let head = slots[slot].head
            if let refusal = refusal(of: write, head) {
                for (slot, written) in replaced.reversed() { slots[slot].written = written }
                order.removeLast(order.count - orderCount)
                return .failure(refusal)
            }
            if case .check = write.change {
                versions.append(head?.version ?? 0)
                continue
            }
            let written = slots[slot].written
            replaced.append((slot, written))
            if written == nil { order.append(slot) }
            let row = Self.row(write, after: head)
            slots[slot].written = .some(row)
            versions.append(row?.head.version ?? 0)
        }
        return .success(versions)
    }

    private mutating func slot(of id: RecordID, _ head: (RecordID) throws -> Head?) rethrows -> Int {
        if let known = indexes[id] { return known }
        slots.append(Slot(id: id, before: try head(id)))
        indexes[id] = slots.count - 1
        return slots.count - 1
    }

    private func refusal(of write: RecordWrite, _ head: Head?) -> ApusError? {
        if let head, head.isDamaged {
            return ApusError(.stateForeign, "the entries of the record \(write.id) cannot be read: it is damaged")
        }
        if let head, !write.fence.mayReplace(head.fence) {
            return ApusError(
                .staleEpoch, "the record \(write.id) was written under \(head.fence), not \(write.fence)")
        }
        if case .put(_, let layout, _) = write.change, layout < layouts[write.id.collection] ?? 0 {
            return ApusError(
                .versionUnsupported, "the collection \(write.id.collection) is written by a newer release")
        }
        if case .put(let body, _, _) = write.change, !hasRoom, !write.usesReserve, body.count > head?.byteCount ?? 0 {
            return .recordStoreFull
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

    /// The row after the write; nil if the record no longer exists.
    private static func row(_ write: RecordWrite, after head: Head?) -> Row? {
        let version = (head?.version ?? 0) + 1
        switch write.change {
        case .put(let body, _, let entries):
            let new = Head(
                version: version, fence: write.fence, isRemoved: false, entries: unique(entries), byteCount: body.count)
            return Row(head: new, body: body)
        case .remove:
            return Row(
                head: Head(version: version, fence: write.fence, isRemoved: true, entries: []), body: nil)
        case .erase: return nil
        case .check: preconditionFailure("a check of \(write.id) writes nothing")
        }
    }

    private static func unique(_ entries: [RecordEntry]) -> [RecordEntry] {
        guard entries.count > 1 else { return entries }
        var seen: Set<RecordEntry> = []
        return entries.filter { seen.insert($0).inserted }
    }
}

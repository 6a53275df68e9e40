package import ApusCore

/// Who writes a record: the epoch of the shard that owns it, and which owner.
///
/// A record remembers the fence of its last write, a removed one too. A write under a lower epoch is refused, and so is
/// one under the same epoch by another writer: an epoch that was given twice never has two writers.
package struct RecordFence: Sendable, Hashable, CustomStringConvertible {
    package var epoch: Epoch
    /// The node and its incarnation; empty where the writer is unknown, which is equal to every writer. At most
    /// ``RecordLimits/writerByteCountMax`` bytes.
    package var writer: String

    package init(epoch: Epoch, writer: String) {
        self.epoch = epoch
        self.writer = writer
    }

    /// For collections that no shard owns: below every other fence.
    package static let none = Self(epoch: 0, writer: "")

    package var description: String { writer.isEmpty ? "epoch \(epoch)" : "epoch \(epoch) of \(writer)" }

    /// A write under this fence may replace one under `stored`.
    func mayReplace(_ stored: Self) -> Bool {
        guard epoch == stored.epoch else { return epoch > stored.epoch }
        return writer == stored.writer || writer.isEmpty || stored.writer.isEmpty
    }
}

/// What must be true of a record for a write to be made.
package enum RecordCondition: Sendable, Hashable {
    case any
    /// There is no record, or it was removed.
    case absent
    /// The record has this version.
    case version(UInt64)
}

/// Where a record stands: its collection and its key.
package struct RecordID: Sendable, Hashable, CustomStringConvertible {
    package var collection: String
    package var key: OrderedKey

    package init(_ collection: String, _ key: OrderedKey) {
        self.collection = collection
        self.key = key
    }

    package var description: String { "\(collection)/\(key)" }
}

/// One write of a step. ``RecordCollection`` makes them.
package struct RecordWrite: Sendable {
    package enum Change: Sendable {
        /// The body, the layout of the collection that its entries were made by, and the entries.
        case put(body: [UInt8], layout: UInt32, entries: [RecordEntry])
        /// The body and the entries go; the fence and the version stay.
        case remove
        /// All goes, the fence too: for what nobody can write again under an older epoch.
        case erase
        /// Nothing changes, and the version that is answered is the record's, 0 if there is none: the step is made
        /// only where the fence and the condition hold.
        case check
    }

    package var id: RecordID
    package var change: Change
    package var fence: RecordFence
    package var condition: RecordCondition
    /// It may use the part of the store that is kept for operators.
    package var usesReserve: Bool

    package init(
        _ id: RecordID, _ change: Change, fence: RecordFence, condition: RecordCondition, usesReserve: Bool = false
    ) {
        self.id = id
        self.change = change
        self.fence = fence
        self.condition = condition
        self.usesReserve = usesReserve
    }

    /// What it takes while it waits, in bytes.
    var byteCount: Int {
        let fixed = 128 + id.collection.utf8.count + id.key.bytes.count + fence.writer.utf8.count
        guard case .put(let body, _, let entries) = change else { return fixed }
        return entries.reduce(fixed + body.count) { $0 + 32 + $1.index.utf8.count + $1.value.bytes.count }
    }
}

/// Writes that are made together or not at all, in their order: each sees those before it.
package struct RecordStep: Sendable {
    package var writes: [RecordWrite]

    package init(_ writes: [RecordWrite]) { self.writes = writes }
    package init(_ writes: RecordWrite...) { self.writes = writes }

    var byteCount: Int { writes.reduce(64) { $0 + $1.byteCount } }

    /// Why no store takes it: 10002 if a bound is exceeded, 21031 if a name is none.
    func refusal(_ limits: RecordStoreLimits) -> ApusError? {
        do throws(ApusError) {
            try check(limits)
            return nil
        } catch {
            return error
        }
    }

    private func check(_ limits: RecordStoreLimits) throws(ApusError) {
        guard !writes.isEmpty else { throw ApusError(.badParameter, "a step has no write") }
        guard writes.count <= RecordLimits.writeCountMax else {
            throw ApusError(.frameTooLarge, "a step has \(writes.count) writes; too many")
        }
        for write in writes { try Self.check(write, limits) }
    }

    private static func check(_ write: RecordWrite, _ limits: RecordStoreLimits) throws(ApusError) {
        try checkName(write.id.collection)
        try checkKey(write.id.key, of: write.id)
        guard write.fence.writer.utf8.count <= RecordLimits.writerByteCountMax else {
            throw ApusError(.frameTooLarge, "the writer of \(write.id) has too long a name")
        }
        guard case .put(let body, _, let entries) = write.change else { return }
        guard body.count <= limits.bodyByteCountMax else {
            throw ApusError(
                .frameTooLarge, "the record \(write.id) has \(body.count) bytes, over \(limits.bodyByteCountMax)")
        }
        guard entries.count <= RecordLimits.entryCountMax else {
            throw ApusError(.frameTooLarge, "the record \(write.id) has \(entries.count) entries in indexes")
        }
        for entry in entries {
            try checkName(entry.index)
            try checkKey(entry.value, of: write.id)
        }
    }

    static func checkKey(_ key: OrderedKey, of id: RecordID) throws(ApusError) {
        guard key.bytes.count <= RecordLimits.keyByteCountMax, !key.bytes.isEmpty else {
            throw ApusError(.frameTooLarge, "a key of \(id.collection) has \(key.bytes.count) bytes")
        }
    }

    static func checkName(_ name: String) throws(ApusError) {
        guard !name.isEmpty, name.utf8.count <= RecordLimits.nameByteCountMax else {
            throw ApusError(.badParameter, "'\(name)' is no name of a collection or an index")
        }
    }
}

package import ApusCore

/// The writer of a record: the epoch of the shard that owns the record, and the owner.
///
/// A record stores the fence of its last write, even after its removal. A write under a lower epoch is refused. So is a
/// write under the same epoch by another writer, so an epoch that was assigned twice never has two writers.
package struct RecordFence: Sendable, Hashable, CustomStringConvertible {
    package var epoch: Epoch
    /// The node and its incarnation. Empty if the writer is unknown, which matches every writer. At most
    /// ``RecordLimits/writerByteCountMax`` bytes.
    package var writer: String

    package init(epoch: Epoch, writer: String) {
        self.epoch = epoch
        self.writer = writer
    }

    /// For collections that belong to no shard. Lower than every other fence.
    package static let none = Self(epoch: 0, writer: "")

    package var description: String { writer.isEmpty ? "epoch \(epoch)" : "epoch \(epoch) of \(writer)" }

    /// True if a write under this fence may replace one under `stored`.
    func mayReplace(_ stored: Self) -> Bool {
        guard epoch == stored.epoch else { return epoch > stored.epoch }
        return writer == stored.writer || writer.isEmpty || stored.writer.isEmpty
    }
}

/// The condition of a write.
package enum RecordCondition: Sendable, Hashable {
    case any
    /// There is no record, or it was removed.
    case absent
    /// The record has this version.
    case version(UInt64)
}

/// Identifies a record: its collection and its key.
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
        /// The body, its entries, and the layout of the collection that the entries follow.
        case put(body: [UInt8], layout: UInt32, entries: [RecordEntry])
        /// Removes the body and the entries. The fence and the version stay.
        case remove
        /// Removes everything including the fence. Only for records that cannot be written again under an older epoch.
        case erase
        /// Changes nothing, and returns the record's version, 0 if there is none. The step is made only if the fence
        /// and the condition hold.
        case check
    }

    package var id: RecordID
    package var change: Change
    package var fence: RecordFence
    package var condition: RecordCondition
    /// True if it may use the part of the store that is reserved for operators.
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

    /// Its size while it waits, in bytes.
    var byteCount: Int {
        let fixed = 128 + id.collection.utf8.count + id.key.bytes.count + fence.writer.utf8.count
        guard case .put(let body, _, let entries) = change else { return fixed }
        return entries.reduce(fixed + body.count) { $0 + 32 + $1.index.utf8.count + $1.value.bytes.count }
    }
}

/// Writes that are applied together or not at all, in order. Each sees those before it.
package struct RecordStep: Sendable {
    package var writes: [RecordWrite]

    package init(_ writes: [RecordWrite]) { self.writes = writes }
    package init(_ writes: RecordWrite...) { self.writes = writes }

    var byteCount: Int { writes.reduce(64) { $0 + $1.byteCount } }

    /// The reason for which every store refuses the step: 10002 if a limit is exceeded, 21031 if a name is invalid; nil
    /// if there is none.
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
            throw ApusError(.badParameter, "'\(name)' is not a valid name of a collection or an index")
        }
    }
}

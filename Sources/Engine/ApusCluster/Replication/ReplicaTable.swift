package import NIOCore

/// The states of a shard's entities by key, with a stable order for walks: an entity keeps its slot as long as it
/// exists.
///
/// A value. Look-ups, changes and the move from a copy to an owner take constant time.
package struct ReplicaTable: Sendable {
    /// What an entity counts in addition to its key and state, in bytes.
    static let overhead = 96

    private var slots: [ReplicaRecord?] = []
    private var free: [Int] = []
    private var index: [ReplicaKey: Int] = [:]
    /// Bytes of keys and states, plus ``overhead`` for each entity.
    package private(set) var byteCount = 0

    package init() {}

    package var count: Int { index.count }
    package var isEmpty: Bool { index.isEmpty }
    /// All slots are below this.
    package var slotCount: Int { slots.count }

    package subscript(slot slot: Int) -> ReplicaRecord? { slots[slot] }

    package subscript(key: ReplicaKey) -> ByteBuffer? { index[key].flatMap { slots[$0]?.state } }

    /// Every entity with its state, in the order of the slots.
    package var records: [ReplicaRecord] { slots.compactMap { $0 } }

    /// The entities from a slot on, in the order of the slots, and the slot of the next page; nil at the end.
    ///
    /// The table may change between two pages. An entity that exists throughout is in exactly one of them.
    package func page(from slot: Int, countMax: Int) -> (records: [ReplicaRecord], next: Int?) {
        var found: [ReplicaRecord] = []
        var slot = max(0, slot)
        while slot < slots.count, found.count < countMax {
            if let record = slots[slot] { found.append(record) }
            slot += 1
        }
        return (found, slot < slots.count ? slot : nil)
    }

    /// The entity's share of ``byteCount``; 0 if it does not exist.
    package func byteCount(of key: ReplicaKey) -> Int {
        index[key].flatMap { slots[$0] }.map(Self.byteCount(of:)) ?? 0
    }

    /// Applies a change. Returns its slot; nil for the removal of a missing entity.
    @discardableResult
    package mutating func apply(_ record: ReplicaRecord) -> Int? {
        guard record.state != nil else { return remove(record.key) }
        let slot: Int
        if let known = index[record.key] {
            slot = known
            byteCount -= slots[slot].map(Self.byteCount(of:)) ?? 0
        } else {
            slot = free.popLast() ?? slots.count
            if slot == slots.count { slots.append(nil) }
            index[record.key] = slot
        }
        slots[slot] = record
        byteCount += Self.byteCount(of: record)
        return slot
    }

    private mutating func remove(_ key: ReplicaKey) -> Int? {
        guard let slot = index.removeValue(forKey: key) else { return nil }
        byteCount -= slots[slot].map(Self.byteCount(of:)) ?? 0
        slots[slot] = nil
        free.append(slot)
        return slot
    }

    static func byteCount(of record: ReplicaRecord) -> Int {
        overhead + record.key.key.utf8.count + (record.state?.readableBytes ?? 0)
    }
}

package import ApusCore

/// The records of a ``MemoryRecordStore`` with their indexes, by the rules of ``RecordStore``.
///
/// A value, so that a simulation can use it as a store.
package struct MemoryRecordTables: Sendable {
    fileprivate typealias Row = RecordBatchStateMachine.Row

    /// An entry of an index, or a key, and the key of its record.
    fileprivate struct Place: Comparable {
        var value: OrderedKey
        var key: OrderedKey

        static func < (left: Self, right: Self) -> Bool { (left.value, left.key) < (right.value, right.key) }
    }

    fileprivate struct Index: Hashable {
        var collection: String
        /// Nil stands for the order of the keys.
        var name: String?
    }

    private let limits: RecordStoreLimits
    private var rows: [RecordID: Row] = [:]
    private var layouts: [String: UInt32] = [:]
    /// Sorted.
    private var places: [Index: [Place]] = [:]

    package init(limits: RecordStoreLimits = RecordStoreLimits()) { self.limits = limits }

    /// Applies the step as a whole and returns the new versions of its writes, or applies nothing.
    package mutating func commit(_ step: RecordStep) -> Result<[UInt64], ApusError> {
        if let refusal = step.refusal(limits) { return .failure(refusal) }
        var machine = RecordBatchStateMachine(layouts: layouts)
        let outcome = machine.apply(step) { rows[$0]?.head }
        for change in machine.changes { make(change) }
        for write in step.writes {
            guard case .success = outcome, case .put(_, let layout, _) = write.change else { continue }
            layouts[write.id.collection] = max(layout, layouts[write.id.collection] ?? 0)
        }
        return outcome
    }

    /// The record; nil if there is none.
    package func record(_ id: RecordID) -> StoredRecord? {
        guard let row = rows[id], let body = row.body else { return nil }
        return StoredRecord(key: id.key, version: row.head.version, fence: row.head.fence, body: body)
    }

    /// One page of a collection, as ``RecordStore/page(_:)``.
    package func page(_ scan: RecordScan) -> RecordPage {
        let places = places[Index(collection: scan.collection, name: scan.index)] ?? []
        let lower =
            scan.token.map { Place(value: $0.value, key: $0.key) }
            ?? Place(value: scan.from ?? OrderedKey(), key: OrderedKey())
        var index = places.partitioningIndex { $0 > lower }
        var page = RecordPage(records: [], next: nil)
        var byteCount = 0
        while index < places.count {
            let place = places[index]
            if let below = scan.below, place.value >= below { break }
            if page.records.count >= scan.countMax
                || byteCount > RecordLimits.pageByteCountMax
            {
                let last = places[index - 1]
                page.next = RecordToken(value: last.value, key: last.key)
                break
            }
            if let record = record(RecordID(scan.collection, place.key)) {
                page.records.append(record)
                byteCount += record.body.count
            }
            index += 1
        }
        return page
    }

    /// Every entry of an index with its record's key, in order, whether the record exists or not.
    package func entries(of collection: String, by index: String) -> [RecordToken] {
        (places[Index(collection: collection, name: index)] ?? []).map { RecordToken(value: $0.value, key: $0.key) }
    }

    private mutating func make(_ change: RecordBatchStateMachine.Change) {
        let (id, collection) = (change.id, change.id.collection)
        for entry in change.removedEntries { remove(entry.index, Place(value: entry.value, key: id.key), collection) }
        for entry in change.addedEntries { insert(entry.index, Place(value: entry.value, key: id.key), collection) }
        let wasThere = rows[id]?.body != nil
        let isThere = change.after?.body != nil
        rows[id] = change.after
        // In the order of the keys, a record's entry is its key.
        let place = Place(value: id.key, key: id.key)
        if isThere && !wasThere { insert(nil, place, collection) }
        if wasThere && !isThere { remove(nil, place, collection) }
    }

    private mutating func insert(_ name: String?, _ place: Place, _ collection: String) {
        let index = Index(collection: collection, name: name)
        var sorted = places.removeValue(forKey: index) ?? []
        sorted.insert(place, at: sorted.partitioningIndex { $0 >= place })
        places[index] = sorted
    }

    private mutating func remove(_ name: String?, _ place: Place, _ collection: String) {
        let index = Index(collection: collection, name: name)
        var sorted = places.removeValue(forKey: index) ?? []
        let at = sorted.partitioningIndex { $0 >= place }
        if at < sorted.count, sorted[at] == place { sorted.remove(at: at) }
        places[index] = sorted
    }
}

extension Array {
    /// The first index whose element is in the second part, and so are all after it.
    fileprivate func partitioningIndex(_ isInSecondPart: (Element) -> Bool) -> Int {
        var (low, high) = (0, count)
        while low < high {
            let middle = low + (high - low) / 2
            if isInSecondPart(self[middle]) { high = middle } else { low = middle + 1 }
        }
        return low
    }
}

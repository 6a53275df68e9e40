package import ApusCore
import Synchronization

/// Records in memory, for tests and for nodes that keep nothing; lost with the process.
///
/// Concurrency model: the tables sit behind a `Mutex`; a step is one turn of it.
package final class MemoryRecordStore: RecordStore {
    fileprivate typealias Row = RecordBatchStateMachine.Row

    /// Where an entry of an index, or a key, leads.
    fileprivate struct Place: Comparable {
        var value: OrderedKey
        var key: OrderedKey

        static func < (left: Self, right: Self) -> Bool { (left.value, left.key) < (right.value, right.key) }
    }

    fileprivate struct Index: Hashable {
        var collection: String
        /// Nil: the order of the keys.
        var name: String?
    }

    fileprivate struct State {
        var rows: [RecordID: Row] = [:]
        var layouts: [String: UInt32] = [:]
        /// Sorted.
        var places: [Index: [Place]] = [:]
        var isClosed = false
    }

    private let limits: RecordStoreLimits
    private let state = Mutex(State())

    package init(limits: RecordStoreLimits = RecordStoreLimits()) { self.limits = limits }

    package func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        let outcomes = state.withLock { state in
            var outcomes: [Result<[UInt64], ApusError>] = []
            for step in steps {
                guard !state.isClosed else {
                    outcomes.append(.failure(Self.closed))
                    continue
                }
                if let refusal = step.refusal(limits) {
                    outcomes.append(.failure(refusal))
                } else {
                    outcomes.append(state.make(step))
                }
            }
            return outcomes
        }
        completion(outcomes)
    }

    package func records(
        _ collection: String, _ keys: [OrderedKey]
    ) async throws(ApusError) -> [StoredRecord?] {
        guard keys.count <= RecordLimits.pageCountMax else { throw ApusError(.badParameter, "too many keys") }
        let found: [StoredRecord?]? = state.withLock { state in
            guard !state.isClosed else { return nil }
            var found: [StoredRecord?] = []
            for key in keys { found.append(state.record(RecordID(collection, key))) }
            return found
        }
        guard let found else { throw Self.closed }
        return found
    }

    package func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage {
        let page = state.withLock { $0.isClosed ? nil : $0.page(scan) }
        guard let page else { throw Self.closed }
        return page
    }

    package func lockHolder() async -> RecordLockHolder? { nil }

    package func close() async { state.withLock { $0.isClosed = true } }

    private static var closed: ApusError { ApusError(.storageFailed, "the record store was closed") }
}

extension MemoryRecordStore.State {
    mutating func make(_ step: RecordStep) -> Result<[UInt64], ApusError> {
        var machine = RecordBatchStateMachine(layouts: layouts)
        let outcome = machine.apply(step) { rows[$0]?.head }
        for change in machine.changes { make(change) }
        for write in step.writes {
            guard case .success = outcome, case .put(_, let layout, _) = write.change else { continue }
            layouts[write.id.collection] = max(layout, layouts[write.id.collection] ?? 0)
        }
        return outcome
    }

    func record(_ id: RecordID) -> StoredRecord? {
        guard let row = rows[id], let body = row.body else { return nil }
        return StoredRecord(key: id.key, version: row.head.version, fence: row.head.fence, body: body)
    }

    func page(_ scan: RecordScan) -> RecordPage {
        let places = places[MemoryRecordStore.Index(collection: scan.collection, name: scan.index)] ?? []
        let lower =
            scan.token.map { MemoryRecordStore.Place(value: $0.value, key: $0.key) }
            ?? MemoryRecordStore.Place(value: scan.from ?? OrderedKey(), key: OrderedKey())
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

    private mutating func make(_ change: RecordBatchStateMachine.Change) {
        let (id, collection) = (change.id, change.id.collection)
        for entry in change.removedEntries { remove(entry.index, Place(value: entry.value, key: id.key), collection) }
        for entry in change.addedEntries { insert(entry.index, Place(value: entry.value, key: id.key), collection) }
        let wasThere = rows[id]?.body != nil
        let isThere = change.after?.body != nil
        rows[id] = change.after
        // In the order of the keys a record's entry is its key.
        let place = Place(value: id.key, key: id.key)
        if isThere && !wasThere { insert(nil, place, collection) }
        if wasThere && !isThere { remove(nil, place, collection) }
    }

    fileprivate typealias Place = MemoryRecordStore.Place

    private mutating func insert(_ name: String?, _ place: Place, _ collection: String) {
        let index = MemoryRecordStore.Index(collection: collection, name: name)
        var sorted = places.removeValue(forKey: index) ?? []
        sorted.insert(place, at: sorted.partitioningIndex { $0 >= place })
        places[index] = sorted
    }

    private mutating func remove(_ name: String?, _ place: Place, _ collection: String) {
        let index = MemoryRecordStore.Index(collection: collection, name: name)
        var sorted = places.removeValue(forKey: index) ?? []
        let at = sorted.partitioningIndex { $0 >= place }
        if at < sorted.count, sorted[at] == place { sorted.remove(at: at) }
        places[index] = sorted
    }
}

extension Array {
    /// The first index from which on all elements are in the second part; the array is sorted by that.
    fileprivate func partitioningIndex(_ isInSecondPart: (Element) -> Bool) -> Int {
        var (low, high) = (0, count)
        while low < high {
            let middle = low + (high - low) / 2
            if isInSecondPart(self[middle]) { high = middle } else { low = middle + 1 }
        }
        return low
    }
}

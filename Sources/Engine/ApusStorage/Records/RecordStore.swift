package import ApusCore

/// A record as a store keeps it: its body is bytes that only its service reads.
package struct StoredRecord: Sendable, Hashable {
    package var key: OrderedKey
    /// 1 at the first write, and one more at each further one, removals included.
    package var version: UInt64
    /// Of the last write.
    package var fence: RecordFence
    package var body: [UInt8]

    package init(key: OrderedKey, version: UInt64, fence: RecordFence, body: [UInt8]) {
        (self.key, self.version, self.fence, self.body) = (key, version, fence, body)
    }
}

/// Which records to read, in which order.
package struct RecordScan: Sendable, Hashable {
    package var collection: String
    /// The index whose order it is; nil: the order of the keys.
    package var index: String?
    /// The first key or entry.
    package var from: OrderedKey?
    /// The end: the first key or entry that is not read.
    package var below: OrderedKey?
    /// Where an earlier page ended.
    package var token: RecordToken?
    /// The most records of the page, 1 to ``RecordLimits/pageCountMax``; cut to that.
    package var limit: Int

    package init(
        _ collection: String, index: String? = nil, from: OrderedKey? = nil, below: OrderedKey? = nil,
        token: RecordToken? = nil, limit: Int = RecordLimits.pageCountMax
    ) {
        (self.collection, self.index) = (collection, index)
        (self.from, self.below) = (from, below)
        (self.token, self.limit) = (token, limit)
    }

    var countMax: Int { max(1, min(limit, RecordLimits.pageCountMax)) }
}

/// Where a page ended: the next one begins after it, whatever was written meanwhile.
package struct RecordToken: Sendable, Hashable {
    /// The entry of the index; the key itself in the order of the keys.
    package var value: OrderedKey
    package var key: OrderedKey

    package init(value: OrderedKey, key: OrderedKey) {
        self.value = value
        self.key = key
    }
}

/// Some records in order, and where the next page begins; nil at the end.
package struct RecordPage: Sendable, Hashable {
    package var records: [StoredRecord]
    package var next: RecordToken?

    package init(records: [StoredRecord], next: RecordToken?) { (self.records, self.next) = (records, next) }
}

/// The process that keeps others from writing.
package struct RecordLockHolder: Sendable, Hashable {
    /// Its process id on this machine.
    package var process: Int32
    /// ``RecordWriter/mark`` of the store's user there.
    package var mark: UInt64
    /// Which of its turns it is, to 16 bits: the same one at two looks was not released between them.
    package var turn: UInt16

    package init(process: Int32, mark: UInt64, turn: UInt16) {
        (self.process, self.mark, self.turn) = (process, mark, turn)
    }
}

/// Where the records of all services stand (D16).
///
/// A collection is declared by its service (``RecordCollection``); the store keeps bytes, their versions, fences and
/// index entries, and knows no service's types. A new type of record changes nothing here.
///
/// **Steps.** The writes of a step are made together or not at all, each under its own condition. Steps of many callers
/// become one durable commit; a step that fails its condition fails alone. When its outcome is told, the step is
/// durable. Where it fails with 10021 the outcome is unknown: read, or repeat under a condition. A step that was handed
/// in is not cancelled.
///
/// **Fences.** A write under an older epoch than the record's, or under the same one by another writer, is refused with
/// 10013, also if the record was removed. So an owner that was paused cannot undo what the new owner wrote.
///
/// **Reads** see every commit that was acknowledged before they began. They are not fenced: an owner writes first,
/// under its epoch, and reads then.
///
/// Errors: 10002 if a bound of ``RecordLimits`` or ``RecordStoreLimits`` is exceeded, 10003 if a newer release
/// changed the collection's layout, 10006 if the task of a read was cancelled, 10007 if too much waits, 10013,
/// 10021 if the storage cannot be used, 10030 if a condition does not hold.
///
/// Isolation: may be called from any task.
package protocol RecordStore: Sendable {
    /// Makes each step on its own, and answers for each the new versions of its writes, in order; 0 for an erased
    /// record. Steps are made in the order of these calls.
    ///
    /// - Parameter completion: called once, on any thread, possibly before this returns; it must not block.
    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void)

    /// The records of these keys, nil if there is none; at most ``RecordLimits/pageCountMax`` keys.
    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?]

    /// One page of a collection. An index that the store does not know has no entries.
    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage

    /// The process that keeps this one from writing at the moment; nil if none does, or it is on another machine.
    ///
    /// One that was declared dead may be ended: the kernel releases its lock then.
    func lockHolder() async -> RecordLockHolder?

    /// Ends all work; later calls fail with 10021.
    func close() async
}

extension RecordStore {
    /// As ``commit(_:then:)``; returns the outcomes.
    package func commit(_ steps: [RecordStep]) async -> [Result<[UInt64], ApusError>] {
        await withCheckedContinuation { continuation in commit(steps) { continuation.resume(returning: $0) } }
    }

    /// Makes one step, and answers the new versions of its writes.
    @discardableResult
    package func commit(_ step: RecordStep) async throws(ApusError) -> [UInt64] {
        guard let outcome = await commit([step]).first else { throw ApusError(.internalFailure) }
        return try outcome.get()
    }

    /// Makes one write as a step of its own, and answers the record's new version.
    @discardableResult
    package func commit(_ write: RecordWrite) async throws(ApusError) -> UInt64 {
        try await commit(RecordStep(write)).first ?? 0
    }

    package func record<Body>(
        _ collection: RecordCollection<Body>, _ key: OrderedKey
    ) async throws(ApusError) -> Record<Body>? {
        guard let stored = try await records(collection.name, [key]).first ?? nil else { return nil }
        return try collection.record(stored)
    }

    /// The records of these keys, nil if there is none; at most ``RecordLimits/pageCountMax`` keys.
    package func records<Body>(
        _ collection: RecordCollection<Body>, _ keys: [OrderedKey]
    ) async throws(ApusError) -> [Record<Body>?] {
        var found: [Record<Body>?] = []
        for stored in try await records(collection.name, keys) {
            guard let stored else {
                found.append(nil)
                continue
            }
            found.append(try collection.record(stored))
        }
        return found
    }

    /// One page of a collection, by key or by an index.
    ///
    /// - Parameters:
    ///   - prefix: Only keys, or entries of the index, that begin with it.
    ///   - below: The end: the first key or entry that is not read.
    package func page<Body>(
        _ collection: RecordCollection<Body>, by index: String? = nil, prefix: OrderedKey = OrderedKey(),
        below: OrderedKey? = nil, after token: RecordToken? = nil, limit: Int = RecordLimits.pageCountMax
    ) async throws(ApusError) -> (records: [Record<Body>], next: RecordToken?) {
        let page = try await page(
            RecordScan(
                collection.name, index: index, from: prefix, below: below ?? prefix.end, token: token, limit: limit))
        var records: [Record<Body>] = []
        for stored in page.records { records.append(try collection.record(stored)) }
        return (records, page.next)
    }
}

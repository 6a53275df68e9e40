package import ApusCore

/// A stored record. Only its service can decode the body.
package struct StoredRecord: Sendable, Hashable {
    package var key: OrderedKey
    /// 1 at the first write. It grows by one with each further write, including removals.
    package var version: UInt64
    /// Of the last write.
    package var fence: RecordFence
    package var body: [UInt8]

    package init(key: OrderedKey, version: UInt64, fence: RecordFence, body: [UInt8]) {
        (self.key, self.version, self.fence, self.body) = (key, version, fence, body)
    }
}

/// A range of records in some order.
package struct RecordScan: Sendable, Hashable {
    package var collection: String
    /// The index that determines the order; nil for the order of the keys.
    package var index: String?
    /// The first key or entry.
    package var from: OrderedKey?
    /// The first key or entry that is not included.
    package var below: OrderedKey?
    /// The end of an earlier page.
    package var token: RecordToken?
    /// The most records of the page, 1 to ``RecordLimits/pageCountMax``. Other values are clamped.
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

/// The end of a page. The next page begins after it, even if records were written in the meantime.
package struct RecordToken: Sendable, Hashable {
    /// The entry of the index; in the order of the keys, the key itself.
    package var value: OrderedKey
    package var key: OrderedKey

    package init(value: OrderedKey, key: OrderedKey) {
        self.value = value
        self.key = key
    }
}

/// Some records in order, and the token of the next page; nil at the end.
package struct RecordPage: Sendable, Hashable {
    package var records: [StoredRecord]
    package var next: RecordToken?

    package init(records: [StoredRecord], next: RecordToken?) { (self.records, self.next) = (records, next) }
}

/// The process that blocks other writers.
package struct RecordLockHolder: Sendable, Hashable {
    /// Its process id on this machine.
    package var process: Int32
    /// ``RecordWriter/mark`` of that process.
    package var mark: UInt64
    /// The number of its turn, modulo 2^16. If it is the same at two reads, the lock was not released in between.
    package var turn: UInt16

    package init(process: Int32, mark: UInt64, turn: UInt16) {
        (self.process, self.mark, self.turn) = (process, mark, turn)
    }
}

/// The store of all services' records (D16).
///
/// A service declares a collection (``RecordCollection``). The store holds bytes with their versions, fences and index
/// entries, and does not know the services' types. A new type of record changes nothing here.
///
/// **Steps.** The writes of a step are applied together or not at all, each under its own condition. Steps of many
/// callers become one durable commit; a step whose condition does not hold fails alone. A step is durable when its
/// outcome is reported. If it fails with 10021 the outcome is unknown: read, or repeat it under a condition. A
/// submitted step cannot be cancelled.
///
/// **Fences.** A write under an older epoch than the record's, or under the same epoch by another writer, is refused
/// with 10013, even if the record was removed. An owner that was paused can therefore not undo writes of the new owner.
///
/// **Reads** see every commit that was acknowledged before they began. They are not fenced: an owner first writes under
/// its epoch, and then reads.
///
/// Errors: 10002 if a limit of ``RecordLimits`` or ``RecordStoreLimits`` is exceeded, 10003 if a newer release changed
/// the collection's layout, 10006 if the task of a read was cancelled, 10007 if too much waits, 10013 as above, 10020
/// if a record of the step is damaged, 10021 if the storage cannot be used, 10030 if a condition does not hold.
///
/// Isolation: may be called from any task.
package protocol RecordStore: Sendable {
    /// Applies each step on its own. Returns for each the new versions of its writes, in order; 0 for an erased record.
    /// Steps are applied in the order of these calls.
    ///
    /// - Parameter completion: called once, on any thread, possibly before this returns. It must not block.
    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void)

    /// The records of these keys, nil if there is none; at most ``RecordLimits/pageCountMax`` keys.
    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?]

    /// One page of a collection. An index that the store does not know has no entries.
    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage

    /// The process that blocks this one from writing; nil if there is none, or it is on another machine.
    ///
    /// If that node was declared dead its process may be ended: the kernel then releases its lock.
    func lockHolder() async -> RecordLockHolder?

    /// Ends all work. Later calls fail with 10021.
    func close() async
}

extension RecordStore {
    /// Changes records that others may change at the same time: reads them, and commits a step that is conditional on
    /// what was read. If the step is refused with 10030, begins again after a pause.
    ///
    /// - Parameters:
    ///   - attempts: how often the step is tried.
    ///   - error: what is thrown after the last attempt.
    ///   - change: reads the records, and returns a value for the caller and the step; no step: nothing changes. Called
    ///     at each attempt. What it throws is not tried again.
    /// - Returns: the value of the last call, and the new versions of its writes; none without a step.
    @discardableResult
    package func change<Value>(
        attempts: Int, otherwise error: ApusError,
        _ change: () async throws(ApusError) -> (Value, RecordStep?)
    ) async throws(ApusError) -> (value: Value, versions: [UInt64]) {
        for attempt in 0..<attempts {
            if attempt > 0 { await pause(after: attempt - 1) }
            let (value, step) = try await change()
            guard let step else { return (value, []) }
            do throws(ApusError) {
                return (value, try await commit(step))
            } catch {
                guard error.code == .versionConflict else { throw error }
            }
        }
        throw error
    }

    /// Lets others finish that change the same record. The pause is random, and longer after each attempt, up to 64 ms.
    private func pause(after attempt: Int) async {
        try? await Task.sleep(for: .milliseconds(Int.random(in: 1...min(64, 2 << min(attempt, 5)))))
    }

    /// As ``commit(_:then:)``; returns the outcomes.
    package func commit(_ steps: [RecordStep]) async -> [Result<[UInt64], ApusError>] {
        await withCheckedContinuation { continuation in commit(steps) { continuation.resume(returning: $0) } }
    }

    /// Applies one step. Returns the new versions of its writes.
    @discardableResult
    package func commit(_ step: RecordStep) async throws(ApusError) -> [UInt64] {
        guard let outcome = await commit([step]).first else { throw ApusError(.internalFailure) }
        return try outcome.get()
    }

    /// Applies one write as a step of its own. Returns the record's new version.
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
    ///   - below: The first key or entry that is not included.
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

package import ApusCore
package import ApusStorage
import ServiceLifecycle
import Synchronization

extension NodeConditions.Kind {
    /// The records cannot be written, such as because their disk is full.
    static let recordsUnwritable = Self("records_unwritable", isUnhealthy: false)
    /// The record store has reached its size limit, less its reserve. No record may grow.
    static let recordsFull = Self("records_full", isUnhealthy: false)
}

/// The record store of a node, with conditions while its writes fail or it has no room.
///
/// The node is not unhealthy then: calls, streams and commands that need no record go on, and all nodes have the same
/// store. A write that needs one fails with 10021. Without room, a record that grows is refused with 10007, while
/// records may be removed, and those of operators may grow.
///
/// While a condition lasts, ``run()`` tries a write. The condition ends with its success, and not with that of another
/// write, which may need no room.
///
/// Concurrency: any thread.
package final class WatchedRecordStore: RecordStore, Service {
    private static let collection = "node-write-tests"
    private static let testInterval = Duration.seconds(5)
    /// More than the free space that a full file usually has left for small records.
    private static let testByteCount = 64 << 10

    private let store: any RecordStore
    private let conditions: NodeConditions
    private let key: OrderedKey
    private let isFailing = Atomic(false)

    package init(_ store: any RecordStore, of node: NodeName, _ conditions: NodeConditions) {
        (self.store, self.conditions, key) = (store, conditions, OrderedKey(.text(node.rawValue)))
    }

    package func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        store.commit(steps) { [self] outcomes in
            note(outcomes)
            completion(outcomes)
        }
    }

    package func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        try await store.records(collection, keys)
    }

    package func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await store.page(scan) }

    package func lockHolder() async -> RecordLockHolder? { await store.lockHolder() }

    package func close() async { await store.close() }

    private func note(_ outcomes: [Result<[UInt64], ApusError>]) {
        var failure: ApusError?
        var isFull = false
        for case .failure(let error) in outcomes {
            if error.code == .storageFailed { failure = error }
            if error.isRecordStoreFull { isFull = true }
        }
        if isFull {
            isFailing.store(true, ordering: .relaxed)
            conditions.raise(
                .recordsFull,
                "the record store is full; requests that add to it fail with \(ErrorCode.overloaded.number). Remove "
                    + "what is not needed, or raise records.file_bytes_max")
        }
        if let failure {
            isFailing.store(true, ordering: .relaxed)
            conditions.raise(
                .recordsUnwritable,
                "the records cannot be written: \(failure.message); requests that need a record fail with "
                    + "\(ErrorCode.storageFailed.number), and all others go on")
        }
    }

    /// Tries to write while writes fail, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            while (try? await Task.sleep(for: Self.testInterval)) != nil {
                guard self.isFailing.load(ordering: .relaxed) else { continue }
                await self.test()
            }
        }
    }

    /// Tries to write as any request would, and otherwise to write at all. Ends the conditions that this disproves.
    package func test() async {
        if await writes(usesReserve: false) {
            isFailing.store(false, ordering: .relaxed)
            conditions.clear(.recordsFull)
            conditions.clear(.recordsUnwritable)
        } else if await writes(usesReserve: true) {
            conditions.clear(.recordsUnwritable)
        }
    }

    /// Writes a record and erases it. Returns true if it was written.
    private func writes(usesReserve: Bool) async -> Bool {
        let id = RecordID(Self.collection, key)
        let body = [UInt8](repeating: 0, count: Self.testByteCount)
        let put = RecordWrite(
            id, .put(body: body, layout: 1, entries: []), fence: .none, condition: .any, usesReserve: usesReserve)
        guard case .success? = await commit([RecordStep(put)]).first else { return false }
        _ = await commit([RecordStep(RecordWrite(id, .erase, fence: .none, condition: .any))])
        return true
    }
}

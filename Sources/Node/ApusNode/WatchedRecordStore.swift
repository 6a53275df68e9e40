import ApusCore
import ApusStorage
import ServiceLifecycle
import Synchronization

extension NodeConditions.Kind {
    /// The records cannot be written, such as because their disk is full.
    static let recordsUnwritable = Self("records_unwritable", isUnhealthy: false)
}

/// The record store of a node, with a condition while its writes fail.
///
/// The node is not unhealthy then: calls, streams and commands that need no record go on, and all nodes have the same
/// store. A write that needs one fails with 10021.
///
/// The condition ends with the next write that succeeds. While it lasts, ``run()`` tries one.
///
/// Concurrency: any thread.
final class WatchedRecordStore: RecordStore, Service {
    private static let collection = "node-write-tests"
    private static let testInterval = Duration.seconds(5)
    /// More than the free space that a full file usually has left for small records.
    private static let testByteCount = 64 << 10

    private let store: any RecordStore
    private let conditions: NodeConditions
    private let key: OrderedKey
    private let isFailing = Atomic(false)

    init(_ store: any RecordStore, of node: NodeName, _ conditions: NodeConditions) {
        (self.store, self.conditions, key) = (store, conditions, OrderedKey(.text(node.rawValue)))
    }

    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        store.commit(steps) { [self] outcomes in
            note(outcomes)
            completion(outcomes)
        }
    }

    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        try await store.records(collection, keys)
    }

    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await store.page(scan) }

    func lockHolder() async -> RecordLockHolder? { await store.lockHolder() }

    func close() async { await store.close() }

    private func note(_ outcomes: [Result<[UInt64], ApusError>]) {
        var failure: ApusError?
        for case .failure(let error) in outcomes where error.code == .storageFailed { failure = error }
        if let failure {
            isFailing.store(true, ordering: .relaxed)
            conditions.raise(
                .recordsUnwritable,
                "the records cannot be written: \(failure.message); requests that need a record fail with "
                    + "\(ErrorCode.storageFailed.number), and all others go on")
        } else if outcomes.contains(where: { if case .success = $0 { true } else { false } }),
            isFailing.exchange(false, ordering: .relaxed)
        {
            conditions.clear(.recordsUnwritable)
        }
    }

    /// Tries to write while writes fail, until the node stops.
    func run() async throws {
        await cancelWhenGracefulShutdown {
            while (try? await Task.sleep(for: Self.testInterval)) != nil {
                guard self.isFailing.load(ordering: .relaxed) else { continue }
                await self.test()
            }
        }
    }

    private func test() async {
        let id = RecordID(Self.collection, key)
        let body = [UInt8](repeating: 0, count: Self.testByteCount)
        let put = RecordWrite(id, .put(body: body, layout: 1, entries: []), fence: .none, condition: .any)
        guard case .success? = await commit([RecordStep(put)]).first else { return }
        _ = await commit([RecordStep(RecordWrite(id, .erase, fence: .none, condition: .any))])
    }
}

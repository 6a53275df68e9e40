import ApusCore
import ApusNode
import ApusStorage
import Logging
import Synchronization
import Testing

@Suite("Conditions of the record store: records_unwritable and records_full")
struct WatchedRecordStoreTests {
    private let records = LimitedRecords()
    private let conditions = NodeConditions(log: Logger(label: "test"))
    private let store: WatchedRecordStore

    init() { store = WatchedRecordStore(records, of: NodeName(unchecked: "n1"), conditions) }

    private var types: Set<String> { Set(conditions.all.map(\.type)) }

    private func put(usesReserve: Bool = false) async {
        let write = RecordWrite(
            RecordID("calls", OrderedKey(.text("a"))), .put(body: [1], layout: 1, entries: []), fence: .none,
            condition: .any, usesReserve: usesReserve)
        _ = await store.commit([RecordStep(write)])
    }

    private func erase() async {
        let id = RecordID("calls", OrderedKey(.text("a")))
        _ = await store.commit([RecordStep(RecordWrite(id, .erase, fence: .none, condition: .any))])
    }

    @Test("A store without room is a condition of its own, which lasts until a write that needs room succeeds")
    func full() async {
        await put()
        #expect(types.isEmpty)
        records.refuse(growth: .recordStoreFull)
        await put()
        #expect(types == ["records_full"])
        #expect(conditions.all.allSatisfy { !$0.unhealthy && $0.message.contains("10007") })
        // These need no room, so they show nothing.
        await put(usesReserve: true)
        await erase()
        #expect(types == ["records_full"])
        await store.test()
        #expect(types == ["records_full"])
        records.refuse(growth: nil)
        await put()
        #expect(types == ["records_full"])
        await store.test()
        #expect(types.isEmpty)
        #expect(records.keptCount == 0)
    }

    @Test("Another 10007, such as too many writes that wait, is no condition")
    func overloaded() async {
        records.refuse(growth: ApusError(.overloaded, "too many steps wait for the record store"))
        await put()
        #expect(types.isEmpty)
    }

    @Test("A disk that is full is another condition; it ends when the reserve can be written, if the file is full too")
    func unwritable() async {
        records.refuse(all: ApusError(.storageFailed, "the disk is full"))
        await put()
        #expect(types == ["records_unwritable"])
        await store.test()
        #expect(types == ["records_unwritable"])
        records.refuse(growth: .recordStoreFull)
        await store.test()
        #expect(types == ["records_full"])
        records.refuse(growth: nil)
        await store.test()
        #expect(types.isEmpty)
    }
}

/// Records that refuse writes that grow without the reserve, or all writes.
private final class LimitedRecords: RecordStore {
    private struct State {
        var growth: ApusError?
        var all: ApusError?
        /// The test records that are there.
        var kept: Set<OrderedKey> = []
    }

    private let state = Mutex(State())

    func refuse(growth: ApusError? = nil, all: ApusError? = nil) {
        state.withLock { ($0.growth, $0.all) = (growth, all) }
    }

    /// The number of records of the node's own tests that were not erased.
    var keptCount: Int { state.withLock { $0.kept.count } }

    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        let outcomes = state.withLock { state in
            steps.map { step -> Result<[UInt64], ApusError> in
                for write in step.writes {
                    if let error = state.all { return .failure(error) }
                    guard case .put = write.change else {
                        state.kept.remove(write.id.key)
                        continue
                    }
                    if let error = state.growth, !write.usesReserve { return .failure(error) }
                    if write.id.collection == "node-write-tests" { state.kept.insert(write.id.key) }
                }
                return .success(step.writes.map { _ in 1 })
            }
        }
        completion(outcomes)
    }

    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        keys.map { _ in nil }
    }

    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { RecordPage(records: [], next: nil) }

    func lockHolder() async -> RecordLockHolder? { nil }

    func close() async {}
}

package import ApusCore
import Synchronization

/// Records in memory, for tests and for nodes without durable state. They are lost with the process.
///
/// Concurrency model: a `Mutex` guards the tables; each step holds it once.
package final class MemoryRecordStore: RecordStore {
    private struct State {
        var tables: MemoryRecordTables
        var isClosed = false
    }

    private let state: Mutex<State>

    package init(limits: RecordStoreLimits = RecordStoreLimits()) {
        state = Mutex(State(tables: MemoryRecordTables(limits: limits)))
    }

    package func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        let outcomes = state.withLock { state in
            steps.map { step -> Result<[UInt64], ApusError> in
                state.isClosed ? .failure(Self.closed) : state.tables.commit(step)
            }
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
            for key in keys { found.append(state.tables.record(RecordID(collection, key))) }
            return found
        }
        guard let found else { throw Self.closed }
        return found
    }

    package func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage {
        let page = state.withLock { $0.isClosed ? nil : $0.tables.page(scan) }
        guard let page else { throw Self.closed }
        return page
    }

    package func lockHolder() async -> RecordLockHolder? { nil }

    package func close() async { state.withLock { $0.isClosed = true } }

    private static var closed: ApusError { ApusError(.storageFailed, "the record store was closed") }
}

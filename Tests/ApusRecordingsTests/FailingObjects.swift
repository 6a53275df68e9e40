import ApusCore
import ApusObjectStore
import Synchronization

/// An object store that fails while it is asked to: before it stores an object, or after.
final class FailingObjects: ObjectStore {
    private let store: any ObjectStore
    private let state: Mutex<(isFailing: Bool, random: SeededRandom)>

    init(_ store: any ObjectStore, seed: UInt64) {
        self.store = store
        state = Mutex((false, SeededRandom(seed: seed)))
    }

    func setFailing(_ isFailing: Bool) { state.withLock { $0.isFailing = isFailing } }

    /// The number of the failure: 0 none, 1 before, 2 after.
    private func failure() -> Int {
        state.withLock { state in state.isFailing ? Int.random(in: 0...2, using: &state.random) : 0 }
    }

    var limits: ObjectStoreLimits { store.limits }
    var place: String { store.place }

    func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        let failure = failure()
        if failure == 1 { throw ApusError(.storageFailed, "before the object") }
        let outcome = try await store.put(name, content)
        if failure == 2 { throw ApusError(.storageFailed, "after the object") }
        return outcome
    }

    func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart? {
        try await store.get(name, range: range)
    }
    func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead? { try await store.head(name) }
    func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage {
        try await store.list(prefix: prefix, after: after, countMax: countMax)
    }
    func delete(_ name: ObjectName) async throws(ApusError) { try await store.delete(name) }
    func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await store.leftovers(olderThan: age)
    }
    func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await store.removeLeftovers(olderThan: age)
    }
    func check() async throws(ApusError) { try await store.check() }
    func shutdown() async { await store.shutdown() }
}

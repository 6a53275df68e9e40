import ApusCore
import ApusObjectStore
import Synchronization

/// The object store of a node, which opens after the services are created, and again after a failure.
///
/// Isolation: any task. A `Mutex` guards the store.
final class LateObjects: ObjectStore {
    let limits: ObjectStoreLimits
    private let store = Mutex<(any ObjectStore)?>(nil)

    init(_ limits: ObjectStoreLimits) { self.limits = limits }

    /// The store; nil while it is not open.
    func set(_ opened: (any ObjectStore)?) { store.withLock { $0 = opened } }

    /// - Throws: 21025 while the store is not open.
    private func opened() throws(ApusError) -> any ObjectStore {
        guard let opened = store.withLock(\.self) else {
            throw ApusError(.unavailable, "the object store of this node is not open")
        }
        return opened
    }

    var place: String { store.withLock(\.self)?.place ?? "" }

    func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        try await opened().put(name, content)
    }
    func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart? {
        try await opened().get(name, range: range)
    }
    func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead? { try await opened().head(name) }
    func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage {
        try await opened().list(prefix: prefix, after: after, countMax: countMax)
    }
    func delete(_ name: ObjectName) async throws(ApusError) { try await opened().delete(name) }
    func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await opened().leftovers(olderThan: age)
    }
    func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await opened().removeLeftovers(olderThan: age)
    }
    func check() async throws(ApusError) { try await opened().check() }
    /// The one who opened the store ends it.
    func shutdown() async {}
}

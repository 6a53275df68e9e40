import ApusCore
import ApusStorage
import Foundation
import Testing

/// A directory of its own for one test; removed at the end.
struct Scratch: ~Copyable {
    let path: String

    /// - Parameter isInMemory: Where that is offered: for a test of locks, which the disk's speed must not fail.
    init(isInMemory: Bool = false) throws {
        let hasMemory = isInMemory && FileManager.default.isWritableFile(atPath: "/dev/shm")
        path = (hasMemory ? "/dev/shm/" : NSTemporaryDirectory()) + "apus-storage-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    }

    deinit { try? FileManager.default.removeItem(atPath: path) }
}

let testCluster = ClusterID(unchecked: "test")

enum StoreKind: String, CaseIterable, Sendable {
    case files, memory

    func ownership(in scratch: borrowing Scratch) async throws -> any OwnershipStore {
        switch self {
        case .files: try await LocalOwnershipStore(path: scratch.path + "/ownership", cluster: testCluster)
        case .memory: MemoryOwnershipStore()
        }
    }
}

@Suite("Ownership store contract (D4)")
struct OwnershipStoreContractTests {
    @Test("A new store has no value and revision 0", arguments: StoreKind.allCases)
    func empty(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        #expect(try await store.read() == nil)
        #expect(try await store.revision() == 0)
    }

    @Test("A swap is made only at the expected revision, and revisions grow", arguments: StoreKind.allCases)
    func swap(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let first = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        #expect(try await store.compareAndSwap(expected: 0, value: [2]) == nil)
        let second = try #require(try await store.compareAndSwap(expected: first, value: [3, 3]))
        #expect(second > first && first > 0)
        #expect(try await store.read() == OwnershipValue(revision: second, bytes: [3, 3]))
        #expect(try await store.revision() == second)
    }

    @Test("A store has one identity, also for those who open it later", arguments: StoreKind.allCases)
    func identity(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let other = try Scratch()
        let store = try await kind.ownership(in: scratch)
        if kind == .files {
            let second = try await kind.ownership(in: scratch)
            #expect(second.identity == store.identity)
        }
        let elsewhere = try await kind.ownership(in: other)
        #expect(elsewhere.identity != store.identity)
    }

    @Test("A value over the bound is refused with 10002", arguments: StoreKind.allCases)
    func tooLarge(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let value = [UInt8](repeating: 0, count: OwnershipLimits.valueByteCountMax + 1)
        await #expect(throws: ApusError(.frameTooLarge)) { try await store.compareAndSwap(expected: 0, value: value) }
    }

    @Test("Of many that swap at once, each increment is counted exactly once", arguments: StoreKind.allCases)
    func contention(kind: StoreKind) async throws {
        let scratch = try Scratch()
        var stores: [any OwnershipStore] = []
        let shared = try await kind.ownership(in: scratch)
        for _ in 0..<4 { stores.append(kind == .memory ? shared : try await kind.ownership(in: scratch)) }
        await withTaskGroup(of: Void.self) { group in
            for store in stores {
                group.addTask { await Self.increment(store, times: 25) }
            }
        }
        let value = try #require(try await shared.read())
        #expect(value.bytes == [100])
        #expect(value.revision == 100)
    }

    @Test("A lease is held until its time has passed without a renewal", arguments: StoreKind.allCases)
    func leases(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        #expect(try await store.leaseHolders().isEmpty)
        let (one, other) = (node("n1", 3), node("n2", 1))
        try await store.renewLease(of: one, for: .milliseconds(400))
        try await store.renewLease(of: other, for: .seconds(60))
        #expect(try await store.leaseHolders() == [one, other])
        try await Task.sleep(for: .milliseconds(500))
        #expect(try await store.leaseHolders() == [other])
        try await store.renewLease(of: node("n2", 2), for: .seconds(60))
        #expect(try await store.leaseHolders().contains(node("n2", 2)))
    }

    private func node(_ name: String, _ incarnation: UInt64) -> NodeID {
        NodeID(name: NodeName(unchecked: name), incarnation: incarnation)
    }

    private static func increment(_ store: any OwnershipStore, times: Int) async {
        var doneCount = 0
        for _ in 0..<10_000 where doneCount < times {
            do {
                let value = try await store.read()
                let next = [(value?.bytes.first ?? 0) + 1]
                if try await store.compareAndSwap(expected: value?.revision ?? 0, value: next) != nil { doneCount += 1 }
            } catch {
                Issue.record("the store failed: \(error)")
                return
            }
        }
    }
}

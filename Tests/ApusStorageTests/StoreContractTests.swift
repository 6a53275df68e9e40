import ApusCore
import ApusEtcd
import ApusStorage
import ApusTestKit
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

enum StoreKind: String, Sendable {
    case files, memory, etcd

    /// etcd where it is installed (`scripts/test` installs it).
    static let all: [StoreKind] = [.files, .memory] + (EtcdServer.program == nil ? [] : [.etcd])

    /// True if a store that is opened again in the same place is the same one.
    var isLasting: Bool { self != .memory }

    func ownership(in scratch: borrowing Scratch) async throws -> any OwnershipStore {
        switch self {
        case .files: return try await LocalOwnershipStore(path: scratch.path + "/ownership", cluster: testCluster)
        case .memory: return MemoryOwnershipStore()
        case .etcd:
            // A range of keys for each scratch directory.
            var configuration = try EtcdServer.shared.get().configuration()
            configuration.prefix = "\(scratch.path)/"
            return try await EtcdOwnershipStore(configuration, cluster: testCluster, log: quietLog)
        }
    }
}

@Suite("Ownership store contract (D4)")
struct OwnershipStoreContractTests {
    @Test("A new store has no value and revision 0", arguments: StoreKind.all)
    func empty(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        #expect(try await store.read() == nil)
        #expect(try await store.revision() == 0)
        await store.close()
    }

    @Test("A swap is made only at the expected revision, and revisions grow", arguments: StoreKind.all)
    func swap(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let first = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        #expect(try await store.compareAndSwap(expected: 0, value: [2]) == nil)
        let second = try #require(try await store.compareAndSwap(expected: first, value: [3, 3]))
        #expect(second > first && first > 0)
        #expect(try await store.read() == OwnershipValue(revision: second, bytes: [3, 3]))
        #expect(try await store.revision() == second)
        await store.close()
    }

    @Test("A store has one identity, also for those who open it later", arguments: StoreKind.all)
    func identity(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let other = try Scratch()
        let store = try await kind.ownership(in: scratch)
        if kind.isLasting {
            let second = try await kind.ownership(in: scratch)
            #expect(second.identity == store.identity)
            await second.close()
        }
        let elsewhere = try await kind.ownership(in: other)
        #expect(elsewhere.identity != store.identity)
        for store in [store, elsewhere] { await store.close() }
    }

    @Test("A value over the bound is refused with 10002", arguments: StoreKind.all)
    func tooLarge(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let value = [UInt8](repeating: 0, count: OwnershipLimits.valueByteCountMax + 1)
        await #expect(throws: ApusError(.frameTooLarge)) { try await store.compareAndSwap(expected: 0, value: value) }
        // The longest one is stored.
        let longest = Array(value.dropLast())
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: longest))
        #expect(try await store.read() == OwnershipValue(revision: revision, bytes: longest))
        await store.close()
    }

    @Test("Of many that swap at once, each increment is counted exactly once", arguments: StoreKind.all)
    func contention(kind: StoreKind) async throws {
        let scratch = try Scratch()
        var stores: [any OwnershipStore] = []
        let shared = try await kind.ownership(in: scratch)
        for _ in 0..<4 { stores.append(kind.isLasting ? try await kind.ownership(in: scratch) : shared) }
        await withTaskGroup(of: Void.self) { group in
            for store in stores {
                group.addTask { await Self.increment(store, times: 25) }
            }
        }
        let value = try #require(try await shared.read())
        #expect(value.bytes == [100])
        // etcd counts other keys as well.
        #expect(kind == .etcd ? value.revision > 100 : value.revision == 100)
        for store in [shared] + stores { await store.close() }
    }

    @Test("A lease is held until its time has passed without a renewal", arguments: StoreKind.all)
    func leases(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let second = kind.isLasting ? try await kind.ownership(in: scratch) : store
        #expect(try await store.leaseHolders().isEmpty)
        let (one, other) = (node("n1", 3), node("n2", 1))
        // etcd counts in whole seconds.
        try await store.renewLease(of: one, for: kind == .etcd ? .seconds(1) : .milliseconds(400))
        try await second.renewLease(of: other, for: .seconds(60))
        for store in [store, second] { #expect(try await store.leaseHolders() == [one, other]) }
        try await eventually("the lease ends") { try await second.leaseHolders() == [other] }
        // The lease that ended is replaced.
        try await store.renewLease(of: one, for: .seconds(60))
        #expect(try await store.leaseHolders() == [one, other])
        try await second.renewLease(of: node("n2", 2), for: .seconds(60))
        #expect(try await store.leaseHolders() == [one, node("n2", 2)])
        for store in [store, second] { await store.close() }
    }

    @Test("A lease that is renewed does not end", arguments: StoreKind.all)
    func renewals(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.ownership(in: scratch)
        let one = node("n1", 1)
        for _ in 0..<12 {
            try await store.renewLease(of: one, for: .seconds(1))
            try await Task.sleep(for: .milliseconds(300))
            #expect(try await store.leaseHolders() == [one])
        }
        await store.close()
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

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

    func records(in scratch: borrowing Scratch) async throws -> any RecordStore {
        switch self {
        case .files: try await SQLiteRecordStore(path: scratch.path + "/records.sqlite", cluster: testCluster)
        case .memory: MemoryRecordStore()
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

@Suite("Record store contract (D9)")
struct RecordStoreContractTests {
    private let device = DeviceID(unchecked: "cam-1")
    private let account = AccountID(unchecked: "home")

    @Test("A record is read as it was written", arguments: StoreKind.allCases)
    func roundTrip(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        #expect(try await store.record(of: device) == nil)
        let record = DeviceRecord(
            device: device, account: account, boundAtUnixMilliseconds: 5, lastSeenUnixMilliseconds: 6, epoch: .max)
        try await store.save(record)
        #expect(try await store.record(of: device) == record)
    }

    @Test(
        "A write under an older epoch is refused with 10013, under the same or a later one it is taken",
        arguments: StoreKind.allCases)
    func fenced(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.save(DeviceRecord(device: device, account: account, epoch: 4))
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.save(DeviceRecord(device: device, account: nil, epoch: 3))
        }
        #expect(try await store.record(of: device)?.account == account)
        try await store.save(DeviceRecord(device: device, account: nil, epoch: 4))
        try await store.save(DeviceRecord(device: device, account: account, epoch: 9))
        #expect(try await store.record(of: device)?.epoch == 9)
    }

    @Test("A removed record stays fenced against older epochs", arguments: StoreKind.allCases)
    func removed(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.save(DeviceRecord(device: device, account: account, epoch: 4))
        await #expect(throws: ApusError(.staleEpoch)) { try await store.remove(device, epoch: 3) }
        try await store.remove(device, epoch: 5)
        #expect(try await store.record(of: device) == nil)
        #expect(try await store.records(of: account, after: nil, limit: 10).isEmpty)
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.save(DeviceRecord(device: device, account: account, epoch: 4))
        }
        try await store.save(DeviceRecord(device: device, account: account, epoch: 6))
        #expect(try await store.record(of: device)?.epoch == 6)
    }

    @Test("An account's devices come by id, page after page", arguments: StoreKind.allCases)
    func pages(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        for name in ["c", "a", "b", "e", "d"] {
            try await store.save(DeviceRecord(device: DeviceID(unchecked: name), account: account, epoch: 1))
        }
        try await store.save(DeviceRecord(device: DeviceID(unchecked: "aa"), account: nil, epoch: 1))
        let first = try await store.records(of: account, after: nil, limit: 3)
        #expect(first.map(\.device.rawValue) == ["a", "b", "c"])
        let second = try await store.records(of: account, after: first.last?.device, limit: 3)
        #expect(second.map(\.device.rawValue) == ["d", "e"])
    }

    @Test("Of an identity the newest is remembered, until it expires", arguments: StoreKind.allCases)
    func identities(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        func record(_ name: String, _ epoch: Epoch, _ sequence: UInt64, expires: Int64 = 100) -> IdentityRecord {
            IdentityRecord(
                identity: name, epoch: epoch, sequence: sequence, instance: .max, superseded: [0, 1 << 63, .max],
                expires: expires)
        }
        #expect(try await store.identity("device/a") == nil)
        try await store.save([record("device/a", 2, 1 << 63), record("app/a", 2, 5, expires: 50)], wallSeconds: 1)
        #expect(try await store.identity("device/a") == record("device/a", 2, 1 << 63))
        // Numbers over the sign of SQLite's own, and an epoch before the number.
        for older in [record("device/a", 2, (1 << 63) - 1), record("device/a", 1, .max)] {
            try await store.save([older], wallSeconds: 1)
            #expect(try await store.identity("device/a") == record("device/a", 2, 1 << 63))
        }
        try await store.save([record("device/a", 3, 0)], wallSeconds: 50)
        #expect(try await store.identity("device/a") == record("device/a", 3, 0))
        #expect(try await store.identity("app/a") == nil, "it expired")
    }

    @Test("What is revoked is read when it has changed, until it expires", arguments: StoreKind.allCases)
    func revocations(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        let empty = try #require(try await store.revocations(since: nil, wallSeconds: 1))
        #expect(empty.records.isEmpty)
        #expect(try await store.revocations(since: empty.mark, wallSeconds: 1) == nil)
        let all = [
            RevocationRecord(.token(.max), expires: 10),
            RevocationRecord(.account(account, issuedBefore: 5), expires: 20),
            RevocationRecord(.identity("ann", account, issuedBefore: 6), expires: 30),
        ]
        for record in all { try await store.revoke(record, wallSeconds: 1) }
        let full = try #require(try await store.revocations(since: empty.mark, wallSeconds: 1))
        #expect(full.records == all)
        #expect(try await store.revocations(since: full.mark, wallSeconds: 1) == nil)
        // What expired is left out, and makes room for the next one.
        #expect(try await store.revocations(since: nil, wallSeconds: 10)?.records == Array(all[1...]))
        try await store.revoke(RevocationRecord(.token(1), expires: 30), wallSeconds: 20)
        #expect(
            try await store.revocations(since: full.mark, wallSeconds: 20)?.records
                == [all[2], RevocationRecord(.token(1), expires: 30)])
    }

    @Test("Of those that bind a device at once, one does, and all are told which", arguments: StoreKind.allCases)
    func binding(kind: StoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        for round in 0..<20 {
            let device = DeviceID(unchecked: "cam-\(round)")
            let told = try await withThrowingTaskGroup(of: AccountID?.self) { group in
                for number in 0..<8 {
                    group.addTask {
                        let account = AccountID(unchecked: "account-\(number)")
                        return try await store.bind(DeviceRecord(device: device, account: account, epoch: 4)).account
                    }
                }
                return try await group.reduce(into: Set()) { $0.insert($1) }
            }
            #expect(told.count == 1, "\(told)")
            #expect(try await store.record(of: device)?.account == told.first)
        }
        // One that is bound to nobody is bound, but not under an older epoch.
        let free = DeviceRecord(device: device, account: nil, epoch: 4)
        try await store.save(free)
        var bound = free
        (bound.account, bound.epoch) = (account, 3)
        await #expect(throws: ApusError(.staleEpoch)) { try await store.bind(bound) }
        try await store.remove(device, epoch: 4)
        await #expect(throws: ApusError(.staleEpoch)) { try await store.bind(bound) }
        bound.epoch = 5
        #expect(try await store.bind(bound) == bound)
    }
}

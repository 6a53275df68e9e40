import ApusCore
import ApusSessions
import ApusStorage
import Foundation
import Testing

@Suite("What is remembered of devices, identities and revocations (D6, D16)")
struct SessionRecordsTests {
    enum Kind: String, CaseIterable, Sendable {
        case files, memory

        func store(_ folder: borrowing Folder) async throws -> any RecordStore {
            switch self {
            case .files: try await folder.store()
            case .memory: MemoryRecordStore()
            }
        }
    }

    /// A directory of its own for one test; removed at the end.
    struct Folder: ~Copyable {
        let path: String
        var file: String { path + "/records.sqlite" }

        init() throws {
            let parent = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/" : NSTemporaryDirectory()
            path = parent + "apus-sessions-\(UUID().uuidString)"
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        }

        func store() async throws -> SQLiteRecordStore {
            try await SQLiteRecordStore(
                path: file, cluster: ClusterID(unchecked: "local"), catalogue: SessionRecords.catalogue)
        }

        deinit { try? FileManager.default.removeItem(atPath: path) }
    }

    private let device = DeviceID(unchecked: "cam-1")
    private let account = AccountID(unchecked: "home")

    @Test("Of those that bind a device at once, one does, and all are told which", arguments: Kind.allCases)
    func binding(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        for round in 0..<10 {
            let device = DeviceID(unchecked: "cam-\(round)")
            let told = try await withThrowingTaskGroup(of: AccountID?.self) { group in
                for number in 0..<8 {
                    group.addTask {
                        let account = AccountID(unchecked: "account-\(number)")
                        return try await records.bind(DeviceRecord(device: device, account: account, epoch: 4)).account
                    }
                }
                return try await group.reduce(into: Set()) { $0.insert($1) }
            }
            #expect(told.count == 1, "\(told)")
            #expect(try await records.record(of: device)?.account == told.first)
        }
        await store.close()
    }

    @Test("A device that is bound to nobody is bound, but not under an older epoch", arguments: Kind.allCases)
    func fencedBinding(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        let free = DeviceRecord(device: device, epoch: 4)
        #expect(try await records.bind(free) == free)
        var bound = DeviceRecord(
            device: device, account: account, boundAtUnixMilliseconds: 5, lastSeenUnixMilliseconds: 6, epoch: 3)
        await #expect(throws: ApusError(.staleEpoch)) { try await records.bind(bound) }
        bound.epoch = 4
        await #expect(throws: ApusError(.staleEpoch)) { try await SessionRecords(store, writer: "n2#1").bind(bound) }
        #expect(try await records.bind(bound) == bound)
        #expect(try await records.record(of: device) == bound)
        // Another owner of a later epoch finds the account that stands.
        var other = bound
        (other.account, other.epoch) = (AccountID(unchecked: "other"), 9)
        #expect(try await SessionRecords(store, writer: "n2#1").bind(other) == bound)
        await store.close()
    }

    @Test("An account's devices come by id, page after page", arguments: Kind.allCases)
    func pages(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        for name in ["c", "a", "b", "e", "d"] {
            _ = try await records.bind(DeviceRecord(device: DeviceID(unchecked: name), account: account, epoch: 1))
        }
        _ = try await records.bind(DeviceRecord(device: DeviceID(unchecked: "aa"), epoch: 1))
        _ = try await records.bind(
            DeviceRecord(device: DeviceID(unchecked: "ab"), account: AccountID(unchecked: "home2"), epoch: 1))
        let first = try await records.records(of: account, after: nil, limit: 3)
        #expect(first.map(\.device.rawValue) == ["a", "b", "c"])
        let second = try await records.records(of: account, after: first.last?.device, limit: 3)
        #expect(second.map(\.device.rawValue) == ["d", "e"])
        await store.close()
    }

    @Test(
        "An account finds the devices that it is invited to use, apart from those that it may use",
        arguments: Kind.allCases)
    func invitations(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        let guest = AccountID(unchecked: "guest")
        func relate(
            _ device: DeviceID, _ change: DeviceRelationChange, by client: AccountID?
        ) async throws(ApusError) {
            _ = try await records.relate(
                device, epoch: 4, change, by: client.map { .account($0) } ?? .operator, now: 100, keepSeconds: 60)
        }
        let devices = ["a", "b", "c"].map { DeviceID(unchecked: $0) }
        for device in devices {
            try await relate(device, .bind(account), by: nil)
            try await relate(device, .invite(DeviceShare(account: guest, control: true)), by: account)
        }
        let first = try await records.invitations(of: guest, after: nil, limit: 2)
        #expect(first.map(\.device) == Array(devices.prefix(2)))
        let second = try await records.invitations(of: guest, after: devices[1], limit: 2)
        #expect(second.map(\.device) == [devices[2]])
        #expect(try await records.records(of: guest, after: nil, limit: 9).isEmpty)
        #expect(try await records.withdrawals(after: 0) == nil)

        try await relate(devices[0], .accept(guest), by: guest)
        try await relate(devices[1], .unshare(guest), by: guest)
        #expect(try await records.invitations(of: guest, after: nil, limit: 9).map(\.device) == [devices[2]])
        #expect(try await records.records(of: guest, after: nil, limit: 9).map(\.device) == [devices[0]])
        #expect(try await records.withdrawals(after: 0) == nil, "who declines has lost no right")
        await store.close()
    }

    @Test(
        "A change of a device's accounts and the rights that it ends are one step, fenced and bounded (IV-B10)",
        arguments: Kind.allCases)
    func relations(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        let guest = AccountID(unchecked: "guest")
        func relate(
            _ change: DeviceRelationChange, by client: AccountID?, epoch: Epoch = 4, now: Int64 = 100
        ) async throws(ApusError) -> DeviceRecord {
            try await records.relate(
                device, epoch: epoch, change, by: client.map { .account($0) } ?? .operator, now: now, keepSeconds: 60
            ).record
        }
        await #expect(throws: ApusError(.targetUnknown, "no such device")) { try await relate(.unbind, by: account) }
        _ = try await relate(.bind(account), by: nil)
        _ = try await relate(.share(DeviceShare(account: guest, control: true)), by: nil)
        #expect(try await records.withdrawals(after: 0) == nil)
        let mark = try #require(try await records.revocations(since: nil, wallSeconds: 100)?.mark)
        #expect(try await records.records(of: guest, after: nil, limit: 9).map(\.device) == [device])

        let after = try await relate(.unshare(guest), by: account)
        #expect(try await records.record(of: device) == after && after.shares.isEmpty)
        #expect(try await records.records(of: guest, after: nil, limit: 9).isEmpty)
        let read = try #require(try await records.withdrawals(after: 0))
        #expect(read.lost == [DeviceWithdrawal(device: device, account: guest, expires: 160)] && read.number == 1)
        #expect(try await records.withdrawals(after: 1) == nil)
        // Revocations are not read again for it.
        #expect(try await records.revocations(since: mark, wallSeconds: 100) == nil)
        // What changes nothing writes nothing.
        for _ in 0..<2 { _ = try await relate(.unshare(guest), by: account) }
        #expect(try await records.withdrawals(after: 1) == nil)
        _ = try await relate(.share(DeviceShare(account: guest, control: true)), by: nil)
        _ = try await relate(.unshare(guest), by: guest, now: 101)
        let again = try #require(try await records.withdrawals(after: 1))
        #expect(again.lost == [DeviceWithdrawal(device: device, account: guest, expires: 161)] && again.number == 2)

        await #expect(throws: ApusError.self) { try await relate(.unbind, by: account, epoch: 3) }
        #expect(try await records.record(of: device)?.account == account, "an older epoch changed the record")
        // Each loss counts, whoever has it: the same account twice already, and now further ones.
        for number in 2..<SessionRecords.withdrawnMax {
            let other = AccountID(unchecked: number.isMultiple(of: 2) ? "guest" : "a\(number)")
            _ = try await relate(.share(DeviceShare(account: other, control: false)), by: nil)
            _ = try await relate(.unshare(other), by: account)
        }
        let full = ApusError(.overloaded, "the rights to devices were changed too often; try again later")
        await #expect(throws: full) { try await relate(.unbind, by: account) }
        #expect(try await records.record(of: device)?.account == account, "half of a change was written")
        var list = WithdrawalList()
        list.add(try #require(try await records.withdrawals(after: 0)).lost)
        list.removeExpired(wallSeconds: 160)
        #expect(list.contains(guest, device), "of the losses of one account the last to expire counts")
        // They expire.
        let unbound = try await relate(.unbind, by: account, now: 161)
        #expect(unbound.account == nil && unbound.tokensAfter == 162)
        let last = try await records.withdrawals(after: UInt64(SessionRecords.withdrawnMax))
        #expect(last?.lost == [DeviceWithdrawal(device: device, account: account, expires: 221)])
        await store.close()
    }

    private func identity(
        _ name: String, _ epoch: Epoch, _ sequence: UInt64, expires: Int64 = 100
    ) -> IdentityRecord {
        IdentityRecord(
            identity: name, epoch: epoch, sequence: sequence, instance: .max, superseded: [0, 1 << 63, .max],
            expires: expires)
    }

    @Test("Of an identity the newest is remembered, until it expires", arguments: Kind.allCases)
    func identities(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        #expect(try await records.identity("device/a") == nil)
        try await records.save(
            [identity("device/a", 2, 1 << 63), identity("app/a", 2, 5, expires: 50)], wallSeconds: 1)
        #expect(try await records.identity("device/a") == identity("device/a", 2, 1 << 63))
        for older in [identity("device/a", 2, (1 << 63) - 1), identity("device/a", 1, .max)] {
            try await records.save([older], wallSeconds: 1)
            #expect(try await records.identity("device/a") == identity("device/a", 2, 1 << 63))
        }
        // What another owner wrote under a later epoch stands, whatever this one says.
        try await SessionRecords(store, writer: "n2#1").save([identity("app/b", 5, 1)], wallSeconds: 1)
        try await records.save([identity("app/b", 4, 9), identity("device/a", 3, 0)], wallSeconds: 50)
        #expect(try await records.identity("app/b")?.epoch == 5)
        #expect(try await records.identity("device/a") == identity("device/a", 3, 0))
        #expect(try await records.identity("app/a") == nil, "it expired")
        await store.close()
    }

    @Test("Many identities are written and forgotten in batches", arguments: Kind.allCases)
    func manyIdentities(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store, writer: "n1#1")
        try await records.save((0..<1000).map { identity("app/\($0)", 1, 1, expires: 10) }, wallSeconds: 1)
        #expect(try await store.page(RecordScan("identities", limit: 1000)).records.count == 1000)
        try await records.save([identity("app/0", 1, 2)], wallSeconds: 10)
        for _ in 0..<4 { try await records.save([identity("app/0", 1, 2)], wallSeconds: 10) }
        #expect(try await store.page(RecordScan("identities")).records.count == 1)
        #expect(try await store.page(RecordScan("identities", index: "expires")).records.count == 1)
        await store.close()
    }

    @Test("What is revoked is read when it has changed, until it expires", arguments: Kind.allCases)
    func revocations(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        let empty = try #require(try await records.revocations(since: nil, wallSeconds: 1))
        #expect(empty.records.isEmpty)
        #expect(try await records.revocations(since: empty.mark, wallSeconds: 1) == nil)
        let all = [
            RevocationRecord(.token(.max), expires: 10),
            RevocationRecord(.account(account, issuedBefore: 5), expires: 20),
            RevocationRecord(.identity("ann", account, issuedBefore: 6), expires: 30),
        ]
        for record in all { try await records.revoke(record, wallSeconds: 1) }
        let full = try #require(try await records.revocations(since: empty.mark, wallSeconds: 1))
        #expect(Set(full.records) == Set(all) && full.records.count == 3)
        #expect(try await records.revocations(since: full.mark, wallSeconds: 1) == nil)
        // What expired is left out, and makes room for the next one.
        let later = try #require(try await records.revocations(since: nil, wallSeconds: 10))
        #expect(Set(later.records) == Set(all[1...]))
        let token = RevocationRecord(.token(1), expires: 30)
        try await records.revoke(token, wallSeconds: 20)
        let last = try #require(try await records.revocations(since: full.mark, wallSeconds: 20))
        #expect(Set(last.records) == [all[2], token])
        #expect(try await store.page(RecordScan("revocations")).records.count == 2)
        // The same once more stands once, for as long as either says.
        try await records.revoke(RevocationRecord(.token(1), expires: 25), wallSeconds: 20)
        let same = try #require(try await records.revocations(since: last.mark, wallSeconds: 20))
        #expect(Set(same.records) == [all[2], token])
        await store.close()
    }

    @Test("Of those that revoke at once, each is kept and counted", arguments: Kind.allCases)
    func revokingAtOnce(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        try await withThrowingTaskGroup(of: Void.self) { group in
            for number in 0..<24 {
                group.addTask {
                    try await records.revoke(RevocationRecord(.token(UInt64(number)), expires: 100), wallSeconds: 1)
                }
            }
            try await group.waitForAll()
        }
        #expect(try await records.revocations(since: nil, wallSeconds: 1)?.records.count == 24)
        let state = try await store.page(RecordScan("revocation-state")).records
        #expect(state.map(\.version) == [24])
        await store.close()
    }

    @Test("A file of the release before has its devices, identities and revocations as records")
    func earlierRelease() async throws {
        let folder = try Folder()
        let fixture = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
            .appending(path: "Fixtures/records-before-collections.sqlite").path
        try FileManager.default.copyItem(atPath: fixture, toPath: folder.file)
        let store = try await folder.store()
        let records = SessionRecords(store)
        try await EarlierFile.expect(records)
        await store.close()
        // Opened once more it is the same: nothing is taken twice.
        let again = try await folder.store()
        try await EarlierFile.expect(SessionRecords(again))
        await again.close()
    }
}

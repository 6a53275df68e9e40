import ApusCore
import ApusSessions
import ApusStorage
import Foundation
import Testing

@Suite("Integrators, their users and tokens for one use (IV-A1, IV-A3)")
struct CustomerRecordsTests {
    private typealias Folder = SessionRecordsTests.Folder
    typealias Kind = SessionRecordsTests.Kind

    private let acme = CustomerID(unchecked: "acme")
    private let device = DeviceID(unchecked: "cam")

    @Test(
        "The same outside user has the same id, another one another, and so with another customer (IV-A1)",
        arguments: Kind.allCases)
    func users(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        func register(_ name: String, of customer: CustomerID, usersMax: Int = 5) async throws(ApusError) -> UserRecord
        {
            try await records.registerUser(name, of: customer, usersMax: usersMax, wallSeconds: 7)
        }
        await #expect(throws: ApusError(.targetUnknown)) { try await register("anna", of: acme) }
        let other = CustomerID(unchecked: "other")
        for customer in [acme, other] { _ = try await records.createCustomer(customer, wallSeconds: 7) }
        let anna = try await register("anna", of: acme)
        #expect(try await register("anna", of: acme) == anna)
        #expect(try await records.createCustomer(acme, wallSeconds: 8).userCount == 1, "a customer was made twice")
        #expect(try await register("anna", of: acme) == anna, "the ids of users changed")
        let names = [anna.user, try await register("Anna", of: acme).user, try await register("anna", of: other).user]
        #expect(Set(names).count == 3)
        for name in names {
            #expect(
                AccountID(rawValue: name.rawValue) != nil && name.rawValue.utf8.count == 26 && name.rawValue != "anna")
        }
        #expect(try await records.user(anna.user) == anna && anna.customer == acme)
        for number in 0..<3 { _ = try await register("u\(number)", of: acme) }
        await #expect(throws: ApusError(.overloaded)) { try await register("one more", of: acme) }
        #expect(try await register("anna", of: acme) == anna, "a full customer does not find its users")
        _ = try await register("more", of: other)
        let first = try await records.users(of: acme, after: nil, limit: 2)
        let rest = try await records.users(of: acme, after: first.last?.user, limit: 9)
        #expect((first + rest).map(\.user).sorted() == (first + rest).map(\.user) && first.count + rest.count == 5)
        await store.close()
    }

    @Test("Many register the same and other users at once: each is counted once", arguments: Kind.allCases)
    func concurrentUsers(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        _ = try await records.createCustomer(acme, wallSeconds: 7)
        let names = try await withThrowingTaskGroup(of: AccountID.self) { group in
            for number in 0..<40 {
                group.addTask {
                    try await records.registerUser(
                        "user \(number % 10)", of: acme, usersMax: 100, wallSeconds: 7
                    ).user
                }
            }
            return try await group.reduce(into: Set()) { $0.insert($1) }
        }
        #expect(names.count == 10)
        #expect(try await records.customer(acme)?.userCount == 10)
        await store.close()
    }

    @Test(
        "Two keys of a customer are valid; a third is refused until one is revoked or has expired (10007)",
        arguments: Kind.allCases)
    func keys(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        func add(_ id: String, now: Int64, expires: Int64) async throws(ApusError) {
            try await records.addKey(
                CustomerRecord.Key(id: id, issued: now, expires: expires), of: acme, now: now)
        }
        await #expect(throws: ApusError(.targetUnknown)) { try await add("a", now: 1, expires: 10) }
        _ = try await records.createCustomer(acme, wallSeconds: 1)
        try await add("a", now: 1, expires: 10)
        try await add("b", now: 2, expires: 100)
        await #expect(throws: ApusError(.overloaded)) { try await add("c", now: 9, expires: 100) }
        try await add("c", now: 10, expires: 100)
        await #expect(throws: ApusError(.targetUnknown)) { try await records.revokeKey("a", of: acme, now: 11) }
        try await records.revokeKey("b", of: acme, now: 11)
        #expect(try await records.customer(acme)?.keys.map(\.id) == ["c"])
        let revoked = try #require(try await records.revocations(since: nil, wallSeconds: 11))
        #expect(revoked.records == [RevocationRecord(.token(TokenMark.tag(of: "b")), expires: 160)])
        await store.close()
    }

    @Test("The revocations of a customer are bounded within a window, which ends also where the clock went back")
    func revocations() async throws {
        let records = SessionRecords(MemoryRecordStore())
        _ = try await records.createCustomer(acme, wallSeconds: 1)
        func note(_ now: Int64) async throws(ApusError) {
            try await records.noteRevocation(by: acme, max: 2, window: 100, now: now)
        }
        for now: Int64 in [1000, 1050] { try await note(now) }
        await #expect(throws: ApusError(.overloaded)) { try await note(1099) }
        for now: Int64 in [1100, 1101] { try await note(now) }
        await #expect(throws: ApusError(.overloaded)) { try await note(1102) }
        try await note(1)
        // Those of customers leave half to operators.
        let first = RevocationRecord(.token(1), expires: 9)
        try await records.revoke(first, wallSeconds: 1, countMax: 1)
        await #expect(throws: ApusError(.overloaded)) {
            try await records.revoke(RevocationRecord(.token(2), expires: 9), wallSeconds: 1, countMax: 1)
        }
        try await records.revoke(RevocationRecord(.token(2), expires: 9), wallSeconds: 1)
    }

    @Test(
        "A device is bound only where its customer is that of the account (8024), also by its first connection",
        arguments: Kind.allCases)
    func binding(kind: Kind) async throws {
        let folder = try Folder()
        let store = try await kind.store(folder)
        let records = SessionRecords(store)
        _ = try await records.createCustomer(acme, wallSeconds: 1)
        let user = try await records.registerUser("anna", of: acme, usersMax: 5, wallSeconds: 1).user
        func relate(
            _ change: DeviceRelationChange, by client: DeviceClient
        ) async throws(ApusError) -> DeviceRecord {
            try await records.relate(device, epoch: 3, change, by: client, now: 100, keepSeconds: 60).record
        }
        await #expect(throws: ApusError(.targetUnknown)) { try await relate(.bind(user), by: .customer(acme)) }
        await #expect(throws: ApusError(.targetUnknown)) {
            try await relate(.assign(CustomerID(unchecked: "nobody")), by: .operator)
        }
        await #expect(throws: ApusError(.otherCustomer)) {
            try await records.bind(DeviceRecord(device: device, account: user, epoch: 3))
        }
        #expect(try await relate(.assign(acme), by: .operator).customer == acme)
        let noUser = AccountID(unchecked: "no-user")
        await #expect(throws: ApusError(.otherCustomer)) {
            try await records.bind(DeviceRecord(device: device, account: noUser, epoch: 3))
        }
        await #expect(throws: ApusError(.otherCustomer)) { try await relate(.bind(noUser), by: .customer(acme)) }
        #expect(try await relate(.bind(user), by: .customer(acme)).account == user)
        #expect(try await records.record(of: device)?.customer == acme)
        await store.close()
    }
}

import ApusCore
import ApusStorage
import ApusThings
import SwiftProtobuf
import Testing

@Suite("What a node remembers of products")
struct ProductCacheTests {
    private static let key = ProductCache.Key(customer: "acme", product: "bell")
    private static let cam = DeviceID(unchecked: "cam")

    private static func at(_ milliseconds: Int) -> MonotonicTime {
        MonotonicTime.zero + .seconds(100) + .milliseconds(milliseconds)
    }

    /// 0: has to be read; 1: known, and there is no schema; 2: known, with a schema.
    private static func state(_ found: Result<ThingSchema?, ApusError>?) throws -> Int {
        guard let found else { return 0 }
        return try found.get() == nil ? 1 : 2
    }

    @Test("A schema is used for 5 s from the beginning of its reading; in the second half, one caller reads it again")
    func schemas() throws {
        var cache = ProductCache()
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(0))) == 0)
        cache.note(.success(try ThingSchema("{}")), of: Self.key, read: Self.at(0))
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(2499))) == 2)
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(2500))) == 0)
        for _ in 0..<3 { #expect(try Self.state(cache.schema(Self.key, at: Self.at(4999))) == 2) }
        // The caller that was to read it has failed.
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(5000))) == 0)
        cache.note(.success(nil), of: Self.key, read: Self.at(5000))
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(7000))) == 1)
        #expect(try Self.state(cache.schema(Self.key, at: Self.at(7600))) == 0)
    }

    @Test("Products of one name of different customers are different ones")
    func customers() throws {
        var cache = ProductCache()
        cache.note(.success(try ThingSchema("{}")), of: Self.key, read: Self.at(0))
        let other = ProductCache.Key(customer: "", product: "bell")
        #expect(try Self.state(cache.schema(other, at: Self.at(1))) == 0)
    }

    @Test("The last product of a device has no end for writes, which verify it, and one for actions, which do not")
    func devices() {
        var cache = ProductCache()
        #expect(cache.lastProduct(of: Self.cam).isEmpty && cache.product(of: Self.cam, at: Self.at(0)) == nil)
        // Without a product there is nothing to note.
        cache.note(customer: "acme", of: Self.cam, read: Self.at(0))
        #expect(cache.customer(of: Self.cam, at: Self.at(0)) == nil)
        cache.note(product: "bell", of: Self.cam, read: Self.at(0))
        cache.note(customer: "acme", of: Self.cam, read: Self.at(1000))
        #expect(cache.product(of: Self.cam, at: Self.at(10)) == "bell")
        #expect(cache.customer(of: Self.cam, at: Self.at(3000)) == "acme")
        #expect(cache.product(of: Self.cam, at: Self.at(5001)) == nil)
        #expect(cache.customer(of: Self.cam, at: Self.at(6001)) == nil)
        #expect(cache.lastProduct(of: Self.cam) == "bell")
        // A new product does not make the customer a new one.
        cache.note(customer: "acme", of: Self.cam, read: Self.at(7000))
        cache.note(product: "horn", of: Self.cam, read: Self.at(7001))
        #expect(cache.customer(of: Self.cam, at: Self.at(7002)) == "acme")
        #expect(cache.lastProduct(of: Self.cam) == "horn")
    }

    @Test("Whether there are products at all is read again after 5 s")
    func use() {
        var cache = ProductCache()
        #expect(cache.areProductsUsed(at: Self.at(0)) == nil)
        cache.noteUse(false, read: Self.at(0))
        #expect(cache.areProductsUsed(at: Self.at(2000)) == false)
        #expect(cache.areProductsUsed(at: Self.at(5000)) == nil)
    }

    @Test("A full cache keeps what was used last, and never more than its bound")
    func bound() {
        var cache = RecentCache<Int, Int>(countMax: 16)
        for number in 0..<16 { cache[number] = number }
        #expect(cache[0] == 0)
        cache[16] = 16
        #expect(cache[0] == 0 && cache[16] == 16 && cache[1] == nil && cache[2] == nil && cache[3] == 3)
        for number in 17..<1000 {
            cache[number] = number
            #expect(cache.count <= 16 && cache[0] == 0)
        }
        cache[0] = nil
        #expect(cache[0] == nil)
        cache[999] = 1
        #expect(cache[999] == 1 && cache.count <= 16)
        var one = RecentCache<Int, Int>(countMax: 1)
        for number in 0..<3 { one[number] = number }
        #expect(one.count == 1 && one[2] == 2)
    }
}

@Suite("The records of products")
struct ProductRecordsTests {
    private static func id(_ name: String) -> ProductID { ProductID(unchecked: name) }

    private static func put(
        _ records: ProductRecords, _ name: String, of customer: String = "acme", _ schema: String = "{}",
        ifRevision: UInt64 = 0, countMax: Int = 3, now: Int64 = 1000
    ) async throws -> ThingStoredProduct {
        try await records.put(
            id(name), of: customer, schema: schema, ifRevision: ifRevision, countMax: countMax, wallMilliseconds: now)
    }

    private static func code(_ body: () async throws -> Void) async -> ErrorCode? {
        do {
            try await body()
            return nil
        } catch {
            return (error as? ApusError)?.code
        }
    }

    @Test("A product is created, replaced, listed and deleted, and its revision grows even over a deletion")
    func revisions() async throws {
        let records = ProductRecords(MemoryRecordStore())
        let first = try await Self.put(records, "bell")
        #expect(first.revision == 1 && first.createdMs == 1000 && first.changedMs == 1000)
        let same = try await Self.put(records, "bell", ifRevision: 99, now: 2000)
        #expect(same == first)
        let second = try await Self.put(records, "bell", "true", ifRevision: 1, now: 3000)
        #expect(second.revision == 2 && second.createdMs == 1000 && second.changedMs == 3000)
        #expect(await Self.code { _ = try await Self.put(records, "bell", "false", ifRevision: 1) } == .versionConflict)
        #expect(await Self.code { _ = try await Self.put(records, "horn", ifRevision: 1) } == .versionConflict)
        #expect(try await records.product(Self.id("bell"), of: "acme") == second)
        #expect(try await records.product(Self.id("horn"), of: "acme") == nil)
        try await records.delete(Self.id("bell"), of: "acme")
        #expect(await Self.code { try await records.delete(Self.id("bell"), of: "acme") } == .targetUnknown)
        #expect(try await records.product(Self.id("bell"), of: "acme") == nil)
        #expect(try await Self.put(records, "bell").revision == 3)
    }

    @Test("A customer has at most as many products as are allowed, and a deleted one makes place; others are untouched")
    func bound() async throws {
        let records = ProductRecords(MemoryRecordStore())
        #expect(try await !records.areUsed())
        for name in ["a", "b", "c"] { _ = try await Self.put(records, name) }
        #expect(try await records.areUsed())
        #expect(await Self.code { _ = try await Self.put(records, "d") } == .overloaded)
        _ = try await Self.put(records, "c", "true")
        for customer in ["", "acme2", "acm"] { _ = try await Self.put(records, "d", of: customer) }
        try await records.delete(Self.id("b"), of: "acme")
        _ = try await Self.put(records, "d")
        #expect(try await records.products(of: "acme", after: nil, limit: 10).map(\.product) == ["a", "c", "d"])
        #expect(try await records.products(of: "", after: nil, limit: 10).map(\.product) == ["d"])
        #expect(try await records.products(of: "acme", after: Self.id("a"), limit: 1).map(\.product) == ["c"])
    }

    @Test("Many that create products at once do not exceed the bound")
    func together() async throws {
        let records = ProductRecords(MemoryRecordStore())
        let created = await withTaskGroup(of: Bool.self) { group in
            for number in 0..<8 {
                group.addTask { (try? await Self.put(records, "p\(number)", countMax: 5)) != nil }
            }
            return await group.reduce(into: 0) { $0 += $1 ? 1 : 0 }
        }
        #expect(created == 5)
        #expect(try await records.products(of: "acme", after: nil, limit: 10).count == 5)
    }
}

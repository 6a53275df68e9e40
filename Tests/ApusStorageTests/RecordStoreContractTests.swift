import ApusCore
import ApusStorage
import Foundation
import SwiftProtobuf
import Testing

/// What the contract is tried with.
enum RecordStoreKind: String, Sendable {
    case memory, files, postgresql

    static let allCases: [Self] = [.memory, .files] + (PostgresServer.programs == nil ? [] : [.postgresql])

    func records(
        in scratch: borrowing Scratch, catalogue: RecordCatalogue = RecordCatalogue([]),
        limits: RecordStoreLimits = RecordStoreLimits()
    ) async throws -> any RecordStore {
        switch self {
        case .files:
            try await SQLiteRecordStore(
                path: scratch.path + "/records.sqlite", cluster: testCluster, catalogue: catalogue, limits: limits)
        case .memory: MemoryRecordStore(limits: limits)
        case .postgresql:
            try await PostgresRecordStore(
                url: try PostgresServer.shared.get().url(
                    schema: URL(fileURLWithPath: scratch.path).lastPathComponent),
                cluster: testCluster, catalogue: catalogue, limits: limits)
        }
    }
}

/// A record of a service that no store knows.
let stamps = RecordCollection<Google_Protobuf_Timestamp>(
    "stamps", layout: 1, key: { OrderedKey(.signed($0.seconds)) },
    indexes: [RecordIndex("nanos") { [OrderedKey(.signed(Int64($0.nanos)))] }])

@Suite("Record store contract (D16)")
struct RecordStoreContractTests {
    private let key = OrderedKey(.text("cam"))

    private func read(_ store: any RecordStore, _ name: String = "cam") async throws -> StoredRecord? {
        try await store.records("things", [OrderedKey(.text(name))])[0]
    }

    @Test("A record is read as it was written, whatever its bytes are", arguments: RecordStoreKind.allCases)
    func roundTrip(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        #expect(try await read(store) == nil)
        let bodies: [[UInt8]] = [[], [0], Array(0...255), Array(repeating: 0xFF, count: 100_000)]
        for (index, body) in bodies.enumerated() {
            let version = try await store.commit(write("cam", body, epoch: .max))
            #expect(version == UInt64(index + 1))
            let found = try #require(try await read(store))
            #expect(found.body == body && found.version == version)
            #expect(found.fence == RecordFence(epoch: .max, writer: "n1#1"))
        }
        await store.close()
    }

    @Test(
        "A write under an older epoch is refused with 10013, under the same one by another writer too",
        arguments: RecordStoreKind.allCases)
    func fenced(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.commit(write("cam", [1], epoch: 4))
        await #expect(throws: ApusError(.staleEpoch)) { try await store.commit(write("cam", [2], epoch: 3)) }
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.commit(write("cam", [2], epoch: 4, writer: "n2#1"))
        }
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.commit(write("cam", nil, epoch: 4, writer: "n2#1"))
        }
        await #expect(throws: ApusError(.staleEpoch)) { try await store.commit(erase("cam", epoch: 3)) }
        #expect(try await read(store)?.body == [1])
        // The same writer, one whose name is unknown, and a later epoch.
        try await store.commit(write("cam", [2], epoch: 4))
        try await store.commit(write("cam", [3], epoch: 4, writer: ""))
        try await store.commit(write("cam", [4], epoch: 4, writer: "n3#1"))
        try await store.commit(write("cam", [5], epoch: 9, writer: "n2#1"))
        #expect(try await read(store)?.fence == RecordFence(epoch: 9, writer: "n2#1"))
        #expect(try await read(store)?.version == 5)
        await store.close()
    }

    @Test(
        "A removed record stays fenced, and its versions go on; an erased one is forgotten",
        arguments: RecordStoreKind.allCases)
    func removed(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.commit(write("cam", [1], epoch: 4, entries: [("by", "x")]))
        #expect(try await store.commit(write("cam", nil, epoch: 5)) == 2)
        #expect(try await read(store) == nil)
        #expect(try await store.page(RecordScan("things")).records.isEmpty)
        #expect(try await store.page(RecordScan("things", index: "by")).records.isEmpty)
        await #expect(throws: ApusError(.staleEpoch)) { try await store.commit(write("cam", [1], epoch: 4)) }
        await #expect(throws: ApusError(.versionConflict)) {
            try await store.commit(write("cam", [1], epoch: 6, if: .version(2)))
        }
        #expect(try await store.commit(write("cam", [1], epoch: 6, if: .absent)) == 3)
        #expect(try await store.commit(erase("cam", epoch: 6, if: .version(3))) == 0)
        #expect(try await store.commit(write("cam", [1], epoch: 1)) == 1)
        // What was never there can be removed, and is fenced from then on.
        #expect(try await store.commit(write("other", nil, epoch: 7)) == 1)
        await #expect(throws: ApusError(.staleEpoch)) { try await store.commit(write("other", [1], epoch: 6)) }
        #expect(try await store.commit(erase("third", epoch: 1)) == 0)
        await store.close()
    }

    @Test("A write is made only where its condition holds, else 10030", arguments: RecordStoreKind.allCases)
    func conditions(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        await #expect(throws: ApusError(.versionConflict)) {
            try await store.commit(write("cam", [1], if: .version(1)))
        }
        #expect(try await store.commit(write("cam", [1], if: .absent)) == 1)
        await #expect(throws: ApusError(.versionConflict)) { try await store.commit(write("cam", [2], if: .absent)) }
        await #expect(throws: ApusError(.versionConflict)) {
            try await store.commit(write("cam", [2], if: .version(2)))
        }
        #expect(try await store.commit(write("cam", [2], if: .version(1))) == 2)
        #expect(try await read(store)?.body == [2])
        await store.close()
    }

    @Test(
        "The writes of a step are made together or not at all, and each sees those before it",
        arguments: RecordStoreKind.allCases)
    func steps(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.commit(write("b", [9], epoch: 9, entries: [("by", "b")]))
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.commit(
                RecordStep(
                    write("a", [1], entries: [("by", "a")]), write("c", [1]), write("b", [1], epoch: 8)))
        }
        #expect(try await store.page(RecordScan("things")).records.map(\.body) == [[9]])
        #expect(try await store.page(RecordScan("things", index: "by")).records.map(\.body) == [[9]])
        let versions = try await store.commit(
            RecordStep(
                write("a", [1], if: .absent), write("a", [2], if: .version(1)), erase("a", if: .version(2)),
                write("a", [3], if: .absent), write("b", nil, epoch: 9)))
        #expect(versions == [1, 2, 0, 1, 2])
        #expect(try await store.page(RecordScan("things")).records.map(\.body) == [[3]])
        await store.close()
    }

    @Test(
        "A check changes nothing, and lets its step be made only where its fence and its condition hold",
        arguments: RecordStoreKind.allCases)
    func checks(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        try await store.commit(write("owner", [1], epoch: 5, writer: "n2#1"))
        func check(epoch: Epoch, writer: String, if condition: RecordCondition = .any, of key: String = "owner")
            -> RecordWrite
        {
            RecordWrite(
                RecordID("things", OrderedKey(.text(key))), .check, fence: RecordFence(epoch: epoch, writer: writer),
                condition: condition)
        }
        let refused: [(RecordWrite, ErrorCode)] = [
            (check(epoch: 4, writer: "n1#1"), .staleEpoch), (check(epoch: 5, writer: "n1#1"), .staleEpoch),
            (check(epoch: 5, writer: "n2#1", if: .version(2)), .versionConflict),
            (check(epoch: 5, writer: "n2#1", if: .absent), .versionConflict),
            (check(epoch: 5, writer: "n2#1", if: .version(1), of: "none"), .versionConflict),
        ]
        for (check, code) in refused {
            await #expect(throws: ApusError(code)) { try await store.commit(RecordStep(check, write("cam", [1]))) }
            await #expect(throws: ApusError(code)) { try await store.commit(RecordStep(write("cam", [1]), check)) }
        }
        #expect(try await read(store) == nil)
        let versions = try await store.commit(
            RecordStep(
                check(epoch: 5, writer: "n2#1", if: .version(1)), write("cam", [1]),
                check(epoch: 9, writer: "n1#1", if: .version(1), of: "cam"), check(epoch: 1, writer: "", of: "none")))
        #expect(versions == [1, 1, 1, 0])
        // Its fence is not the record's from then on.
        #expect(try await store.commit(check(epoch: 8, writer: "n3#1")) == 1)
        #expect(try await read(store, "owner")?.fence == RecordFence(epoch: 5, writer: "n2#1"))
        #expect(try await store.commit(write("owner", [2], epoch: 5, writer: "n2#1")) == 2)
        await store.close()
    }

    @Test(
        "Of many steps at once each is judged alone, and one that is refused takes no other with it",
        arguments: RecordStoreKind.allCases)
    func manyAtOnce(kind: RecordStoreKind) async throws {
        let scratch = try Scratch(isInMemory: true)
        let store = try await kind.records(in: scratch)
        let outcomes = await store.commit((0..<300).map { RecordStep(write("k\($0 % 100)", [1], if: .absent)) })
        let made = outcomes.count { (try? $0.get()) == [1] }
        let refused = outcomes.count { outcome in
            if case .failure(let error) = outcome { error.code == .versionConflict } else { false }
        }
        #expect(made == 100 && refused == 200)
        // The same of many callers.
        let count = try await withThrowingTaskGroup(of: Int.self) { group in
            for caller in 0..<64 {
                group.addTask { try await Self.increment(store, "counter-\(caller % 4)", times: 10) }
            }
            return try await group.reduce(0, +)
        }
        #expect(count == 640)
        for counter in 0..<4 {
            let found = try #require(try await read(store, "counter-\(counter)"))
            #expect(found.body.reduce(0) { $0 << 8 | Int($1) } == 160)
        }
        await store.close()
    }

    /// Adds one to a number, again and again, by put-if-version.
    private static func increment(_ store: any RecordStore, _ name: String, times: Int) async throws -> Int {
        var doneCount = 0
        while doneCount < times {
            let found = try await store.records("things", [OrderedKey(.text(name))])[0]
            let next = (found?.body.reduce(0) { $0 << 8 | Int($1) } ?? 0) + 1
            do throws(ApusError) {
                try await store.commit(
                    write(
                        name, [UInt8(next >> 8), UInt8(next & 0xFF)],
                        if: found.map { .version($0.version) } ?? .absent))
                doneCount += 1
            } catch {
                guard error.code == .versionConflict else { throw error }
            }
        }
        return doneCount
    }

    @Test(
        "Pages follow the order of keys and of indexes, from any token, and stay within bounds",
        arguments: RecordStoreKind.allCases)
    func pages(kind: RecordStoreKind) async throws {
        let scratch = try Scratch(isInMemory: true)
        let store = try await kind.records(in: scratch)
        let outcomes = await store.commit(
            (0..<50).map { number in
                let name = "k" + String(100 + number)
                return RecordStep(
                    write(name, [UInt8(number)], entries: [("turned", String(200 - number)), ("all", "same")]))
            })
        for outcome in outcomes { _ = try outcome.get() }
        try await store.commit(write("k105", [5], in: "others"))
        for limit in [1, 7, 50, 1000] {
            for index in [nil, "all"] {
                let scan = RecordScan("things", index: index, limit: limit)
                #expect(try await Self.all(store, scan) == Array(0..<50))
            }
            let turned = RecordScan("things", index: "turned", limit: limit)
            #expect(try await Self.all(store, turned) == (0..<50).reversed())
        }
        let part = RecordScan(
            "things", from: OrderedKey(.text("k110")), below: OrderedKey(.text("k120")), limit: 4)
        #expect(try await Self.all(store, part) == Array(10..<20))
        let entry = RecordScan(
            "things", index: "turned", from: OrderedKey(.text("190")), below: OrderedKey(.text("195")), limit: 2)
        #expect(try await Self.all(store, entry) == Array((6...10).reversed()))
        #expect(try await Self.all(store, RecordScan("things", index: "none")) == [])
        // What is removed between two pages is missing, and nothing is read twice.
        let first = try await store.page(RecordScan("things", limit: 10))
        for name in ["k109", "k110"] { try await store.commit(write(name, nil)) }
        let second = try await store.page(RecordScan("things", token: first.next, limit: 3))
        #expect(second.records.map { Int($0.body[0]) } == [11, 12, 13])
        await store.close()
    }

    private static func all(_ store: any RecordStore, _ scan: RecordScan) async throws -> [Int] {
        var (scan, found) = (scan, [Int]())
        repeat {
            let page = try await store.page(scan)
            #expect(page.records.count <= scan.limit)
            found += page.records.map { Int($0.body[0]) }
            scan.token = page.next
        } while scan.token != nil
        return found
    }

    @Test("A page ends where it becomes too long in bytes", arguments: RecordStoreKind.allCases)
    func longPages(kind: RecordStoreKind) async throws {
        let scratch = try Scratch(isInMemory: true)
        let store = try await kind.records(in: scratch)
        for number in 0..<20 {
            try await store.commit(write("k\(100 + number)", [UInt8](repeating: UInt8(number), count: 256 << 10)))
        }
        let page = try await store.page(RecordScan("things"))
        #expect(page.records.count == 17, "16 of 256 KiB fill it, and one more ends it")
        #expect(page.next != nil)
        let rest = try await store.page(RecordScan("things", token: page.next))
        #expect(rest.records.count == 3 && rest.next == nil)
        await store.close()
    }

    @Test("A record's entries follow it: those that went are found no more", arguments: RecordStoreKind.allCases)
    func entries(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch)
        func found(_ value: String) async throws -> [String] {
            let value = OrderedKey(.text(value))
            return try await store.page(RecordScan("things", index: "by", from: value, below: value.end)).records
                .map(\.key.description)
        }
        try await store.commit(write("a", [1], entries: [("by", "x"), ("by", "y"), ("by", "x")]))
        try await store.commit(write("b", [1], entries: [("by", "x")]))
        #expect(try await [found("x"), found("y")] == [["a", "b"], ["a"]])
        try await store.commit(write("a", [2], entries: [("by", "y"), ("by", "z")]))
        #expect(try await [found("x"), found("y"), found("z")] == [["b"], ["a"], ["a"]])
        try await store.commit(RecordStep(erase("a"), write("a", [3], entries: [("by", "x")])))
        #expect(try await [found("x"), found("y"), found("z")] == [["a", "b"], [], []])
        await store.close()
    }

    @Test(
        "What exceeds a bound is refused with 10002, and takes no other step with it",
        arguments: RecordStoreKind.allCases)
    func bounds(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        var limits = RecordStoreLimits()
        limits.bodyByteCountMax = 1000
        let store = try await kind.records(in: scratch, limits: limits)
        try await store.commit(write("a", [UInt8](repeating: 1, count: 1000)))
        let long = String(repeating: "k", count: RecordLimits.keyByteCountMax)
        let refused = [
            RecordStep(write("a", [UInt8](repeating: 1, count: 1001))), RecordStep(write(long, [1])),
            RecordStep(write("a", [1], entries: [("by", long)])),
            RecordStep(write("a", [1], entries: (0...RecordLimits.entryCountMax).map { ("by", "\($0)") })),
            RecordStep((0...RecordLimits.writeCountMax).map { write("k\($0)", [1]) }),
            RecordStep(write("a", [1], writer: String(repeating: "w", count: 97))),
        ]
        for step in refused { await #expect(throws: ApusError(.frameTooLarge)) { try await store.commit(step) } }
        let mixed = await store.commit([refused[0], RecordStep(write("b", [1])), refused[1]])
        #expect(mixed.map { try? $0.get() } == [nil, [1], nil])
        for step in [RecordStep(), RecordStep(write("a", [1], in: ""))] {
            await #expect(throws: ApusError(.badParameter)) { try await store.commit(step) }
        }
        await #expect(throws: ApusError(.badParameter)) {
            try await store.records("things", Array(repeating: key, count: RecordLimits.pageCountMax + 1))
        }
        #expect(try await read(store, "a")?.version == 1)
        await store.close()
        await #expect(throws: ApusError(.storageFailed)) { try await store.commit(write("a", [1])) }
        await #expect(throws: ApusError(.storageFailed)) { try await read(store, "a") }
    }

    @Test(
        "A service reads its own messages, and a newer release's layout shuts out older writers (10003)",
        arguments: RecordStoreKind.allCases)
    func collections(kind: RecordStoreKind) async throws {
        let scratch = try Scratch()
        let store = try await kind.records(in: scratch, catalogue: RecordCatalogue([stamps]))
        for seconds in [3, -1, 2] as [Int64] {
            let stamp = Google_Protobuf_Timestamp(seconds: seconds, nanos: Int32(10 - seconds))
            try await store.commit(stamps.put(stamp, fence: .none, if: .absent))
        }
        #expect(try await store.record(stamps, OrderedKey(.signed(2)))?.body.nanos == 8)
        #expect(try await store.page(stamps).records.map(\.body.seconds) == [-1, 2, 3])
        #expect(try await store.page(stamps, by: "nanos").records.map(\.body.seconds) == [3, 2, -1])
        let some = try await store.page(stamps, by: "nanos", below: OrderedKey(.signed(8)).end)
        #expect(some.records.map(\.body.seconds) == [3, 2])
        let found = try #require(try await store.records("stamps", [OrderedKey(.signed(2))])[0])
        #expect(try stamps.json(found) == #""1970-01-01T00:00:02.000000008Z""#)
        let newer = RecordCollection<Google_Protobuf_Timestamp>("stamps", layout: 2, key: stamps.key(of:))
        let wider = kind == .memory ? store : try await kind.records(in: scratch, catalogue: RecordCatalogue([newer]))
        try await wider.commit(newer.put(Google_Protobuf_Timestamp(seconds: 9), fence: .none))
        await #expect(throws: ApusError(.versionUnsupported)) {
            try await store.commit(stamps.put(Google_Protobuf_Timestamp(seconds: 9), fence: .none))
        }
        await store.close()
        await wider.close()
    }
}

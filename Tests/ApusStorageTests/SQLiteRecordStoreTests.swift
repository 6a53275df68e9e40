import ApusCore
import ApusStorage
import Foundation
import GRDB
import SwiftProtobuf
import Testing

@Suite("Records in a SQLite file (D9, D16)")
struct SQLiteRecordStoreTests {
    private func open(
        _ path: String, catalogue: RecordCatalogue = RecordCatalogue([]), files: SQLiteLimits = SQLiteLimits(),
        limits: RecordStoreLimits = RecordStoreLimits()
    ) async throws -> SQLiteRecordStore {
        try await SQLiteRecordStore(
            path: path, cluster: testCluster, catalogue: catalogue, limits: limits, files: files)
    }

    /// Every page, and every entry with its record.
    private func expectSound(_ path: String) throws {
        let queue = try DatabaseQueue(path: path)
        try queue.writeWithoutTransaction { database in
            #expect(try String.fetchOne(database, sql: "PRAGMA integrity_check") == "ok")
            let lost = try Int.fetchOne(
                database,
                sql: """
                    SELECT count(*) FROM record_entries AS e LEFT JOIN records AS r
                    ON r.collection = e.collection AND r.key = e.key WHERE r.body IS NULL
                    """)
            #expect(lost == 0, "entries without their records")
        }
        try queue.close()
    }

    @Test("What another connection wrote counts, however often this one wrote the record before")
    func othersWrites() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let (ours, theirs) = (try await open(path), try await open(path))
        func put(_ store: SQLiteRecordStore, _ condition: RecordCondition, epoch: Epoch) async throws -> UInt64 {
            try await store.commit(write("endpoint", [1], epoch: epoch, writer: "", if: condition))
        }
        #expect(try await put(ours, .absent, epoch: 1) == 1)
        #expect(try await put(ours, .version(1), epoch: 1) == 2)
        #expect(try await put(theirs, .version(2), epoch: 1) == 3)
        await #expect(throws: ApusError(.versionConflict)) { try await put(ours, .version(2), epoch: 1) }
        #expect(try await put(ours, .version(3), epoch: 1) == 4)
        #expect(try await put(theirs, .version(4), epoch: 9) == 5)
        await #expect(throws: ApusError(.staleEpoch)) { try await put(ours, .any, epoch: 1) }
        // A commit that failed whole leaves nothing behind that the next one goes by.
        #expect(try await put(ours, .version(5), epoch: 9) == 6)
        await ours.close()
        await theirs.close()
    }

    /// SQLite before 3.51.3 can lose commits where one connection writes the log back while another commits. Here every
    /// commit writes it back, which is as often as it can be.
    @Test("Of connections that commit and write the log back at every commit, none loses what it acknowledged")
    func manyCheckpoints() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        var files = SQLiteLimits()
        files.checkpointPageCount = 1
        let kept = files
        let written = try await withThrowingTaskGroup(of: [String].self) { group in
            for writer in 0..<6 {
                group.addTask {
                    // Opened and closed again and again: both write the log back too.
                    var names: [String] = []
                    for round in 0..<6 {
                        let store = try await open(path, files: kept)
                        for number in 0..<40 {
                            let name = "w\(writer)-\(round)-\(number)"
                            try await store.commit(write(name, [UInt8](repeating: 7, count: 700)))
                            names.append(name)
                        }
                        await store.close()
                    }
                    return names
                }
            }
            return try await group.reduce(into: [String]()) { $0 += $1 }
        }
        #expect(written.count == 6 * 6 * 40)
        let store = try await open(path)
        for start in stride(from: 0, to: written.count, by: 1000) {
            let names = written[start..<min(start + 1000, written.count)]
            let found = try await store.records("things", names.map { OrderedKey(.text($0)) })
            #expect(found.allSatisfy { $0?.body.count == 700 })
        }
        await store.close()
        try expectSound(path)
    }

    @Test("Stores of one process take turns, and each sees what the other committed")
    func turns() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let (a, b) = (try await open(path), try await open(path))
        var version: UInt64 = 0
        for _ in 0..<50 {
            for store in [a, b] {
                let condition = version == 0 ? RecordCondition.absent : .version(version)
                version = try await store.commit(write("cam", [1], if: condition))
            }
        }
        #expect(version == 100)
        await a.close()
        await b.close()
    }

    @Test("A commit that waits too long for the lock fails with 10021, and those behind it with it")
    func locked() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        var files = SQLiteLimits()
        files.lockTimeout = .milliseconds(200)
        let (holder, store) = (try await open(path), try await open(path, files: files))
        let (held, feed) = AsyncStream.makeStream(of: Void.self)
        async let holding: Void = holder.holdLock(for: .seconds(2)) { feed.finish() }
        for await _ in held {}
        let start = MonotonicTime.now()
        await withTaskGroup(of: Void.self) { group in
            for number in 0..<20 {
                group.addTask {
                    await #expect(throws: ApusError(.storageFailed)) {
                        try await store.commit(write("k\(number)", [1]))
                    }
                }
            }
        }
        #expect(MonotonicTime.now() - start < .milliseconds(1500), "they waited once, not one after the other")
        #expect(try await store.records("things", [OrderedKey(.text("k0"))]) == [nil], "readers do not wait")
        try await holding
        try await store.commit(write("k0", [1]))
        await holder.close()
        await store.close()
    }

    @Test("More steps than may wait are refused with 10007")
    func overloaded() async throws {
        let scratch = try Scratch(isInMemory: true)
        var limits = RecordStoreLimits()
        limits.waitingStepCountMax = 4
        let store = try await open(scratch.path + "/records.sqlite", limits: limits)
        let steps = (0..<5).map { RecordStep(write("k\($0)", [1])) }
        for outcome in await store.commit(steps) {
            #expect(throws: ApusError(.overloaded)) { try outcome.get() }
        }
        for outcome in await store.commit(Array(steps[1...])) { #expect(try outcome.get() == [1]) }
        await store.close()
    }

    @Test("A file that was replaced under a running store takes no more writes (10021)", arguments: ["", "-lock"])
    func replaced(suffix: String) async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let store = try await open(path)
        try await store.commit(write("cam", [1]))
        let older = scratch.path + "/older"
        try FileManager.default.copyItem(atPath: path + suffix, toPath: older)
        try FileManager.default.removeItem(atPath: path + suffix)
        try FileManager.default.moveItem(atPath: older, toPath: path + suffix)
        let error = await #expect(throws: ApusError.self) { try await store.commit(write("cam", [2])) }
        #expect(error?.code == .storageFailed && error?.message.contains("replaced") == true)
        await store.close()
    }

    @Test("A damaged page is reported, and never read as something else")
    func damaged() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let store = try await open(path)
        for number in 0..<200 { try await store.commit(write("k\(number)", [UInt8](repeating: 7, count: 1000))) }
        await store.close()
        var bytes = try Data(contentsOf: URL(fileURLWithPath: path))
        for page in 4..<(bytes.count / 4096) {
            bytes.replaceSubrange((page * 4096)..<(page * 4096 + 64), with: Data(count: 64))
        }
        try bytes.write(to: URL(fileURLWithPath: path))
        let error = await #expect(throws: ApusError.self) {
            let damaged = try await open(path)
            var scan = RecordScan("things")
            repeat {
                let page = try await damaged.page(scan)
                scan.token = page.next
            } while scan.token != nil
            for number in 0..<200 {
                let found = try await damaged.records("things", [OrderedKey(.text("k\(number)"))])[0]
                guard found != nil else { throw ApusError(.stateForeign, "k\(number) is missing") }
            }
        }
        #expect(error?.code == .stateForeign)
    }

    @Test("A record whose entries are damaged refuses its own steps with 10020, and no others")
    func damagedEntries() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let store = try await open(path)
        try await store.commit(write("bad", [1], entries: [("by", "x")]))
        await store.close()
        let queue = try DatabaseQueue(path: path)
        try await queue.write { try $0.execute(sql: "UPDATE records SET entries = X'FF'") }
        try queue.close()
        let damaged = try await open(path)
        try await expectOnlyDamagedRefused(damaged)
        // Now the store has the record's head in its cache.
        await #expect(throws: ApusError(.stateForeign)) { try await damaged.commit(write("bad", [2])) }
        await damaged.close()
    }

    @Test("Where the indexes of a collection change, the entries of all its records are made anew at the next opening")
    func newLayout() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        let store = try await open(path, catalogue: RecordCatalogue([stamps]))
        for seconds in 0..<1500 {
            let stamp = Google_Protobuf_Timestamp(seconds: Int64(seconds), nanos: Int32(seconds % 7))
            try await store.commit(stamps.put(stamp, fence: .none))
        }
        try await store.commit(stamps.remove(OrderedKey(.signed(14)), fence: .none))
        await store.close()
        let newer = RecordCollection<Google_Protobuf_Timestamp>(
            "stamps", layout: 2, key: stamps.key(of:),
            indexes: [RecordIndex("rest") { $0.nanos == 0 ? [] : [OrderedKey(.signed(Int64($0.nanos)))] }])
        let next = try await open(path, catalogue: RecordCatalogue([newer]))
        var (count, token): (Int, RecordToken?) = (0, nil)
        repeat {
            let page = try await next.page(newer, by: "rest", after: token)
            count += page.records.count
            token = page.next
        } while token != nil
        #expect(count == (0..<1500).count { $0 % 7 != 0 })
        #expect(try await next.page(RecordScan("stamps", index: "nanos")).records.isEmpty)
        // A write takes the old entries out, which the opening made.
        try await next.commit(newer.put(Google_Protobuf_Timestamp(seconds: 1, nanos: 0), fence: .none))
        await next.close()
        try expectSound(path)
    }

    @Test("A table of an earlier release becomes records in the transaction that removes it, or stays whole")
    func imports() async throws {
        let scratch = try Scratch(isInMemory: true)
        let path = scratch.path + "/records.sqlite"
        await (try open(path)).close()
        let queue = try DatabaseQueue(path: path)
        try await queue.write { database in
            try database.execute(sql: "CREATE TABLE old (name TEXT, number INTEGER, bytes BLOB, epoch INTEGER)")
            for number in 0..<2500 {
                try database.execute(
                    sql: "INSERT INTO old VALUES (?, ?, ?, 3)",
                    arguments: ["k\(number)", number == 7 ? nil : number, Data([UInt8(number & 255)])])
            }
        }
        try queue.close()
        let broken = RecordImport(table: "old") { _ throws(ApusError) in
            throw ApusError(.stateForeign, "unreadable")
        }
        await #expect(throws: ApusError(.stateForeign)) {
            try await open(path, catalogue: RecordCatalogue([], imports: [broken]))
        }
        let old = RecordImport(table: "old") { rows throws(ApusError) in
            rows.map { row in
                guard case .text(let name)? = row["name"], case .bytes(let bytes)? = row["bytes"] else {
                    return write("bad", [])
                }
                return write(name, row["number"] == .null ? nil : bytes, epoch: 3)
            }
        }
        let store = try await open(path, catalogue: RecordCatalogue([], imports: [old]))
        #expect(try await store.records("things", [OrderedKey(.text("k5"))])[0]?.body == [5])
        await #expect(throws: ApusError(.staleEpoch)) { try await store.commit(write("k7", [1], epoch: 2)) }
        await store.close()
        let again = try await open(path, catalogue: RecordCatalogue([], imports: [broken]))
        #expect(try await again.page(RecordScan("things")).records.count == 1000)
        await again.close()
    }
}

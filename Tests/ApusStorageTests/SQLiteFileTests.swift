import ApusCore
import ApusStorage
import Foundation
import Testing

@Suite("SQLite files of a cluster (D9)")
struct SQLiteFileTests {
    private let key = OrderedKey(.text("cam"))

    @Test("What was written is there when the file is opened again")
    func reopened() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        let first = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await first.commit(write("cam", [1], epoch: 7))
        await first.close()
        let second = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await second.records("things", [key])[0]?.fence.epoch == 7)
    }

    @Test("Only the user of the node reads the file and its log, also where it was readable before")
    func isPrivate() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        func modes() throws -> [Int] {
            try [path, path + "-wal", path + "-shm", path + "-lock"].map { file in
                let attributes = try FileManager.default.attributesOfItem(atPath: file)
                return try #require(attributes[.posixPermissions] as? NSNumber).intValue
            }
        }
        let first = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await first.commit(write("cam", [1], epoch: 7))
        #expect(try modes() == [0o600, 0o600, 0o600, 0o600])
        await first.close()
        try FileManager.default.setAttributes([.posixPermissions: 0o644], ofItemAtPath: path)
        let second = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await second.records("things", [key])[0]?.fence.epoch == 7)
        #expect(try modes() == [0o600, 0o600, 0o600, 0o600])
    }

    @Test("Many that open a new file at once all find the same store", arguments: 0..<20)
    func openedAtOnce(round: Int) async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        try await withThrowingTaskGroup(of: SQLiteRecordStore.self) { group in
            for _ in 0..<8 {
                group.addTask { try await SQLiteRecordStore(path: path, cluster: testCluster) }
            }
            for try await store in group { #expect(try await store.records("things", [key]) == [nil]) }
        }
    }

    @Test("The file of another cluster is refused with 10020, and its message names both and the path")
    func foreignCluster() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        _ = try await SQLiteRecordStore(path: path, cluster: testCluster)
        let error = await #expect(throws: ApusError.self) {
            try await SQLiteRecordStore(path: path, cluster: ClusterID(unchecked: "other"))
        }
        #expect(error?.code == .stateForeign)
        #expect(error?.message.contains(path) == true && error?.message.contains("cluster test") == true)
    }

    @Test("A file that is no database is refused with 10020 and left as it is")
    func notADatabase() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        let text = Data(String(repeating: "this is a letter, not a database\n", count: 100).utf8)
        try text.write(to: URL(fileURLWithPath: path))
        await #expect(throws: ApusError(.stateForeign)) {
            try await SQLiteRecordStore(path: path, cluster: testCluster)
        }
        #expect(try Data(contentsOf: URL(fileURLWithPath: path)) == text)
    }

    @Test("A path that cannot be opened is refused with 10021, and its message names the path")
    func unopenable() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/missing/records.sqlite"
        let error = await #expect(throws: ApusError.self) {
            try await SQLiteRecordStore(path: path, cluster: testCluster)
        }
        #expect(error?.code == .storageFailed)
        #expect(error?.message.contains(path) == true)
    }

    @Test("A file that cannot grow says so with 10021, keeps what it has and goes on reading")
    func full() async throws {
        let scratch = try Scratch()
        var limits = SQLiteLimits()
        limits.fileByteCountMax = 128 << 10
        let store = try await SQLiteRecordStore(
            path: scratch.path + "/records.sqlite", cluster: testCluster, files: limits)
        try await store.commit(write("cam", [1], entries: [("by", "x")]))
        let error = await #expect(throws: ApusError.self) {
            for number in 0..<100_000 {
                var camera = write("camera-\(number)", [1])
                camera.usesReserve = true
                try await store.commit(camera)
            }
        }
        #expect(error?.code == .storageFailed)
        #expect(error?.message.contains("full") == true)
        #expect(try await store.page(RecordScan("things", index: "by")).records.map(\.key) == [key])
        // Nothing of what was refused is there, and what is small enough is still taken.
        try await store.commit(write("cam", nil))
        #expect(try await store.records("things", [key]) == [nil])
    }

    @Test("Clients' records that fill the file leave room for an operator's, and can still be changed and removed")
    func reserve() async throws {
        let scratch = try Scratch(isInMemory: true)
        var limits = SQLiteLimits()
        (limits.fileByteCountMax, limits.reservePercent) = (1 << 20, 25)
        let store = try await SQLiteRecordStore(
            path: scratch.path + "/records.sqlite", cluster: testCluster, files: limits)
        let body = [UInt8](repeating: 7, count: 200)
        func name(_ number: Int) -> String { "camera-\(10_000 + number)" }
        var count = 0
        while true {
            let outcomes = await store.commit([
                RecordStep(write(name(count), body)), RecordStep(write(name(0), body)),
            ])
            // Who changes what is there is not refused with the one who adds to it.
            #expect(throws: Never.self) { try outcomes[1].get() }
            guard case .failure(let error) = outcomes[0] else {
                count += 1
                continue
            }
            #expect(error.code == .overloaded)
            break
        }
        #expect(count > 1000, "\(count) of 200 bytes in 75 % of 1 MiB")
        await #expect(throws: ApusError(.overloaded)) {
            try await store.commit(write(name(0), body + body))
        }
        for number in 0..<100 {
            var revocation = write("revocation-\(number)", body)
            revocation.usesReserve = true
            try await store.commit(revocation)
        }
        // What is removed makes room again.
        for number in 0..<1000 { try await store.commit(write(name(number), nil)) }
        try await store.commit(write("camera-new", body))
        await store.close()
    }

    @Test("What root opens or makes is its user's, whose node can go on with it", .enabled(if: getuid() == 0))
    func owner() async throws {
        let scratch = try Scratch()
        let (path, copy) = (scratch.path + "/records.sqlite", scratch.path + "/copy.sqlite")
        chown(scratch.path, 65_534, 65_534)
        func owners() throws -> Set<Int> {
            var found: Set<Int> = []
            for file in [path, path + "-wal", path + "-shm", path + "-lock"] {
                guard let attributes = try? FileManager.default.attributesOfItem(atPath: file) else { continue }
                found.insert(try #require(attributes[.ownerAccountID] as? NSNumber).intValue)
            }
            return found
        }
        let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await store.commit(write("cam", [1]))
        #expect(try owners() == [65_534])
        _ = try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        await store.close()
        _ = try await RecordBackup.restore(copy, to: path, cluster: testCluster)
        #expect(try owners() == [65_534])
    }

    @Test("A file that may not be written is refused with 10021", .enabled(if: getuid() != 0))
    func readOnly() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        let first = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await first.commit(write("cam", [1]))
        await first.close()
        try FileManager.default.setAttributes([.posixPermissions: 0o555], ofItemAtPath: scratch.path)
        defer { try? FileManager.default.setAttributes([.posixPermissions: 0o755], ofItemAtPath: scratch.path) }
        await #expect(throws: ApusError(.storageFailed)) {
            let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
            try await store.commit(write("cam", [1]))
        }
    }
}

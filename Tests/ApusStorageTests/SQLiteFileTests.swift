import ApusCore
import ApusStorage
import Foundation
import Testing

@Suite("SQLite files of a cluster (D9)")
struct SQLiteFileTests {
    private let device = DeviceID(unchecked: "cam")

    @Test("What was written is there when the file is opened again")
    func reopened() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        let first = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await first.save(DeviceRecord(device: device, account: nil, epoch: 7))
        await first.close()
        let second = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await second.record(of: device)?.epoch == 7)
    }

    @Test("Only the user of the node reads the file and its log, also where it was readable before")
    func isPrivate() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        func modes() throws -> [Int] {
            try [path, path + "-wal", path + "-shm"].map { file in
                let attributes = try FileManager.default.attributesOfItem(atPath: file)
                return try #require(attributes[.posixPermissions] as? NSNumber).intValue
            }
        }
        let first = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await first.save(DeviceRecord(device: device, account: nil, epoch: 7))
        #expect(try modes() == [0o600, 0o600, 0o600])
        await first.close()
        try FileManager.default.setAttributes([.posixPermissions: 0o644], ofItemAtPath: path)
        let second = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await second.record(of: device)?.epoch == 7)
        #expect(try modes() == [0o600, 0o600, 0o600])
    }

    @Test("Many that open a new file at once all find the same store", arguments: 0..<20)
    func openedAtOnce(round: Int) async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/records.sqlite"
        try await withThrowingTaskGroup(of: SQLiteRecordStore.self) { group in
            for _ in 0..<8 {
                group.addTask { try await SQLiteRecordStore(path: path, cluster: testCluster) }
            }
            for try await store in group { #expect(try await store.record(of: device) == nil) }
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
            path: scratch.path + "/records.sqlite", cluster: testCluster, limits: limits)
        try await store.save(DeviceRecord(device: device, account: nil, epoch: 1))
        let error = await #expect(throws: ApusError.self) {
            for number in 0..<100_000 {
                let name = DeviceID(unchecked: "camera-\(number)")
                try await store.save(DeviceRecord(device: name, account: nil, epoch: 1))
            }
        }
        #expect(error?.code == .storageFailed)
        #expect(error?.message.contains("full") == true)
        #expect(try await store.record(of: device)?.epoch == 1)
    }
}

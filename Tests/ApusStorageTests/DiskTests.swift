import ApusCore
import ApusStorage
import ApusTestKit
import Foundation
import Testing

@Suite("Records on a disk that fails (D9)", .enabled(if: TestDisk.canBeMade, "a disk in memory cannot be made here"))
struct DiskTests {
    @Test("A full disk refuses changes with 10021, loses nothing, and is used again as soon as it has room")
    func full() async throws {
        let disk = TestDisk(byteCount: 3 << 20)
        let path = disk.path + "/records.sqlite"
        let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await store.commit(write("first", [1]))
        let ballast = disk.path + "/ballast"
        try #require(disk.fill(ballast))
        let body = [UInt8](repeating: 7, count: 20_000)
        var acknowledged: [String] = []
        let error = await #expect(throws: ApusError.self) {
            for number in 0..<1000 {
                try await store.commit(write("k\(number)", body))
                acknowledged.append("k\(number)")
            }
        }
        #expect(
            error?.code == .storageFailed && error?.message.contains("full") == true, "\(String(describing: error))")
        // Again and again it is the same error, and reads go on.
        for _ in 0..<3 {
            await #expect(throws: ApusError(.storageFailed)) { try await store.commit(write("k", body)) }
        }
        #expect(try await store.records("things", [OrderedKey(.text("first"))])[0]?.body == [1])
        await #expect(throws: ApusError(.storageFailed)) {
            try await SQLiteRecordStore(path: disk.path + "/other.sqlite", cluster: testCluster)
        }
        unlink(ballast)
        try await store.commit(write("last", body))
        let names = ["first", "last"] + acknowledged
        let found = try await store.records("things", names.map { OrderedKey(.text($0)) })
        #expect(found.allSatisfy { $0 != nil })
        await store.close()
        let again = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await again.records("things", names.map { OrderedKey(.text($0)) }).allSatisfy { $0 != nil })
        await again.close()
    }

    @Test("A copy that does not fit leaves nothing behind, and the records as they were")
    func copyTooLarge() async throws {
        let disk = TestDisk(byteCount: 3 << 20)
        let scratch = try Scratch(isInMemory: true)
        let (path, copy) = (scratch.path + "/records.sqlite", disk.path + "/copy.sqlite")
        let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
        for number in 0..<40 { try await store.commit(write("k\(number)", [UInt8](repeating: 7, count: 100_000))) }
        await #expect(throws: ApusError(.storageFailed)) {
            try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        }
        #expect(try FileManager.default.contentsOfDirectory(atPath: disk.path) == [])
        let whole = scratch.path + "/copy.sqlite"
        _ = try await RecordBackup.make(of: path, cluster: testCluster, to: whole)
        await store.close()
        // The place has other records, which stay.
        let small = disk.path + "/records.sqlite"
        let other = try await SQLiteRecordStore(path: small, cluster: testCluster)
        try await other.commit(write("cam", [1]))
        await other.close()
        await #expect(throws: ApusError(.storageFailed)) {
            try await RecordBackup.restore(whole, to: small, cluster: testCluster)
        }
        let files = try FileManager.default.contentsOfDirectory(atPath: disk.path).sorted()
        #expect(files == ["records.sqlite", "records.sqlite-lock"])
        let again = try await SQLiteRecordStore(path: small, cluster: testCluster)
        #expect(try await again.records("things", [OrderedKey(.text("cam"))])[0]?.body == [1])
        await again.close()
    }

    @Test("A disk that became read-only is refused with 10021, and the records are whole when it can be written again")
    func readOnly() async throws {
        let disk = TestDisk(byteCount: 3 << 20)
        let path = disk.path + "/records.sqlite"
        let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
        try await store.commit(write("cam", [1]))
        await store.close()
        try #require(disk.remount(isReadOnly: true))
        await #expect(throws: ApusError(.storageFailed)) {
            let store = try await SQLiteRecordStore(path: path, cluster: testCluster)
            try await store.commit(write("cam", [2]))
        }
        try #require(disk.remount(isReadOnly: false))
        let again = try await SQLiteRecordStore(path: path, cluster: testCluster)
        #expect(try await again.records("things", [OrderedKey(.text("cam"))])[0]?.body == [1])
        await again.close()
    }
}

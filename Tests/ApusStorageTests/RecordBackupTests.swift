import ApusCore
import ApusStorage
import Foundation
import Synchronization
import Testing

@Suite("Copies of a records file (apus admin backup, restore)")
struct RecordBackupTests {
    private func open(_ path: String) async throws -> SQLiteRecordStore {
        try await SQLiteRecordStore(path: path, cluster: testCluster)
    }

    private func bodies(_ path: String) async throws -> [String: [UInt8]] {
        let store = try await open(path)
        var (found, scan) = ([String: [UInt8]](), RecordScan("things"))
        repeat {
            let page = try await store.page(scan)
            for record in page.records { found[record.key.description] = record.body }
            scan.token = page.next
        } while scan.token != nil
        await store.close()
        return found
    }

    @Test("A copy that is made while others write has every step whole, and all that was acknowledged before")
    func whileWritten() async throws {
        let scratch = try Scratch(isInMemory: true)
        let (path, copy) = (scratch.path + "/records.sqlite", scratch.path + "/copy.sqlite")
        let store = try await open(path)
        // Enough pages for several steps of the copy.
        for number in 0..<60 {
            let writes = (0..<10).map { write("f\(number * 10 + $0)", [UInt8](repeating: 1, count: 8000)) }
            try await store.commit(RecordStep(writes))
        }
        try await withThrowingTaskGroup(of: Void.self) { group in
            for writer in 0..<2 {
                group.addTask {
                    let other = try await open(path)
                    for round in 1...200 {
                        // Two records of one step, at both ends of the file.
                        let body = [UInt8(round & 255)]
                        try await other.commit(RecordStep(write("a\(writer)", body), write("z\(writer)", body)))
                    }
                    await other.close()
                }
            }
            let summary = try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
            #expect(summary.recordCount >= 600)
            try await group.waitForAll()
        }
        await store.close()
        let found = try await bodies(copy)
        #expect((0..<600).allSatisfy { found["f\($0)"]?.count == 8000 })
        for writer in 0..<2 { #expect(found["a\(writer)"] == found["z\(writer)"]) }
        let mode = try FileManager.default.attributesOfItem(atPath: copy)[.posixPermissions] as? NSNumber
        #expect(mode?.intValue == 0o600)
        #expect(!FileManager.default.fileExists(atPath: copy + ".partial"))
    }

    @Test("A copy is put back while nobody uses the records, and what stood there is kept")
    func restored() async throws {
        let scratch = try Scratch(isInMemory: true)
        let (path, copy) = (scratch.path + "/records.sqlite", scratch.path + "/copy.sqlite")
        let store = try await open(path)
        try await store.commit(write("cam", [1]))
        _ = try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        try await store.commit(write("cam", [2]))
        let error = await #expect(throws: ApusError.self) {
            try await RecordBackup.restore(copy, to: path, cluster: testCluster)
        }
        #expect(error?.code == .storageFailed && error?.message.contains("in use") == true)
        await store.close()
        // A store that was closed uses nothing, though the test still refers to it.
        let again = try await RecordBackup.restore(copy, to: path, cluster: testCluster)
        #expect(again.recordCount == 1)
        #expect(try await bodies(path) == ["cam": [1]])
        #expect(try await bodies(path + ".replaced") == ["cam": [2]])
        // A copy can be put back more than once.
        _ = try await RecordBackup.restore(copy, to: path, cluster: testCluster)
        await #expect(throws: ApusError(.storageFailed)) { try await store.commit(write("cam", [3])) }
        #expect(await store.lockHolder() == nil)
    }

    @Test("Where putting a copy back is broken off, one of the two files has the name: never none")
    func brokenOff() async throws {
        let scratch = try Scratch(isInMemory: true)
        let (path, copy) = (scratch.path + "/records.sqlite", scratch.path + "/copy.sqlite")
        let store = try await open(path)
        try await store.commit(write("cam", [1]))
        _ = try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        try await store.commit(write("cam", [2]))
        await store.close()
        // Somebody looks all the time, as a node that is started at that moment would.
        let isOver = Mutex(false)
        async let wasMissing: Bool = {
            while !isOver.withLock({ $0 }) {
                if !FileManager.default.fileExists(atPath: path) { return true }
                await Task.yield()
            }
            return false
        }()
        for _ in 0..<20 { _ = try await RecordBackup.restore(copy, to: path, cluster: testCluster) }
        isOver.withLock { $0 = true }
        #expect(await !wasMissing)
        #expect(try await bodies(path) == ["cam": [1]])
    }

    @Test("Nothing is replaced by a copy that is damaged, another cluster's, or none")
    func refused() async throws {
        let scratch = try Scratch(isInMemory: true)
        let (path, copy) = (scratch.path + "/records.sqlite", scratch.path + "/copy.sqlite")
        let store = try await open(path)
        for number in 0..<100 { try await store.commit(write("k\(number)", [UInt8](repeating: 7, count: 1000))) }
        _ = try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        await #expect(throws: ApusError(.stateForeign)) {
            try await RecordBackup.make(of: path, cluster: testCluster, to: copy)
        }
        await store.close()
        await #expect(throws: ApusError(.stateForeign)) {
            try await RecordBackup.restore(copy, to: path, cluster: ClusterID(unchecked: "other"))
        }
        var bytes = try Data(contentsOf: URL(fileURLWithPath: copy))
        for page in 4..<(bytes.count / 4096) {
            bytes.replaceSubrange((page * 4096)..<(page * 4096 + 64), with: Data(count: 64))
        }
        try bytes.write(to: URL(fileURLWithPath: scratch.path + "/damaged"))
        try Data("a letter, not a database".utf8).write(to: URL(fileURLWithPath: scratch.path + "/letter"))
        for name in ["/damaged", "/letter"] {
            await #expect(throws: ApusError(.stateForeign)) {
                try await RecordBackup.restore(scratch.path + name, to: path, cluster: testCluster)
            }
        }
        await #expect(throws: ApusError(.storageFailed)) {
            try await RecordBackup.restore(scratch.path + "/none", to: path, cluster: testCluster)
        }
        #expect(try await bodies(path).count == 100)
    }
}

import ApusCore
import ApusObjectStore
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("Objects in a directory")
struct DirectoryObjectStoreTests {
    private let folder = Folder()

    private func store(
        _ change: (inout ObjectStoreLimits) -> Void = { _ in }, files: any ObjectFiles = SystemObjectFiles()
    ) async throws -> DirectoryObjectStore {
        var limits = ObjectStoreLimits()
        limits.partByteCount = 4_096
        limits.readByteCountMax = 1 << 20
        change(&limits)
        return try await DirectoryObjectStore(path: folder.file("objects"), limits: limits, files: files)
    }

    private func files(_ path: String = "objects") throws -> [String] {
        let found = try FileManager.default.subpathsOfDirectory(atPath: folder.file(path))
        return found.filter { !$0.hasSuffix("+") && $0 != ".new" }.sorted()
    }

    @Test("Objects are put, read in ranges, looked up and deleted, and leave no file")
    func objects() async throws {
        let store = try await store()
        try await ObjectStorePromises.expectObjects(store, "a/b")
        try await store.check()
        #expect(try FileManager.default.subpathsOfDirectory(atPath: folder.file("objects")) == [".new"])
    }

    @Test("No put replaces an object, and each says whether the content is the same")
    func kept() async throws { try await ObjectStorePromises.expectNothingReplaced(try await store(), "k") }

    @Test("Of puts of one name at the same time by several processes, one stores its content")
    func race() async throws {
        let stores = [try await store(), try await store(), try await store()]
        try await ObjectStorePromises.expectOneWinner(stores, "r", rounds: 60)
        #expect(try files().allSatisfy { !$0.hasPrefix(".new") })
    }

    @Test("Lists are in the order of the names' bytes, in pages, by any prefix")
    func lists() async throws { try await ObjectStorePromises.expectLists(try await store(), "l") }

    @Test("A random tree is listed as a sorted array is", arguments: [UInt64(1), 2, 3])
    func randomTree(seed: UInt64) async throws {
        let store = try await store()
        var generator = SeededRandom(seed: seed)
        var names: Set<ObjectName> = []
        for _ in 0..<150 {
            let parts = (0..<Int.random(in: 1...4, using: &generator)).map { _ in
                (0..<Int.random(in: 1...2, using: &generator)).map { _ in
                    ["a", "b", "-", "=", "_", "0"].randomElement(using: &generator) ?? "a"
                }.joined()
            }
            names.insert(try ObjectName(parts.joined(separator: "/")))
        }
        for name in names { _ = try await store.put(name, ObjectContent([1])) }
        let sorted = names.sorted()
        for _ in 0..<60 {
            let prefix = String(
                (names.randomElement(using: &generator)?.text ?? "").prefix(.random(in: 0...4, using: &generator)))
            let after = Bool.random(using: &generator) ? names.randomElement(using: &generator) : nil
            let countMax = Int.random(in: 1...40, using: &generator)
            let matching = sorted.filter { name in name.text.hasPrefix(prefix) && after.map { $0 < name } ?? true }
            let page = try await store.list(prefix: prefix, after: after, countMax: countMax)
            #expect(page.entries.map(\.name) == Array(matching.prefix(countMax)))
            #expect((page.next != nil) == (matching.count > countMax))
        }
    }

    @Test("An object beyond the size, and a content that fails, leave nothing")
    func bounds() async throws {
        try await ObjectStorePromises.expectSizeBound(try await store { $0.objectByteCountMax = 10_000 })
        #expect(try files() == [])
        let small = try await store { $0.folderCountMax = 3 }
        for index in 0..<3 { _ = try await small.put(try ObjectName("f/\(index)"), ObjectContent([1])) }
        let fourth = try ObjectName("f/3")
        await #expect(throws: ApusError(.overloaded)) { try await small.put(fourth, ObjectContent([1])) }
        try await small.delete(try ObjectName("f/0"))
        _ = try await small.put(fourth, ObjectContent([1]))
    }

    @Test("Files of others are no objects, and are neither listed nor removed")
    func foreign() async throws {
        let store = try await store()
        _ = try await store.put(try ObjectName("a/b"), ObjectContent([1]))
        for path in [
            "objects/notes.txt+", "objects/a+/.hidden", "objects/.new/readme", "objects/.new/put-12", "objects/ä",
        ] {
            try Data().write(to: URL(fileURLWithPath: folder.file(path)))
            try FileManager.default.setAttributes(
                [.modificationDate: Date(timeIntervalSinceNow: -100_000)], ofItemAtPath: folder.file(path))
        }
        let page = try await store.list(prefix: "", after: nil, countMax: nil)
        #expect(page.entries.map(\.name.text) == ["a/b"])
        #expect(try await store.removeLeftovers(olderThan: .seconds(60)) == ObjectLeftovers())
        #expect(try files().count == 5)
    }

    @Test("A temporary file is a leftover if no process has it and it is old; others stay")
    func leftovers() async throws {
        let store = try await store()
        let system = SystemObjectFiles()
        let old = Date(timeIntervalSinceNow: -1_000)
        var open: [CInt] = []
        for (index, isOld) in [true, true, false].enumerated() {
            let path = folder.file("objects/.new/put-\(String(repeating: "\(index)", count: 32))")
            let file = try system.make(path)
            try system.write([1, 2, 3], to: file, of: path)
            if index == 0 { open.append(file) } else { system.close(file) }
            if isOld { try FileManager.default.setAttributes([.modificationDate: old], ofItemAtPath: path) }
        }
        await #expect(throws: ApusError(.badParameter)) { try await store.removeLeftovers(olderThan: .seconds(1)) }
        let expected = ObjectLeftovers(count: 1, byteCount: 3)
        #expect(try await store.leftovers(olderThan: .seconds(60)) == expected)
        #expect(try await store.leftovers(olderThan: .seconds(60)) == expected)
        #expect(try await store.removeLeftovers(olderThan: .seconds(60)) == expected)
        #expect(try files().count == 2)
        for file in open { system.close(file) }
        #expect(try await store.removeLeftovers(olderThan: .seconds(60)) == expected)
    }

    @Test(
        "A put of which any file operation fails says so, leaves no part of an object, and succeeds the next time"
    )
    func faults() async throws {
        let content = ObjectStorePromises.bytes(10_000)
        for number in [EIO, ENOSPC, EROFS] {
            var failedCount = 0
            for step in 0..<40 {
                let files = FaultyFiles()
                let store = try await store(files: files)
                let name = try ObjectName("f\(number)/\(step)/x/y")
                files.fail(at: step, with: number)
                let isFailure: Bool
                do throws(ApusError) {
                    guard case .stored = try await store.put(name, ObjectContent(content)) else {
                        Issue.record("step \(step): not stored")
                        continue
                    }
                    isFailure = false
                } catch {
                    #expect(error.code == (number == ENOSPC ? .storageFull : .storageFailed), "\(error)")
                    isFailure = true
                }
                let didFail = files.hasFailed
                if isFailure { failedCount += 1 }
                files.fail(at: nil, with: 0)
                // Whole, or not there.
                if let found = try await store.get(name, range: nil) { #expect(found.bytes == content) }
                switch try await store.put(name, ObjectContent(content)) {
                case .stored: #expect(isFailure)
                case .exists(_, let isSame): #expect(isSame)
                }
                #expect(try await store.get(name, range: nil)?.bytes == content)
                #expect(files.unsynced.isEmpty, "step \(step): acknowledged before it was durable: \(files.unsynced)")
                if !didFail { break }
            }
            #expect(failedCount > 8)
        }
        // Only removals of temporary names may have failed.
        let left = try self.files().filter { $0.hasPrefix(".new/") }
        #expect(left.count <= 3, "\(left)")
    }

    @Test("When a put is answered, its content and each name on its way were synced, also if others made them")
    func durable() async throws {
        let files = FaultyFiles()
        let first = try await store(files: files)
        let second = try await store(files: files)
        for index in 0..<20 {
            let name = try ObjectName("d/\(index % 4)/\(index)")
            _ = try await [first, second][index % 2].put(name, ObjectContent([1]))
            #expect(files.unsynced.isEmpty)
            if index % 3 == 0 {
                try await first.delete(name)
                #expect(files.unsynced.isEmpty)
            }
        }
        // A put that was stopped between its link and its sync: the next one makes the object durable.
        let name = try ObjectName("d/stopped")
        files.failsSyncFolder = true
        await #expect(throws: ApusError(.storageFailed)) { try await first.put(name, ObjectContent([1])) }
        files.failsSyncFolder = false
        #expect(!files.unsynced.isEmpty)
        guard case .exists(_, isSame: true) = try await second.put(name, ObjectContent([1])) else {
            Issue.record("the object is not there")
            return
        }
        #expect(files.unsynced.isEmpty)
    }

    @Test("Puts and deletes of a folder that empties all the time lose nothing")
    func emptied() async throws {
        let stores = [try await store(), try await store()]
        await withTaskGroup(of: Void.self) { group in
            for task in 0..<8 {
                group.addTask {
                    for index in 0..<60 {
                        do {
                            let name = try ObjectName("e/\(index % 3)/f/\(task)")
                            let store = stores[(task + index) % 2]
                            guard case .stored = try await store.put(name, ObjectContent([UInt8(task)])) else {
                                Issue.record("\(name) is taken")
                                continue
                            }
                            #expect(try await stores[task % 2].get(name, range: nil)?.bytes == [UInt8(task)])
                            try await store.delete(name)
                        } catch {
                            Issue.record("\(error)")
                        }
                    }
                }
            }
        }
        #expect(try files() == [])
    }

    @Test(
        "A full disk is refused with 10041 and advice, a read-only one with 10021, and both are used again afterwards",
        .enabled(if: TestDisk.canBeMade, "a disk in memory cannot be made here"))
    func disk() async throws {
        let disk = TestDisk(byteCount: 2 << 20)
        let store = try await DirectoryObjectStore(path: disk.path + "/objects")
        let name = try ObjectName("a/b")
        _ = try await store.put(name, ObjectContent([1]))
        try #require(disk.fill(disk.path + "/ballast"))
        let content = ObjectContent([UInt8](repeating: 1, count: 500_000))
        let second = try ObjectName("a/c")
        let full = await #expect(throws: ApusError(.storageFull)) { try await store.put(second, content) }
        #expect(full?.message.contains("make room") == true)
        #expect(try await store.get(name, range: nil)?.bytes == [1])
        #expect(try await store.list(prefix: "", after: nil, countMax: nil).entries.count == 1)
        // Room is made on a full disk.
        try await store.delete(name)
        unlink(disk.path + "/ballast")
        guard case .stored = try await store.put(second, content) else {
            Issue.record("not stored")
            return
        }
        try #require(disk.remount(isReadOnly: true))
        let readOnly = await #expect(throws: ApusError(.storageFailed)) { try await store.put(name, content) }
        #expect(readOnly?.message.contains("read-only") == true)
        await #expect(throws: ApusError(.storageFailed)) { try await store.delete(second) }
        try #require(disk.remount(isReadOnly: false))
        #expect(try FileManager.default.contentsOfDirectory(atPath: disk.path + "/objects/.new") == [])
        guard case .exists(_, isSame: true) = try await store.put(second, content) else {
            Issue.record("the object is lost")
            return
        }
    }

    @Test(
        "A disk that does not answer holds neither callers nor their time: 10005, and 10007 for those that cannot wait")
    func hung() async throws {
        let files = FaultyFiles()
        let store = try await store(
            {
                $0.runningMax = 2
                $0.waitingMax = 3
                // So long that all calls begin before the first one ends, also on a busy machine.
                $0.operationTimeout = .seconds(2)
            }, files: files)
        let name = try ObjectName("a")
        _ = try await store.put(name, ObjectContent([1]))
        files.hang()
        let codes = await withTaskGroup(of: ErrorCode?.self) { group in
            for index in 0..<9 {
                // The first two have both places: the call before them has given its own back.
                if index == 2 { while files.hungCount < 2 { try? await Task.sleep(for: .milliseconds(5)) } }
                group.addTask {
                    do throws(ApusError) {
                        _ = try await store.head(name)
                        return nil
                    } catch {
                        return error.code
                    }
                }
            }
            return await group.reduce(into: [ErrorCode: Int]()) { if let code = $1 { $0[code, default: 0] += 1 } }
        }
        #expect(codes[.deadlineExceeded] == 5 && codes[.overloaded] == 4, "\(codes)")
        // Threads that hang keep their places.
        await #expect(throws: ApusError(.deadlineExceeded)) { try await store.head(name) }
        files.goOn()
        #expect(try await store.head(name) != nil)
    }

    @Test("A cancelled put ends at once, and leaves nothing")
    func cancelled() async throws {
        let store = try await store()
        let name = try ObjectName("a/b")
        let content = ObjectContent(byteCount: 10_000) { range throws(ApusError) in
            guard range.lowerBound == 0 else {
                guard (try? await Task.sleep(for: .seconds(60))) != nil else { throw ApusError(.cancelled) }
                return []
            }
            return [UInt8](repeating: 1, count: range.count)
        }
        await withTaskGroup(of: Void.self) { group in
            group.addTask {
                await #expect(throws: ApusError(.cancelled)) { try await store.put(name, content) }
            }
            while (try? files().isEmpty) != false { await Task.yield() }
            group.cancelAll()
        }
        while try !files().isEmpty { await Task.yield() }
        #expect(try await store.head(name) == nil)
    }
}

import ApusCore
import ApusStorage
import Foundation
import Testing

@Suite("A revision as a file (D4)")
struct RevisionFileTests {
    private let file = RevisionFile(
        cluster: testCluster, store: StoreID(high: .max, low: 1), revision: 1 << 40, value: Array(0..<200))

    @Test("What was written is read again")
    func roundTrip() {
        #expect(RevisionFile(decoding: file.encoded()) == file)
        var empty = file
        (empty.value, empty.revision) = ([], 0)
        #expect(RevisionFile(decoding: empty.encoded()) == empty)
    }

    @Test("A file that is cut off anywhere, has a byte too many, or one bit that differs is refused")
    func damaged() {
        let bytes = file.encoded()
        for count in 0..<bytes.count { #expect(RevisionFile(decoding: Array(bytes.prefix(count))) == nil) }
        #expect(RevisionFile(decoding: bytes + [0]) == nil)
        for bit in 0..<bytes.count * 8 {
            var changed = bytes
            changed[bit / 8] ^= UInt8(1 << (bit % 8))
            #expect(RevisionFile(decoding: changed) == nil, "bit \(bit)")
        }
    }
}

@Suite("The ownership store of one machine (D4)")
struct LocalOwnershipStoreTests {
    private static let path = "/ownership"

    private static func open(
        _ files: any StoreFiles, path: String = path, seen: OwnershipMark? = nil, kept: Int = 16
    ) async throws(ApusError) -> LocalOwnershipStore {
        var limits = LocalOwnershipLimits()
        limits.revisionsKept = kept
        return try await LocalOwnershipStore(
            path: path, cluster: testCluster, seen: seen, limits: limits, files: files)
    }

    @Test("What was swapped is there when the directory is opened again")
    func reopened() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/ownership"
        let first = try await Self.open(SystemStoreFiles(), path: path)
        _ = try await first.compareAndSwap(expected: 0, value: [7])
        let second = try await Self.open(
            SystemStoreFiles(), path: path, seen: OwnershipMark(store: first.identity, revision: 1))
        #expect(try await second.read() == OwnershipValue(revision: 1, bytes: [7]))
    }

    @Test("Nobody but the node's user reads the store: 0700 and 0600")
    func modes() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/ownership"
        let store = try await Self.open(SystemStoreFiles(), path: path)
        _ = try await store.compareAndSwap(expected: 0, value: [7])
        func mode(_ path: String) throws -> Int {
            try #require(FileManager.default.attributesOfItem(atPath: path)[.posixPermissions] as? NSNumber).intValue
        }
        #expect(try mode(path) == 0o700)
        let files = try FileManager.default.subpathsOfDirectory(atPath: path).map { "\(path)/\($0)" }
        #expect(!files.isEmpty)
        for file in files {
            var isDirectory: ObjCBool = false
            _ = FileManager.default.fileExists(atPath: file, isDirectory: &isDirectory)
            #expect(try mode(file) == (isDirectory.boolValue ? 0o700 : 0o600), "\(file)")
        }
    }

    @Test("Many that open a new directory at once all find the same store", arguments: 0..<20)
    func openedAtOnce(round: Int) async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/ownership"
        try await withThrowingTaskGroup(of: LocalOwnershipStore.self) { group in
            for _ in 0..<8 { group.addTask { try await Self.open(SystemStoreFiles(), path: path) } }
            var identities: Set<StoreID> = []
            for try await store in group { identities.insert(store.identity) }
            #expect(identities.count == 1)
        }
    }

    @Test("The directory of another cluster is refused with 10020, and its message names both and the path")
    func foreignCluster() async throws {
        let files = SimulatedFiles()
        _ = try await Self.open(files)
        let error = await #expect(throws: ApusError.self) {
            try await LocalOwnershipStore(path: Self.path, cluster: ClusterID(unchecked: "other"), files: files)
        }
        #expect(error?.code == .stateForeign)
        #expect(error?.message.contains(Self.path) == true && error?.message.contains("cluster test") == true)
    }

    @Test("A path whose directory is not there is refused with 10021, and its message names the path")
    func unopenable() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/missing/ownership"
        let error = await #expect(throws: ApusError.self) { try await Self.open(SystemStoreFiles(), path: path) }
        #expect(error?.code == .storageFailed)
        #expect(error?.message.contains(path) == true)
    }

    @Test(
        "A disk that is full, read-only or fails is said with 10021 and what to do; the value stays",
        arguments: [(ENOSPC, "make room"), (EROFS, "read-only"), (EIO, "disk fails"), (EACCES, "permissions")])
    func diskFails(number: CInt, advice: String) async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files)
        _ = try await store.compareAndSwap(expected: 0, value: [1])
        for operation in ["write", "write content", "sync", "link"] {
            files.fail(operation, with: number)
            let error = await #expect(throws: ApusError.self) {
                try await store.compareAndSwap(expected: 1, value: [2])
            }
            #expect(error?.code == .storageFailed && error?.message.contains(advice) == true, "\(operation)")
            #expect(try await store.read() == OwnershipValue(revision: 1, bytes: [1]))
            files.fail(operation, with: nil)
        }
        #expect(try await store.compareAndSwap(expected: 1, value: [3]) == 2)
        #expect(try files.list(Self.path).names.count == 3)
    }

    @Test("A swap whose name could not be synced is uncertain, and nobody sees it before it is durable")
    func uncertain() async throws {
        let files = SimulatedFiles()
        let (store, other) = (try await Self.open(files), try await Self.open(files))
        files.fail("syncDirectory", with: EIO)
        await #expect(throws: ApusError(.storageFailed)) { try await store.compareAndSwap(expected: 0, value: [1]) }
        await #expect(throws: ApusError(.storageFailed)) { try await other.read() }
        files.fail("syncDirectory", with: nil)
        #expect(try await other.read() == OwnershipValue(revision: 1, bytes: [1]))
        #expect(try await store.read() == OwnershipValue(revision: 1, bytes: [1]))
    }

    @Test("A revision whose writer has not said that it is durable is synced by who sees it, once; another is not")
    func readersSync() async throws {
        let files = SimulatedFiles()
        let (store, other) = (try await Self.open(files), try await Self.open(files))
        _ = try await store.compareAndSwap(expected: 0, value: [1])
        let count = files.callCount("syncDirectory")
        for _ in 0..<10 { #expect(try await other.revision() == 1) }
        #expect(files.callCount("syncDirectory") == count)
        #expect(files.callCount("read") <= 4)
        // The writer dies after its link: its temporary name stays.
        files.fail("syncDirectory", with: EIO)
        await #expect(throws: ApusError(.storageFailed)) { try await store.compareAndSwap(expected: 1, value: [2]) }
        files.fail("syncDirectory", with: nil)
        let later = files.callCount("syncDirectory")
        for _ in 0..<10 { #expect(try await other.revision() == 2) }
        #expect(files.callCount("syncDirectory") == later + 1)
    }

    @Test("Names of every length are listed as they are, in a directory of many", .timeLimit(.minutes(1)))
    func names() throws {
        let scratch = try Scratch(isInMemory: true)
        let files = SystemStoreFiles()
        var names: [String] = []
        for number in 0..<400 {
            let name = String(repeating: "n", count: 1 + number % 200) + "\(number)"
            try files.write([], to: "\(scratch.path)/\(name)")
            names.append(name)
        }
        for _ in 0..<200 { #expect(try files.list(scratch.path).names.sorted() == names.sorted()) }
    }

    @Test("A damaged newest revision is 10021 for who has the store open and 10020 at a start, never the one below")
    func damaged() async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files)
        for revision in 0..<3 { _ = try await store.compareAndSwap(expected: UInt64(revision), value: [1]) }
        try files.damage("\(Self.path)/00000000000000000003")
        for _ in 0..<3 {
            let error = await #expect(throws: ApusError(.storageFailed)) { try await store.read() }
            #expect(error?.message.contains("apus admin ownership restore") == true)
            await #expect(throws: ApusError(.storageFailed)) { try await store.revision() }
            await #expect(throws: ApusError(.storageFailed)) { try await store.compareAndSwap(expected: 3, value: [2]) }
        }
        let error = await #expect(throws: ApusError(.stateForeign)) { try await Self.open(files) }
        #expect(error?.message.contains("apus admin ownership restore") == true)
    }

    @Test("A store that was removed, and one that took its place, are said to be so by who had it open")
    func replaced() async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files)
        _ = try await store.compareAndSwap(expected: 0, value: [1])
        try files.rename(Self.path, to: "/aside")
        await #expect(throws: ApusError(.storageFailed)) { try await store.read() }
        _ = try await Self.open(files)
        await #expect(throws: ApusError(.stateForeign)) { try await store.revision() }
        await #expect(throws: ApusError(.stateForeign)) { try await store.compareAndSwap(expected: 0, value: [1]) }
        try files.rename(Self.path, to: "/other")
        try files.rename("/aside", to: Self.path)
        #expect(try await store.read() == OwnershipValue(revision: 1, bytes: [1]))
    }

    @Test("Who saw a store before opens no other, no older and no empty one: 10020 with the command that helps")
    func seenBefore() async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files)
        _ = try await store.compareAndSwap(expected: 0, value: [1])
        let seen = OwnershipMark(store: store.identity, revision: 1)
        _ = try await Self.open(files, seen: seen)
        let wrong = [
            OwnershipMark(store: store.identity, revision: 2), OwnershipMark(store: .random(), revision: 1),
        ]
        for seen in wrong {
            let error = await #expect(throws: ApusError(.stateForeign)) { try await Self.open(files, seen: seen) }
            #expect(error?.message.contains("apus admin ownership restore") == true)
        }
        let error = await #expect(throws: ApusError(.stateForeign)) {
            try await Self.open(files, path: "/nowhere", seen: seen)
        }
        #expect(error?.message.contains("apus admin ownership restore") == true)
        #expect(throws: FileFailure.self) { try files.list("/nowhere") }
    }

    @Test(
        "Old revisions are removed: the directory stays within its bound, and a dead writer's file goes after a minute")
    func bounded() async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files, kept: 20)
        for revision in 0..<500 as Range<UInt64> {
            _ = try await store.compareAndSwap(expected: revision, value: [UInt8(truncatingIfNeeded: revision)])
            #expect(try files.list(Self.path).names.count <= 41)
        }
        #expect(try await store.revision() == 500)
    }

    @Test("A restore puts a map back under the same identity, and those who have the store open go on by themselves")
    func restored() async throws {
        let files = SimulatedFiles()
        let store = try await Self.open(files)
        _ = try await store.compareAndSwap(expected: 0, value: [1])
        let held = RevisionFile(cluster: testCluster, store: store.identity, revision: 1001, value: [1])
        try files.damage("\(Self.path)/00000000000000000001")
        await #expect(throws: ApusError(.storageFailed)) { try await store.read() }
        #expect(OwnershipRestore.look(path: Self.path, cluster: testCluster, files: files).reason != nil)
        #expect(try OwnershipRestore.put(held, at: Self.path, name: "1", files: files) == "\(Self.path).old-1")
        #expect(try await store.read() == OwnershipValue(revision: 1001, bytes: [1]))
        #expect(try await store.compareAndSwap(expected: 1001, value: [2]) == 1002)
        #expect(OwnershipRestore.look(path: Self.path, cluster: testCluster, files: files).found?.revision == 1002)
        #expect(throws: ApusError(.storageFailed)) {
            _ = try OwnershipRestore.put(held, at: Self.path, name: "1", files: files)
        }
    }
}

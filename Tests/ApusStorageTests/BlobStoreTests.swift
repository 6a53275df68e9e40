import ApusCore
import ApusStorage
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite("Blobs in a directory (D9)")
struct BlobStoreTests {
    private func open(_ path: String, _ change: (inout BlobLimits) -> Void = { _ in }) async throws
        -> DirectoryBlobStore
    {
        var limits = BlobLimits()
        change(&limits)
        return try await DirectoryBlobStore(path: path, limits: limits)
    }

    private func file(_ id: BlobID, in path: String) -> String { "\(path)/\("\(id)".prefix(2))/\(id)" }

    @Test("A blob is named by the SHA-256 of its bytes, and names are read as they are written")
    func names() {
        let id = BlobID(of: Array("abc".utf8))
        #expect("\(id)" == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        #expect(BlobID("\(id)") == id)
        let text = "\(id)"
        for wrong in ["", String(text.dropLast()), text + "0", text.uppercased(), "../" + text.dropFirst(3)] {
            #expect(BlobID(wrong) == nil, "\(wrong)")
        }
    }

    @Test("What was put is there for every process, also after all were closed, until it is removed")
    func roundTrip() async throws {
        let scratch = try Scratch()
        let path = scratch.path + "/blobs"
        let (a, b) = (try await open(path), try await open(path))
        for content in [[], [7], [UInt8](repeating: 3, count: 1 << 20)] as [[UInt8]] {
            let id = try await a.put(content)
            #expect(id == BlobID(of: content))
            #expect(try await b.get(id) == content)
            #expect(try await b.put(content) == id)
            #expect(try await open(path).get(id) == content)
            try await b.remove(id)
            try await b.remove(id)
            #expect(try await a.get(id) == nil)
        }
        let id = try await a.put([1, 2, 3])
        let attributes = try FileManager.default.attributesOfItem(atPath: file(id, in: path))
        #expect((attributes[.posixPermissions] as? NSNumber)?.intValue == 0o600)
        #expect(try FileManager.default.contentsOfDirectory(atPath: path + "/new").isEmpty)
    }

    @Test("Blobs are listed in the order of their names, page after page; other files are passed over")
    func list() async throws {
        let scratch = try Scratch(isInMemory: true)
        let store = try await open(scratch.path)
        var ids: [BlobID] = []
        for number in 0..<300 { ids.append(try await store.put([UInt8(number & 255), UInt8(number >> 8)])) }
        try Data().write(to: URL(fileURLWithPath: file(ids[0], in: scratch.path) + ".txt"))
        ids.sort()
        for limit in [1, 17, 300, 5000] {
            var found: [BlobID] = []
            while true {
                let page = try await store.list(after: found.last, limit: limit)
                #expect(page.count <= limit)
                guard !page.isEmpty else { break }
                found += page
            }
            #expect(found == ids)
        }
    }

    @Test("A blob that is not what its name says is reported with 10020, and replaced when it is put again")
    func damaged() async throws {
        let scratch = try Scratch()
        let store = try await open(scratch.path) { $0.byteCountMax = 1000 }
        let content = [UInt8](repeating: 9, count: 1000)
        let id = try await store.put(content)
        for bytes in [Data(content.dropLast()), Data(repeating: 9, count: 1001), Data()] {
            try bytes.write(to: URL(fileURLWithPath: file(id, in: scratch.path)))
            await #expect(throws: ApusError(.stateForeign)) { try await store.get(id) }
        }
        #expect(try await store.put(content) == id)
        #expect(try await store.get(id) == content)
    }

    @Test("A blob over the bound is refused with 10002, and one beyond the sum with 10007 until others are removed")
    func bounds() async throws {
        let scratch = try Scratch()
        let store = try await open(scratch.path) { ($0.byteCountMax, $0.totalByteCountMax) = (1000, 2500) }
        await #expect(throws: ApusError(.frameTooLarge)) {
            try await store.put([UInt8](repeating: 1, count: 1001))
        }
        let first = try await store.put([UInt8](repeating: 1, count: 1000))
        for _ in 0..<5 { _ = try await store.put([UInt8](repeating: 2, count: 1000)) }
        let third = [UInt8](repeating: 3, count: 501)
        await #expect(throws: ApusError(.overloaded)) { try await store.put(third) }
        #expect(try await store.get(BlobID(of: third)) == nil)
        // Who opens it later counts what is there.
        let other = try await open(scratch.path) { $0.totalByteCountMax = 2500 }
        await #expect(throws: ApusError(.overloaded)) { try await other.put(third) }
        try await store.remove(first)
        _ = try await store.put(third)
    }

    @Test("Of many that put at once, each is there; more than may wait are refused with 10007")
    func atOnce() async throws {
        let scratch = try Scratch(isInMemory: true)
        let store = try await open(scratch.path) { $0.waitingCountMax = 8 }
        let outcomes = await withTaskGroup(of: ErrorCode?.self) { group in
            for number in 0..<200 {
                group.addTask {
                    do throws(ApusError) {
                        let content = [UInt8](repeating: UInt8(number & 7), count: 100_000)
                        let id = try await store.put(content)
                        return try await store.get(id) == content ? nil : .storageFailed
                    } catch {
                        return error.code
                    }
                }
            }
            return await group.reduce(into: [ErrorCode?]()) { $0.append($1) }
        }
        #expect(outcomes.allSatisfy { $0 == nil || $0 == .overloaded } && outcomes.contains(nil))
        #expect(try await store.list(after: nil, limit: 100).count <= 8)
        _ = try await store.put([1])
    }

    @Test("What a process that died left behind is removed an hour later, and what is being written is not")
    func leftBehind() async throws {
        let scratch = try Scratch()
        _ = try await open(scratch.path)
        let (old, new) = (scratch.path + "/new/1-1", scratch.path + "/new/2-2")
        for file in [old, new] { try Data([1]).write(to: URL(fileURLWithPath: file)) }
        try FileManager.default.setAttributes(
            [.modificationDate: Date().addingTimeInterval(-3700)], ofItemAtPath: old)
        _ = try await open(scratch.path)
        #expect(!FileManager.default.fileExists(atPath: old) && FileManager.default.fileExists(atPath: new))
    }

    @Test("A directory that cannot be made is refused with 10021, and its message names the path")
    func unopenable() async throws {
        let scratch = try Scratch()
        try Data().write(to: URL(fileURLWithPath: scratch.path + "/file"))
        for path in [scratch.path + "/missing/blobs", scratch.path + "/file/blobs"] {
            let error = await #expect(throws: ApusError.self) { try await open(path) }
            #expect(error?.code == .storageFailed && error?.message.contains(path) == true)
        }
    }
}

import ApusCore
import ApusCrypto
import ApusObjectStore
import ApusTestKit
import Foundation
import Synchronization
import Testing

/// One key, which may be changed.
private final class TestKeys: ObjectKeys {
    private let current: Mutex<ObjectKey>

    init(_ byte: UInt8) throws { current = Mutex(try Self.key(byte)) }

    static func key(_ byte: UInt8) throws -> ObjectKey {
        try ObjectKey(
            id: [UInt8](repeating: byte, count: 16), key: SymmetricKey(data: [UInt8](repeating: byte, count: 32)))
    }

    func change(_ key: ObjectKey) { current.withLock { $0 = key } }
    func key(sealing name: ObjectName) -> ObjectKey { current.withLock { $0 } }
    func key(_ id: [UInt8], of name: ObjectName) -> ObjectKey? { current.withLock { $0.id == id ? $0 : nil } }
}

@Suite("Sealed objects")
struct SealedObjectStoreTests {
    private let folder = Folder()

    private func stores(
        _ keys: any ObjectKeys, limits: ObjectStoreLimits = ObjectStoreLimits()
    ) async throws -> (clear: SealedObjectStore, sealed: DirectoryObjectStore) {
        let sealed = try await DirectoryObjectStore(path: folder.file("objects"), limits: limits)
        return (SealedObjectStore(sealed, keys: keys), sealed)
    }

    /// Puts bytes as they are under a name of the sealed store.
    private func replace(_ name: ObjectName, _ bytes: [UInt8], in store: DirectoryObjectStore) async throws {
        try await store.delete(name)
        _ = try await store.put(name, ObjectContent(bytes))
    }

    private static let chunk = SealedObject.chunkByteCount

    @Test(
        "What is put is read, at all sizes around the ends of chunks",
        arguments: [0, 1, 15, 16, 17, 1000]
            + [1, 2, 3].flatMap { count in
                [-17, -16, -1, 0, 1, 16, 17].map { count * (64 << 10) + $0 }
            })
    func sizes(size: Int) async throws {
        let (store, sealed) = try await stores(try TestKeys(1))
        let (name, content) = (try ObjectName("a/b"), ObjectStorePromises.bytes(size))
        let put = try await store.put(name, ObjectContent(content))
        let head = try #require(try await store.head(name))
        #expect(put == .stored(head) && head.byteCount == size)
        let part = try #require(try await store.get(name, range: nil))
        #expect(part.bytes == content && part.head == head && part.offset == 0)
        #expect(try await store.list(prefix: "", after: nil, countMax: nil).entries.map(\.byteCount) == [size])
        let sealedSize = try #require(try await sealed.head(name)).byteCount
        #expect(sealedSize == SealedObject.sealedByteCount(of: size))
        #expect(SealedObject.clearByteCount(of: sealedSize) == size)
        // The same content of the same name and key has the same bytes.
        #expect(try await store.put(name, ObjectContent(content)) == .exists(head, isSame: true))
        var other = content + [0]
        #expect(try await store.put(name, ObjectContent(other)) == .exists(head, isSame: false))
        if size > 0 {
            other = content
            other[size - 1] ^= 1
            #expect(try await store.put(name, ObjectContent(other)) == .exists(head, isSame: false))
        }
    }

    @Test("Each size of a sealed object has one size of the content, and the sizes between have none")
    func sealedSizes() {
        var clear: [Int: Int] = [:]
        for size in 0...3 * Self.chunk { clear[SealedObject.sealedByteCount(of: size)] = size }
        for sealed in 0...SealedObject.sealedByteCount(of: 3 * Self.chunk) {
            guard SealedObject.clearByteCount(of: sealed) != clear[sealed] else { continue }
            Issue.record("\(sealed) bytes")
        }
    }

    @Test("Ranges are those of the content")
    func ranges() async throws {
        var limits = ObjectStoreLimits()
        limits.readByteCountMax = 300_000
        let (store, _) = try await stores(try TestKeys(1), limits: limits)
        let (name, content) = (try ObjectName("a/b"), ObjectStorePromises.bytes(5 * Self.chunk + 100))
        _ = try await store.put(name, ObjectContent(content))
        var random = SeededRandom(seed: 1)
        let edges = (0...5).flatMap { [$0 * Self.chunk - 1, $0 * Self.chunk, $0 * Self.chunk + 1] }
        for _ in 0..<400 {
            var bounds = (0..<2).map { _ in
                Bool.random(using: &random)
                    ? max(0, edges.randomElement(using: &random) ?? 0)
                    : Int.random(in: 0...content.count + 50, using: &random)
            }
            bounds.sort()
            let part = try #require(try await store.get(name, range: bounds[0]..<bounds[1]))
            let end = min(bounds[1], bounds[0] + store.limits.readByteCountMax)
            let expected = (bounds[0]..<max(end, bounds[0])).clamped(to: 0..<content.count)
            #expect(part.bytes == Array(content[expected]), "\(bounds)")
        }
        #expect(try await store.get(try ObjectName("a/c"), range: nil) == nil)
        await #expect(throws: ApusError(.badParameter)) { try await store.get(name, range: -1..<5) }
    }

    @Test("A byte that is changed is noticed, wherever it is")
    func flips() async throws {
        let (store, sealed) = try await stores(try TestKeys(1))
        let name = try ObjectName("a/b")
        _ = try await store.put(name, ObjectContent(ObjectStorePromises.bytes(100)))
        let whole = try #require(try await sealed.get(name, range: nil)).bytes
        for index in whole.indices {
            var bytes = whole
            bytes[index] ^= UInt8(1 << (index % 8))
            try await replace(name, bytes, in: sealed)
            await #expect(throws: ApusError(.storageFailed), "byte \(index)") { try await store.get(name, range: nil) }
        }
        for index in 0..<SealedObject.headerByteCount {
            var bytes = whole
            bytes[index] = ~bytes[index]
            try await replace(name, bytes, in: sealed)
            await #expect(throws: ApusError(.storageFailed)) { try await store.get(name, range: 5..<6) }
        }
        try await replace(name, whole, in: sealed)
        #expect(try await store.get(name, range: nil)?.bytes.count == 100)
    }

    @Test("Chunks that are swapped, left out, cut, or of another object are noticed")
    func moves() async throws {
        let (store, sealed) = try await stores(try TestKeys(1))
        let (name, second) = (try ObjectName("a/b"), try ObjectName("a/c"))
        // Chunks of the same content, which nothing but their number tells apart.
        let content = [UInt8](repeating: 5, count: 3 * Self.chunk)
        _ = try await store.put(name, ObjectContent(content))
        _ = try await store.put(second, ObjectContent(content))
        let whole = try #require(try await sealed.get(name, range: nil)).bytes
        let other = try #require(try await sealed.get(second, range: nil)).bytes
        let size = Self.chunk + 16
        func part(_ index: Int, of bytes: [UInt8] = []) -> [UInt8] {
            let bytes = bytes.isEmpty ? whole : bytes
            return Array(bytes[(64 + index * size)..<(64 + (index + 1) * size)])
        }
        let head = Array(whole[..<64])
        var shorter = head
        // The size in the header, as it would be with two chunks.
        shorter.replaceSubrange(8..<16, with: withUnsafeBytes(of: UInt64(2 * Self.chunk).bigEndian) { Array($0) })
        var none = head
        none.replaceSubrange(8..<16, with: [UInt8](repeating: 0, count: 8))
        let forged = [
            none + [UInt8](repeating: 0, count: 16), none + whole.suffix(16),
            head + part(1) + part(0) + part(2), head + part(0) + part(1), shorter + part(0) + part(1),
            head + part(0) + part(1) + part(1), Array(whole.dropLast()), Array(whole.dropLast(size - 16)),
            whole + [0], head + part(0, of: other) + part(1) + part(2), other, Array(whole[..<64]), [],
            content,
        ]
        #expect(part(0) != part(1) && part(0) != part(0, of: other))
        for (index, bytes) in forged.enumerated() {
            try await replace(name, bytes, in: sealed)
            await #expect(throws: ApusError(.storageFailed), "\(index)") { try await store.get(name, range: nil) }
        }
        // Who reads behind the end of a shorter one must not take it for the end.
        try await replace(name, shorter + part(0) + part(1), in: sealed)
        await #expect(throws: ApusError(.storageFailed)) {
            try await store.get(name, range: 2 * Self.chunk..<3 * Self.chunk)
        }
        try await replace(name, whole, in: sealed)
        #expect(try await store.get(name, range: nil)?.bytes == content)
        #expect(try await store.get(name, range: 2 * Self.chunk..<3 * Self.chunk)?.bytes.count == Self.chunk)
    }

    @Test("An unknown key, another key of the same id, and another content under one name do not open it")
    func keys() async throws {
        let keys = try TestKeys(1)
        let (store, sealed) = try await stores(keys)
        let name = try ObjectName("a/b")
        let content = ObjectStorePromises.bytes(100)
        let put = try await store.put(name, ObjectContent(content))
        keys.change(try TestKeys.key(2))
        await #expect(throws: ApusError(.storageFailed)) { try await store.get(name, range: nil) }
        let own = try TestKeys.key(1)
        keys.change(try ObjectKey(id: own.id, key: try TestKeys.key(2).key))
        await #expect(throws: ApusError(.storageFailed)) { try await store.get(name, range: nil) }
        keys.change(own)
        #expect(try await store.get(name, range: nil)?.bytes == content)
        #expect(put == .stored(try #require(try await store.head(name))))
        #expect(throws: ApusError(.badParameter)) { try ObjectKey(id: [1], key: own.key) }
        // Another content has another key of its chunks: the two sealed texts do not give away their difference.
        let (zeros, ones) = ([UInt8](repeating: 0, count: 100), [UInt8](repeating: 1, count: 100))
        var texts: [[UInt8]] = []
        for content in [zeros, ones] {
            try await store.delete(name)
            _ = try await store.put(name, ObjectContent(content))
            texts.append(Array(try #require(try await sealed.get(name, range: nil)).bytes[64..<164]))
        }
        #expect(zip(texts[0], texts[1]).map { $0 ^ $1 } != ones)
    }

    @Test("A content that changes while it is sealed is not sealed")
    func changing() async throws {
        let (store, sealed) = try await stores(try TestKeys(1))
        let name = try ObjectName("a/b")
        let count = Mutex(0)
        let content = ObjectContent(byteCount: 10) { range in
            let number = count.withLock { count in
                count += 1
                return count
            }
            return [UInt8](repeating: UInt8(number), count: range.count)
        }
        await #expect(throws: ApusError(.internalFailure)) { try await store.put(name, content) }
        #expect(try await sealed.head(name) == nil)
    }

    @Test("No content is in clear text in the directory")
    func clearText() async throws {
        let (store, sealed) = try await stores(try TestKeys(1))
        let name = try ObjectName("a/b")
        let content = Array(String(repeating: "a picture of the garden ", count: 5000).utf8)
        _ = try await store.put(name, ObjectContent(content))
        let bytes = Data(try #require(try await sealed.get(name, range: nil)).bytes)
        #expect(bytes.count > content.count && bytes.range(of: Data("garden".utf8)) == nil)
        #expect(Data(content).range(of: Data("garden".utf8)) != nil)
    }

    @Test("A sealed store keeps the promises of every store")
    func promises() async throws {
        let (store, _) = try await stores(try TestKeys(1))
        try await ObjectStorePromises.expectObjects(store, "promises")
        try await ObjectStorePromises.expectNothingReplaced(store, "nothing")
        try await store.check()
    }
}

package import ApusCore
import Synchronization

/// The keys of sealed objects.
///
/// Isolation: any task.
package protocol ObjectKeys: Sendable {
    /// The key that seals an object of this name. As long as it is the same, a put of the same content finds that it is
    /// the same.
    ///
    /// - Throws: 10021 if the keys cannot be read.
    func key(sealing name: ObjectName) async throws(ApusError) -> ObjectKey
    /// The key of an id; nil if it is unknown.
    ///
    /// - Throws: 10021 if the keys cannot be read.
    func key(_ id: [UInt8], of name: ObjectName) async throws(ApusError) -> ObjectKey?
}

/// A store whose objects are sealed in another one, as ``SealedObject`` describes.
///
/// Sizes and ranges are those of the content. A read of a range reads its chunks and the header, which is remembered
/// for the objects that were read last.
///
/// Besides what the other store throws, ``get(_:range:)`` throws 10021 if an object was changed, is not sealed, or has
/// an unknown key. An object that is not sealed is listed with its own size.
///
/// Isolation: any task. A `Mutex` guards the headers.
package final class SealedObjectStore: ObjectStore {
    /// The headers that are remembered, of 200 bytes each.
    fileprivate static let headerCountMax = 1024

    fileprivate struct Headers {
        /// With the heads, whose sizes are those of the contents.
        var known: [ObjectName: (header: SealedObjectHeader, head: ObjectHead)] = [:]
        var order: [ObjectName] = []
        var next = 0
    }

    package let limits: ObjectStoreLimits
    package var place: String { store.place }
    private let store: any ObjectStore
    private let keys: any ObjectKeys
    private let headers = Mutex(Headers())

    package init(_ store: any ObjectStore, keys: any ObjectKeys) {
        (self.store, self.keys) = (store, keys)
        var limits = store.limits
        let chunkCount = (limits.objectByteCountMax - SealedObject.headerByteCount) / SealedObject.sealedChunkByteCount
        limits.objectByteCountMax = max(0, chunkCount * SealedObject.chunkByteCount)
        // Also a range that begins within a chunk is read at once.
        let readCount = (limits.readByteCountMax - SealedObject.headerByteCount) / SealedObject.sealedChunkByteCount
        limits.readByteCountMax = max(1, readCount - 1) * SealedObject.chunkByteCount
        self.limits = limits
    }

    package func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        try checkSize(content)
        let sealed = try await SealedObject(name, content, key: try await keys.key(sealing: name))
        switch try await store.put(name, sealed.content) {
        case .stored(let head): return .stored(Self.clear(head))
        case .exists(let head, let isSame): return .exists(Self.clear(head), isSame: isSame)
        }
    }

    package func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart? {
        let range = try limited(range)
        // An object that is deleted and put again between two reads has another tag.
        for _ in 0..<3 {
            guard let (header, head, isKnown) = try await header(name) else { return nil }
            let clear = range.clamped(to: 0..<header.byteCount)
            guard let key = try await keys.key(header.keyID, of: name) else {
                if isKnown {
                    forget(name)
                    continue
                }
                throw ApusError(.storageFailed, "\(name) was sealed with a key that is not known")
            }
            // Where there is nothing to read, the last chunk proves that the object ends here.
            let last = SealedObject.chunkCount(of: header.byteCount) - 1
            let chunks = clear.isEmpty ? last..<last + 1 : SealedObject.chunks(with: clear)
            let sealed = SealedObject.sealedRange(of: chunks, in: header.byteCount)
            guard let bytes = try await bytes(name, sealed, tag: head.tag) else {
                forget(name)
                continue
            }
            let chunkKey = header.chunkKey(name, key.key)
            var content: [UInt8] = []
            for chunk in chunks {
                let start = (chunk - chunks.lowerBound) * SealedObject.sealedChunkByteCount
                let end = min(start + SealedObject.sealedChunkByteCount, bytes.count)
                guard start < end, let part = header.open(bytes[start..<end], chunk, chunkKey) else {
                    throw ApusError(.storageFailed, "\(name) is damaged or was changed")
                }
                content += part
            }
            guard !clear.isEmpty else { return ObjectPart(bytes: [], offset: clear.lowerBound, head: head) }
            let first = chunks.lowerBound * SealedObject.chunkByteCount
            guard clear.upperBound - first <= content.count else {
                throw ApusError(.storageFailed, "\(name) is damaged or was changed")
            }
            let part = Array(content[(clear.lowerBound - first)..<(clear.upperBound - first)])
            return ObjectPart(bytes: part, offset: clear.lowerBound, head: head)
        }
        throw ApusError(.storageFailed, "\(name) is put and deleted by others all the time")
    }

    package func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead? {
        try await store.head(name).map { Self.clear($0) }
    }

    package func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage {
        var page = try await store.list(prefix: prefix, after: after, countMax: countMax)
        for index in page.entries.indices {
            let sealed = page.entries[index].byteCount
            page.entries[index].byteCount = SealedObject.clearByteCount(of: sealed) ?? sealed
        }
        return page
    }

    package func delete(_ name: ObjectName) async throws(ApusError) {
        forget(name)
        try await store.delete(name)
    }

    package func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await store.leftovers(olderThan: age)
    }

    package func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await store.removeLeftovers(olderThan: age)
    }

    package func check() async throws(ApusError) { try await store.check() }

    package func shutdown() async { await store.shutdown() }

    // MARK: Headers

    private static func clear(_ head: ObjectHead) -> ObjectHead {
        var head = head
        head.byteCount = SealedObject.clearByteCount(of: head.byteCount) ?? head.byteCount
        return head
    }

    /// The header of an object, and its head with the size of the content; nil if there is no such object. They may be
    /// those of an object that others have deleted since; its tag says so.
    private func header(
        _ name: ObjectName
    ) async throws(ApusError) -> (header: SealedObjectHeader, head: ObjectHead, isKnown: Bool)? {
        if let known = headers.withLock({ $0.known[name] }) { return (known.header, known.head, true) }
        guard let part = try await store.get(name, range: 0..<SealedObject.headerByteCount) else { return nil }
        guard let header = SealedObjectHeader(decoding: part.bytes),
            SealedObject.clearByteCount(of: part.head.byteCount) == header.byteCount
        else { throw ApusError(.storageFailed, "\(name) is not sealed, or is damaged or was cut") }
        let head = Self.clear(part.head)
        headers.withLock { $0.remember(name, header, head) }
        return (header, head, false)
    }

    private func forget(_ name: ObjectName) { headers.withLock { $0.known[name] = nil } }

    /// Bytes of the sealed object; nil if its tag is another one now.
    private func bytes(_ name: ObjectName, _ range: Range<Int>, tag: String) async throws(ApusError) -> [UInt8]? {
        var bytes: [UInt8] = []
        while bytes.count < range.count {
            let rest = range.lowerBound + bytes.count..<range.upperBound
            guard let part = try await store.get(name, range: rest), part.head.tag == tag else { return nil }
            guard !part.bytes.isEmpty else { break }
            bytes += part.bytes
        }
        return bytes
    }
}

extension SealedObjectStore.Headers {
    /// The oldest one of too many is forgotten.
    fileprivate mutating func remember(_ name: ObjectName, _ header: SealedObjectHeader, _ head: ObjectHead) {
        known[name] = (header, head)
        guard !order.contains(name) else { return }
        if order.count < SealedObjectStore.headerCountMax {
            order.append(name)
        } else {
            known[order[next]] = nil
            order[next] = name
            next = (next + 1) % order.count
        }
    }
}

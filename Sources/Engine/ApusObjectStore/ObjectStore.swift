package import ApusCore
package import NIOCore

/// Named objects that never change.
///
/// An object is put whole or not at all, and never replaced: of several puts of one name, one stores its content, and
/// each other one returns ``ObjectPut/exists(_:isSame:)``. All calls are bounded in time (10005), in number
/// (10007) and in size (10002).
///
/// Besides, they throw 21031 for an argument that is not valid, 10041 if the storage is full, 10006 if the task is
/// cancelled, and 10021 if the storage cannot be read or written, whose message says what to do. After an error of
/// ``put(_:_:)`` the object may be there, whole. A caller repeats the put.
///
/// Isolation: any task.
package protocol ObjectStore: Sendable {
    /// The bounds of the store.
    var limits: ObjectStoreLimits { get }
    /// Where the store is, without secrets, for logs.
    var place: String { get }

    /// Stores an object unless there is one of its name. When this returns, the object of that name is durable.
    func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut
    /// Reads bytes of an object.
    ///
    /// - Parameter range: nil for all. At most ``ObjectStoreLimits/readByteCountMax`` bytes are returned, fewer than
    ///   the range has only there or at the end of the object.
    /// - Returns: nil if there is no such object.
    func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart?
    /// The size and tag of an object; nil if the object does not exist.
    func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead?
    /// Lists objects in the order of their names.
    ///
    /// - Parameters:
    ///   - prefix: what the names begin with; it may end within a part.
    ///   - after: only names behind this one.
    ///   - countMax: at most ``ObjectStoreLimits/pageCountMax``, which nil stands for.
    func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage
    /// Removes an object. It is no error if the object does not exist.
    func delete(_ name: ObjectName) async throws(ApusError)
    /// Counts what puts that ended without a result have left, if it is older than `age`.
    func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers
    /// Removes what ``leftovers(olderThan:)`` counts, and returns it. Objects are never removed.
    func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers
    /// Puts, reads and deletes a test object, and tries to replace it.
    ///
    /// - Throws: 10021 if the store does not keep its promises, such as an S3 server that ignores `If-None-Match`.
    func check() async throws(ApusError)
    /// Ends the store's connections. Later calls fail.
    func shutdown() async
}

/// The content of an object that is put. It may be read several times.
package struct ObjectContent: Sendable {
    package let byteCount: Int
    private let source: @Sendable (Range<Int>) async throws(ApusError) -> [UInt8]

    /// - Parameter read: gives exactly the bytes of a range, and always the same ones.
    package init(byteCount: Int, read: @escaping @Sendable (Range<Int>) async throws(ApusError) -> [UInt8]) {
        (self.byteCount, source) = (byteCount, read)
    }

    package init(_ bytes: [UInt8]) {
        self.init(byteCount: bytes.count) { range in range.count == bytes.count ? bytes : Array(bytes[range]) }
    }

    /// The readable bytes of a buffer, without a copy of the whole.
    package init(_ buffer: ByteBuffer) {
        self.init(byteCount: buffer.readableBytes) { range in
            buffer.getBytes(at: buffer.readerIndex + range.lowerBound, length: range.count) ?? []
        }
    }

    /// - Throws: 10018 if the source gives another number of bytes, and what it throws.
    func read(_ range: Range<Int>) async throws(ApusError) -> [UInt8] {
        let bytes = try await source(range)
        guard bytes.count == range.count else {
            throw ApusError(.internalFailure, "the content of an object has another length than announced")
        }
        return bytes
    }

    /// The ranges of the parts of a size.
    func ranges(of partByteCount: Int) -> [Range<Int>] {
        stride(from: 0, to: byteCount, by: partByteCount).map { $0..<min($0 + partByteCount, byteCount) }
    }
}

/// The size, tag and time of an object.
package struct ObjectHead: Sendable, Hashable {
    package var byteCount: Int
    /// Another one for another content: an entity tag of HTTP, without its quotes.
    package var tag: String
    /// Unix milliseconds.
    package var modifiedMilliseconds: Int64

    package init(byteCount: Int, tag: String, modifiedMilliseconds: Int64) {
        self.byteCount = byteCount
        self.tag = tag
        self.modifiedMilliseconds = modifiedMilliseconds
    }
}

/// The outcome of a put. In both cases the object that is there is durable.
package enum ObjectPut: Sendable, Hashable {
    /// The content was stored by this call.
    case stored(ObjectHead)
    /// There was an object of this name, which stays. `isSame`: it has exactly this content.
    case exists(ObjectHead, isSame: Bool)
}

/// Bytes of an object.
package struct ObjectPart: Sendable, Hashable {
    package var bytes: [UInt8]
    /// Where they begin in the object.
    package var offset: Int
    package var head: ObjectHead

    package init(bytes: [UInt8], offset: Int, head: ObjectHead) {
        self.bytes = bytes
        self.offset = offset
        self.head = head
    }
}

/// An object of a list.
package struct ObjectEntry: Sendable, Hashable {
    package var name: ObjectName
    package var byteCount: Int
    /// Unix milliseconds.
    package var modifiedMilliseconds: Int64

    package init(name: ObjectName, byteCount: Int, modifiedMilliseconds: Int64) {
        self.name = name
        self.byteCount = byteCount
        self.modifiedMilliseconds = modifiedMilliseconds
    }
}

/// A page of a list.
package struct ObjectPage: Sendable, Hashable {
    package var entries: [ObjectEntry]
    /// What to pass as `after` for the next page; nil if this is the last one.
    package var next: ObjectName?

    package init(entries: [ObjectEntry], next: ObjectName?) {
        self.entries = entries
        self.next = next
    }
}

/// Parts of puts that ended without a result.
package struct ObjectLeftovers: Sendable, Hashable {
    package var count: Int
    package var byteCount: Int

    package init(count: Int = 0, byteCount: Int = 0) {
        self.count = count
        self.byteCount = byteCount
    }
}

extension ObjectStore {
    /// Compares an object with a content, part by part.
    ///
    /// - Returns: nil if the object was deleted.
    func isSame(
        _ content: ObjectContent,
        as read: (_ range: Range<Int>) async throws(ApusError) -> ObjectPart?
    ) async throws(ApusError) -> Bool? {
        for range in content.ranges(of: min(limits.partByteCount, limits.readByteCountMax)) {
            guard let part = try await read(range) else { return nil }
            guard part.head.byteCount == content.byteCount, try await content.read(range) == part.bytes else {
                return false
            }
        }
        return true
    }

    /// - Throws: 10002.
    func checkSize(_ content: ObjectContent) throws(ApusError) {
        guard content.byteCount <= limits.objectByteCountMax else {
            throw ApusError(.frameTooLarge, "an object has at most \(limits.objectByteCountMax) bytes")
        }
    }

    /// The range that a read returns.
    ///
    /// - Throws: 21031 for a negative offset.
    func limited(_ range: Range<Int>?) throws(ApusError) -> Range<Int> {
        let range = range ?? 0..<Int.max
        guard range.lowerBound >= 0 else { throw ApusError(.badParameter, "a range begins at 0 or later") }
        return range.lowerBound..<range.lowerBound + min(range.count, limits.readByteCountMax)
    }

    /// - Throws: 21031 if the age is below the store's bound.
    func checkAge(_ age: Duration) throws(ApusError) {
        guard age >= limits.leftoverAgeMin else {
            throw ApusError(.badParameter, "a put may still be in progress after \(age)")
        }
    }

    /// The steps of ``check()``.
    func checkPromises(_ name: ObjectName) async throws(ApusError) {
        let (first, second) = (Array("first".utf8), Array("other".utf8))
        guard case .stored(let stored) = try await put(name, ObjectContent(first)), stored.byteCount == first.count
        else {
            throw ApusError(.storageFailed, "\(place) does not store an object that is not there")
        }
        let again = try await put(name, ObjectContent(second))
        let found = try await get(name, range: nil)?.bytes
        try await delete(name)
        guard found == first, case .exists(_, isSame: false) = again else {
            throw ApusError(
                .storageFailed,
                "\(place) replaces objects that are there; it must support conditional writes (If-None-Match: *)")
        }
        guard try await head(name) == nil else {
            throw ApusError(.storageFailed, "\(place) does not delete objects")
        }
    }
}

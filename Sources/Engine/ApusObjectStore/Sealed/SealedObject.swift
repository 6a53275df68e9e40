package import ApusCore
package import ApusCrypto
import Foundation
import NIOCore

/// The key of sealed objects.
package struct ObjectKey: Sendable {
    /// The size of an id, in bytes.
    package static let idByteCount = 16

    /// What a sealed object says of its key. It is not secret.
    package var id: [UInt8]
    package var key: SymmetricKey

    /// - Throws: 21031 if the id does not have ``idByteCount`` bytes, or the key 32.
    package init(id: [UInt8], key: SymmetricKey) throws(ApusError) {
        guard id.count == Self.idByteCount, key.byteCount == AES.GCM.keyByteCount else {
            throw ApusError(.badParameter, "the key of an object has 32 bytes, and its id \(Self.idByteCount)")
        }
        (self.id, self.key) = (id, key)
    }
}

/// The format of sealed objects: a header, and chunks of 64 KiB that are sealed with AES-256-GCM.
///
/// The header has the key's id, the size, and a code of the content: the HMAC of the object's name, its size and the
/// SHA-256 of each chunk. The chunks' key is derived from the caller's key, the name and this code, and the nonce is
//the / number of the chunk. So the same content of the same name and key has the same bytes, and no two contents share
//a / key and a nonce. The tag of a chunk is also one of the header, so chunks cannot be moved, left out or mixed, and
//an / object that was cut does not open. / / Someone who sees the sealed objects sees their names, sizes and keys' ids,
//and whether two objects of one name have / the same content.
package struct SealedObject: Sendable {
    package static let chunkByteCount = 64 << 10
    package static let headerByteCount = 64
    static let tagByteCount = AES.GCM.tagByteCount
    static let sealedChunkByteCount = chunkByteCount + tagByteCount

    /// The sealed content. Reading it throws 10018 if the clear content has changed meanwhile.
    package let content: ObjectContent

    /// Reads the content once. It is read again when the sealed one is.
    ///
    /// - Throws: 10018 if the content is shorter than announced, and what reading it throws.
    package init(_ name: ObjectName, _ content: ObjectContent, key: ObjectKey) async throws(ApusError) {
        var digests: [[UInt8]] = []
        for range in Self.chunks(of: content.byteCount) {
            digests.append(SHA256.hash(data: try await content.read(range)))
        }
        let code = Self.code(name, content.byteCount, digests, key.key)
        let header = SealedObjectHeader(keyID: key.id, byteCount: content.byteCount, code: code)
        let chunkKey = header.chunkKey(name, key.key)
        self.content = ObjectContent(byteCount: Self.sealedByteCount(of: content.byteCount)) {
            [digests] range throws(ApusError) in
            try await Self.read(range, content, digests, header, chunkKey)
        }
    }

    /// The size of a sealed object.
    package static func sealedByteCount(of clearByteCount: Int) -> Int {
        headerByteCount + clearByteCount + tagByteCount * chunkCount(of: clearByteCount)
    }

    /// The size of the content of a sealed object; nil if no sealed object has this size.
    package static func clearByteCount(of sealedByteCount: Int) -> Int? {
        let body = sealedByteCount - headerByteCount
        guard body >= tagByteCount else { return nil }
        let count = (body + sealedChunkByteCount - 1) / sealedChunkByteCount
        let clear = body - count * tagByteCount
        return clear >= 0 && self.sealedByteCount(of: clear) == sealedByteCount ? clear : nil
    }

    /// The chunks of a content: one also of an empty one.
    static func chunkCount(of clearByteCount: Int) -> Int {
        max(1, (clearByteCount + chunkByteCount - 1) / chunkByteCount)
    }

    /// The clear bytes of each chunk.
    private static func chunks(of clearByteCount: Int) -> [Range<Int>] {
        (0..<chunkCount(of: clearByteCount)).map { clearRange(of: $0, in: clearByteCount) }
    }

    static func clearRange(of chunk: Int, in clearByteCount: Int) -> Range<Int> {
        chunk * chunkByteCount..<min((chunk + 1) * chunkByteCount, clearByteCount)
    }

    /// Where chunks are in the sealed object.
    static func sealedRange(of chunks: Range<Int>, in clearByteCount: Int) -> Range<Int> {
        let end = headerByteCount + chunks.upperBound * sealedChunkByteCount
        return headerByteCount + chunks.lowerBound
            * sealedChunkByteCount..<min(end, sealedByteCount(of: clearByteCount))
    }

    /// The chunks that have bytes of the content; at least one.
    static func chunks(with range: Range<Int>) -> Range<Int> {
        let first = range.lowerBound / chunkByteCount
        return first..<max(first + 1, (range.upperBound + chunkByteCount - 1) / chunkByteCount)
    }

    private static func code(
        _ name: ObjectName, _ byteCount: Int, _ digests: [[UInt8]], _ key: SymmetricKey
    ) -> [UInt8] {
        let codeKey = HKDF.deriveKey(
            inputKeyMaterial: key, info: Data("apus sealed object code".utf8), outputByteCount: 32)
        var message = ByteBuffer()
        message.writeMultipleIntegers(UInt32(name.text.utf8.count), UInt64(byteCount))
        message.writeString(name.text)
        return HMAC<SHA256>.authenticationCode(
            for: Array(message.readableBytesView), then: digests.flatMap { $0 }, using: codeKey)
    }

    /// Bytes of the sealed object.
    private static func read(
        _ range: Range<Int>, _ content: ObjectContent, _ digests: [[UInt8]], _ header: SealedObjectHeader,
        _ chunkKey: SymmetricKey
    ) async throws(ApusError) -> [UInt8] {
        guard !range.isEmpty else { return [] }
        var bytes = range.lowerBound < headerByteCount ? header.encoded() : []
        var start = range.lowerBound < headerByteCount ? 0 : range.lowerBound
        if range.upperBound > headerByteCount {
            let first = max(0, range.lowerBound - headerByteCount) / sealedChunkByteCount
            if range.lowerBound >= headerByteCount { start = headerByteCount + first * sealedChunkByteCount }
            let end = (range.upperBound - headerByteCount + sealedChunkByteCount - 1) / sealedChunkByteCount
            for chunk in first..<end {
                let clear = try await content.read(clearRange(of: chunk, in: content.byteCount))
                // Another content under the same nonce would give both away.
                guard SHA256.hash(data: clear) == digests[chunk] else {
                    throw ApusError(.internalFailure, "the content of an object has changed while it was sealed")
                }
                bytes += try header.seal(clear, chunk, chunkKey)
            }
        }
        return Array(bytes[(range.lowerBound - start)..<(range.upperBound - start)])
    }
}

/// The header of a sealed object.
struct SealedObjectHeader: Sendable, Hashable {
    private static let magic: UInt32 = 0x4150_534f  // "APSO"
    private static let version: UInt16 = 1

    var keyID: [UInt8]
    /// Of the content.
    var byteCount: Int
    var code: [UInt8]

    init(keyID: [UInt8], byteCount: Int, code: [UInt8]) {
        (self.keyID, self.byteCount, self.code) = (keyID, byteCount, code)
    }

    func encoded() -> [UInt8] {
        var buffer = ByteBuffer()
        buffer.writeMultipleIntegers(Self.magic, Self.version, UInt16(0), UInt64(byteCount))
        buffer.writeBytes(keyID)
        buffer.writeBytes(code)
        return Array(buffer.readableBytesView)
    }

    /// Nil if the bytes are not a header.
    init?(decoding bytes: some Collection<UInt8>) {
        var buffer = ByteBuffer(bytes: bytes)
        guard buffer.readableBytes == SealedObject.headerByteCount,
            let (magic, version, zero, byteCount) = buffer.readMultipleIntegers(
                as: (UInt32, UInt16, UInt16, UInt64).self),
            magic == Self.magic, version == Self.version, zero == 0, let count = Int(exactly: byteCount),
            let keyID = buffer.readBytes(length: ObjectKey.idByteCount), let code = buffer.readBytes(length: 32)
        else { return nil }
        self.init(keyID: keyID, byteCount: count, code: code)
    }

    /// The key of the object's chunks.
    func chunkKey(_ name: ObjectName, _ key: SymmetricKey) -> SymmetricKey {
        HKDF.deriveKey(
            inputKeyMaterial: key, salt: code, info: Data("apus sealed object ".utf8) + Data(name.text.utf8),
            outputByteCount: AES.GCM.keyByteCount)
    }

    private static func nonce(_ chunk: Int) -> [UInt8] {
        var buffer = ByteBuffer()
        buffer.writeMultipleIntegers(UInt32(0), UInt64(chunk))
        return Array(buffer.readableBytesView)
    }

    /// - Throws: 10018.
    func seal(_ clear: [UInt8], _ chunk: Int, _ key: SymmetricKey) throws(ApusError) -> ArraySlice<UInt8> {
        do throws(CryptoError) {
            let sealed = try AES.GCM.seal(clear, using: key, nonce: Self.nonce(chunk), context: encoded())
            return sealed.dropFirst(AES.GCM.nonceByteCount)
        } catch {
            throw ApusError(.internalFailure, "a chunk of an object cannot be sealed: \(error)")
        }
    }

    /// Nil if it is not this chunk of this object.
    func open(_ sealed: ArraySlice<UInt8>, _ chunk: Int, _ key: SymmetricKey) -> [UInt8]? {
        try? AES.GCM.open(Self.nonce(chunk) + sealed, using: key, context: encoded())
    }
}

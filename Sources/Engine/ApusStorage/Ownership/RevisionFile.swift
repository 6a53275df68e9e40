package import ApusCore

/// The identity of an ownership store: 128 random bits, chosen when the store is created.
package struct StoreID: Sendable, Hashable, CustomStringConvertible {
    package var high: UInt64
    package var low: UInt64

    package init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// The identity of a new store.
    package static func random() -> StoreID {
        StoreID(high: .random(in: 0...(.max)), low: .random(in: 0...(.max)))
    }

    /// Parses 32 hexadecimal digits, as ``description`` has them; nil for another text.
    package init?(_ text: String) {
        guard text.utf8.count == 32, text.utf8.allSatisfy({ Character(UnicodeScalar($0)).isHexDigit }),
            let high = UInt64(text.prefix(16), radix: 16), let low = UInt64(text.suffix(16), radix: 16)
        else { return nil }
        self.init(high: high, low: low)
    }

    /// 32 hexadecimal digits.
    package var description: String { Self.digits(high) + Self.digits(low) }

    private static func digits(_ value: UInt64) -> String {
        let text = String(value, radix: 16)
        return String(repeating: "0", count: 16 - text.count) + text
    }
}

/// A store's identity and a revision of it, which a node has seen.
package struct OwnershipMark: Sendable, Hashable {
    package var store: StoreID
    package var revision: UInt64

    package init(store: StoreID, revision: UInt64) {
        self.store = store
        self.revision = revision
    }
}

/// One revision of the ownership value, as the bytes of one file; big endian:
///
/// | bytes | |
/// |---|---|
/// | 8 | `apus-own` |
/// | 2 | the format's version, 1 |
/// | 2 | byte count of the cluster's name |
/// | 4 | byte count of the value |
/// | 8 | revision |
/// | 16 | identity of the store |
/// | … | the cluster's name, the value |
/// | 8 | checksum of all bytes before it |
package struct RevisionFile: Sendable, Equatable {
    package static let magic = Array("apus-own".utf8)
    package static let formatVersion: UInt16 = 1
    static let headerByteCount = 40
    static let checksumByteCount = 8
    /// The largest file, in bytes.
    package static let byteCountMax =
        headerByteCount + ClusterID.byteCountMax + OwnershipLimits.valueByteCountMax + checksumByteCount

    package var cluster: ClusterID
    package var store: StoreID
    package var revision: UInt64
    package var value: [UInt8]

    package init(cluster: ClusterID, store: StoreID, revision: UInt64, value: [UInt8]) {
        self.cluster = cluster
        self.store = store
        self.revision = revision
        self.value = value
    }

    package var mark: OwnershipMark { OwnershipMark(store: store, revision: revision) }

    package func encoded() -> [UInt8] {
        let name = Array(cluster.rawValue.utf8)
        var bytes: [UInt8] = []
        bytes.reserveCapacity(Self.headerByteCount + name.count + value.count + Self.checksumByteCount)
        bytes += Self.magic
        bytes.append(UInt64(Self.formatVersion), byteCount: 2)
        bytes.append(UInt64(name.count), byteCount: 2)
        bytes.append(UInt64(value.count), byteCount: 4)
        bytes.append(revision, byteCount: 8)
        bytes.append(store.high, byteCount: 8)
        bytes.append(store.low, byteCount: 8)
        bytes += name
        bytes += value
        bytes.append(StableHash.hash(bytes), byteCount: 8)
        return bytes
    }

    /// Decodes what ``encoded()`` returned; nil if a bit differs, or the length is wrong.
    package init?(decoding bytes: [UInt8]) {
        guard bytes.count >= Self.headerByteCount + Self.checksumByteCount, bytes.count <= Self.byteCountMax,
            Array(bytes[0..<8]) == Self.magic, bytes.integer(at: 8, byteCount: 2) == UInt64(Self.formatVersion)
        else { return nil }
        let nameCount = Int(bytes.integer(at: 10, byteCount: 2))
        let valueCount = Int(bytes.integer(at: 12, byteCount: 4))
        let end = bytes.count - Self.checksumByteCount
        guard Self.headerByteCount + nameCount + valueCount == end,
            bytes.integer(at: end, byteCount: 8) == StableHash.hash(bytes[..<end]),
            let name = ClusterID(
                rawValue: String(
                    decoding: bytes[Self.headerByteCount..<(Self.headerByteCount + nameCount)], as: UTF8.self))
        else { return nil }
        cluster = name
        revision = bytes.integer(at: 16, byteCount: 8)
        store = StoreID(high: bytes.integer(at: 24, byteCount: 8), low: bytes.integer(at: 32, byteCount: 8))
        value = Array(bytes[(Self.headerByteCount + nameCount)..<end])
    }
}

extension [UInt8] {
    fileprivate mutating func append(_ value: UInt64, byteCount: Int) {
        for index in (0..<byteCount).reversed() { append(UInt8(truncatingIfNeeded: value >> UInt64(index * 8))) }
    }

    fileprivate func integer(at offset: Int, byteCount: Int) -> UInt64 {
        var value: UInt64 = 0
        for index in offset..<(offset + byteCount) { value = value << 8 | UInt64(self[index]) }
        return value
    }
}

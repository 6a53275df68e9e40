package import ApusCore
import Crypto

/// Names a blob by its content: the SHA-256 of its bytes.
package struct BlobID: Sendable, Hashable, Comparable, CustomStringConvertible {
    private static let byteCount = 32

    package let bytes: [UInt8]

    package init(of content: [UInt8]) { bytes = Array(SHA256.hash(data: content)) }

    /// Nil if the text is not 64 hexadecimal digits in lower case.
    package init?(_ text: String) {
        let digits = text.utf8.compactMap { digit -> UInt8? in
            switch digit {
            case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
            case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
            default: nil
            }
        }
        guard digits.count == 2 * Self.byteCount, text.utf8.count == digits.count else { return nil }
        bytes = stride(from: 0, to: digits.count, by: 2).map { digits[$0] << 4 | digits[$0 + 1] }
    }

    /// 64 hexadecimal digits.
    package var description: String {
        bytes.map { String($0 >> 4, radix: 16) + String($0 & 15, radix: 16) }.joined()
    }

    package static func < (left: Self, right: Self) -> Bool { left.bytes.lexicographicallyPrecedes(right.bytes) }
}

/// The bounds of a blob store (D13).
package struct BlobLimits: Sendable, Equatable {
    /// The longest blob, in bytes. A longer one is refused with 10002.
    package var byteCountMax = 8 << 20
    /// All blobs together, in bytes. A blob beyond it is refused with 10007.
    package var totalByteCountMax = 4 << 30
    /// Calls that wait or run at once. One more is refused with 10007.
    package var waitingCountMax = 256

    package init() {}
}

/// Where larger pieces of bytes stand: pictures, recordings, exports (D9).
///
/// A blob is named by its content, so it never changes, and putting it once more changes nothing. Records hold the
/// names.
///
/// Errors: 10002 and 10007 if a bound of ``BlobLimits`` is exceeded, 10020 if a blob is not what its name says,
/// 10021 if the storage cannot be used.
///
/// Isolation: may be called from any task.
package protocol BlobStore: Sendable {
    /// Keeps the bytes and answers their name. The blob is durable when this returns; where it throws 10021 the outcome
    /// is unknown, and it may be put again.
    func put(_ content: [UInt8]) async throws(ApusError) -> BlobID

    /// The blob's bytes, which are what was put; nil if there is none.
    func get(_ id: BlobID) async throws(ApusError) -> [UInt8]?

    /// Removes the blob; one that is not there is no error.
    func remove(_ id: BlobID) async throws(ApusError)

    /// Blobs in the order of their names, after `last`.
    ///
    /// - Parameter limit: The most of them, 1 to 1,000; cut to that.
    func list(after last: BlobID?, limit: Int) async throws(ApusError) -> [BlobID]
}

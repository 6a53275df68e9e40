package import ApusCore
import ApusCrypto

/// The identifier of a blob: the SHA-256 of its bytes.
package struct BlobID: Sendable, Hashable, Comparable, CustomStringConvertible {
    private static let byteCount = 32

    package let bytes: [UInt8]

    package init(of content: [UInt8]) { bytes = SHA256.hash(data: content) }

    /// Nil if the text is not 64 hexadecimal digits in lower case.
    package init?(_ text: String) {
        guard let bytes = Hexadecimal.bytes(text), bytes.count == Self.byteCount, text == text.lowercased() else {
            return nil
        }
        self.bytes = bytes
    }

    /// 64 hexadecimal digits.
    package var description: String { Hexadecimal.text(bytes) }

    package static func < (left: Self, right: Self) -> Bool { left.bytes.lexicographicallyPrecedes(right.bytes) }
}

/// The limits of a blob store (D13).
package struct BlobLimits: Sendable, Equatable {
    /// The longest blob, in bytes. A longer one is refused with 10002.
    package var byteCountMax = 8 << 20
    /// The total size of all blobs, in bytes. A blob beyond it is refused with 10007.
    package var totalByteCountMax = 4 << 30
    /// Calls that wait or run. A further one is refused with 10007.
    package var waitingCountMax = 256

    package init() {}
}

/// Storage for larger pieces of data: pictures, recordings, exports (D9).
///
/// A blob is identified by its content. It therefore never changes, and storing it again has no effect. Records refer
/// to blobs by their identifiers.
///
/// Errors: 10002 and 10007 if a limit of ``BlobLimits`` is exceeded, 10020 if a blob does not match its identifier,
/// 10021 if the storage cannot be used.
///
/// Isolation: may be called from any task.
package protocol BlobStore: Sendable {
    /// Stores the bytes and returns their identifier. The blob is durable when this returns. If it throws 10021 the
    /// outcome is unknown, and the call may be repeated.
    func put(_ content: [UInt8]) async throws(ApusError) -> BlobID

    /// The blob's bytes, verified against the identifier; nil if there is none.
    func get(_ id: BlobID) async throws(ApusError) -> [UInt8]?

    /// Removes the blob. A missing blob is not an error.
    func remove(_ id: BlobID) async throws(ApusError)

    /// Identifiers in order, after `last`.
    ///
    /// - Parameter limit: The most identifiers, 1 to 1,000. Other values are clamped.
    func list(after last: BlobID?, limit: Int) async throws(ApusError) -> [BlobID]
}

package import ApusCore
package import ApusCrypto
import Foundation
import NIOCore

/// How the files of a log are sealed: each file has a key of its own, which is in the file, wrapped.
///
/// Isolation: any thread.
package protocol LogSealing: Sendable {
    /// A key for a new file; nil if new files are not sealed.
    ///
    /// - Throws: 10018 if the system cannot make one.
    func makeKey() throws(ApusError) -> LogKey?
    /// The key of an existing file; nil if it was wrapped by an unknown key.
    func unwrap(_ wrapped: [UInt8]) -> SymmetricKey?
    /// True if a file may continue with this wrapped key, which is empty for a file that is not sealed.
    func isCurrent(_ wrapped: [UInt8]) -> Bool
    /// Wraps the key of an existing file by the current key; nil if files are not sealed.
    ///
    /// - Throws: 10018 if that fails.
    func wrap(_ key: SymmetricKey) throws(ApusError) -> [UInt8]?
}

/// The key of one file.
package struct LogKey: Sendable {
    /// The longest wrapped key, in bytes.
    package static let wrappedByteCountMax = 512

    package var key: SymmetricKey
    package var wrapped: [UInt8]

    /// - Parameter wrapped: not empty, at most ``wrappedByteCountMax`` bytes.
    package init(key: SymmetricKey, wrapped: [UInt8]) { (self.key, self.wrapped) = (key, wrapped) }
}

/// Files are not sealed. Files that were sealed before are kept, and cannot be read.
package struct UnsealedLog: LogSealing {
    package init() {}
    package func makeKey() -> LogKey? { nil }
    package func unwrap(_ wrapped: [UInt8]) -> SymmetricKey? { nil }
    package func isCurrent(_ wrapped: [UInt8]) -> Bool { wrapped.isEmpty }
    package func wrap(_ key: SymmetricKey) -> [UInt8]? { nil }
}

/// Files are sealed with AES-256-GCM. Their keys are random, and wrapped by a key that is derived from the cluster's
/// key.
///
/// While the cluster's key is changed, both keys are accepted (docs/decisions/32). What the other one has wrapped is
/// wrapped again when the log is opened and at ``RecordingLog/use(_:)``, so that the old key can be removed.
package struct ClusterLogSealing: LogSealing {
    private struct Wrapping {
        /// The first bytes of a wrapped key: which key has wrapped it.
        let id: [UInt8]
        let key: SymmetricKey

        init(_ clusterKey: [UInt8]) {
            key = HKDF.deriveKey(
                inputKeyMaterial: clusterKey, info: Data("apus recording log".utf8), outputByteCount: 32)
            id = HKDF.deriveKey(
                inputKeyMaterial: clusterKey, info: Data("apus recording log key id".utf8), outputByteCount: 8
            ).withUnsafeBytes { Array($0) }
        }

        func wrap(_ key: SymmetricKey) throws(ApusError) -> [UInt8] {
            do throws(CryptoError) { return id + (try AES.GCM.seal(key, using: self.key, context: id)) } catch {
                throw ApusError(.internalFailure, "the key of a log file cannot be wrapped: \(error)")
            }
        }

        func unwrap(_ wrapped: [UInt8]) -> SymmetricKey? {
            guard wrapped.starts(with: id),
                let bytes = try? AES.GCM.open(wrapped[id.count...], using: key, context: id),
                bytes.count == AES.GCM.keyByteCount
            else { return nil }
            return SymmetricKey(data: bytes)
        }
    }

    private let current: Wrapping
    private let other: Wrapping?

    package init(keys: ClusterKeys) {
        current = Wrapping(keys.current)
        other = keys.other.map { Wrapping($0) }
    }

    package func makeKey() throws(ApusError) -> LogKey? {
        let key = SymmetricKey.random(byteCount: AES.GCM.keyByteCount)
        return LogKey(key: key, wrapped: try current.wrap(key))
    }

    package func unwrap(_ wrapped: [UInt8]) -> SymmetricKey? { current.unwrap(wrapped) ?? other?.unwrap(wrapped) }

    package func isCurrent(_ wrapped: [UInt8]) -> Bool { wrapped.starts(with: current.id) }

    package func wrap(_ key: SymmetricKey) throws(ApusError) -> [UInt8]? { try current.wrap(key) }
}

/// Seals and opens the parts of one file.
struct LogCipher: Sendable {
    /// Nil: they are not sealed.
    let key: SymmetricKey?

    /// The bytes that sealing adds.
    var overhead: Int { key == nil ? 0 : AES.GCM.nonceByteCount + AES.GCM.tagByteCount }

    /// - Parameter place: where the part is, so that it cannot be moved.
    /// - Throws: 10018.
    func seal(_ part: ByteBuffer, at place: LogPlace) throws(ApusError) -> ByteBuffer {
        guard let key else { return part }
        let result: Result<[UInt8], CryptoError> = part.withUnsafeReadableBytes { bytes in
            Result { () throws(CryptoError) in try AES.GCM.seal(bytes, using: key, context: place.bytes) }
        }
        do throws(CryptoError) { return ByteBuffer(bytes: try result.get()) } catch {
            throw ApusError(.internalFailure, "a part of the log cannot be sealed: \(error)")
        }
    }

    /// Nil if the part was changed or moved, or has another key.
    func open(_ part: [UInt8], at place: LogPlace) -> ByteBuffer? {
        guard let key else { return ByteBuffer(bytes: part) }
        return (try? AES.GCM.open(part, using: key, context: place.bytes)).map { ByteBuffer(bytes: $0) }
    }
}

/// Where a part of a file belongs.
struct LogPlace: Sendable, Hashable {
    /// The part of the group's table.
    static let table = UInt32.max

    /// The random number of the file's use.
    var identity: UInt64
    /// The group's number.
    var group: UInt64
    /// The section's place in the group, or ``table``.
    var part: UInt32

    var bytes: [UInt8] {
        var buffer = ByteBuffer()
        buffer.writeMultipleIntegers(identity, group, part)
        return Array(buffer.readableBytesView)
    }
}

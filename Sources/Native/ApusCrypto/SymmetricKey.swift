import CApusCrypto
package import Foundation

/// A secret key. Its bytes are overwritten with zeros when the last copy is released.
package struct SymmetricKey: ContiguousBytes, Sendable {
    private let storage: Storage

    /// Sendable: the bytes do not change between `init` and `deinit`.
    private final class Storage: @unchecked Sendable {  // SAFETY: as its comment says.
        let bytes: UnsafeMutableRawBufferPointer

        init(byteCount: Int, _ fill: (UnsafeMutableRawBufferPointer) -> Void) {
            bytes = .allocate(byteCount: byteCount, alignment: 1)
            fill(bytes)
        }

        deinit {
            apus_cleanse(bytes.baseAddress, bytes.count)
            bytes.deallocate()
        }
    }

    /// Copies the bytes of a key.
    package init(data: some ContiguousBytes) {
        storage = data.withUnsafeBytes { data in Storage(byteCount: data.count) { $0.copyMemory(from: data) } }
    }

    /// - Parameter fill: writes all of the bytes.
    init(byteCount: Int, _ fill: (UnsafeMutableRawBufferPointer) -> Void) {
        storage = Storage(byteCount: byteCount, fill)
    }

    /// A new random key.
    package static func random(byteCount: Int = 32) -> SymmetricKey {
        SymmetricKey(byteCount: byteCount) { bytes in
            precondition(apus_random(bytes.baseAddress, bytes.count) == 1, "libcrypto has no random numbers")
        }
    }

    package var byteCount: Int { storage.bytes.count }

    // SAFETY: the bytes are valid within the closure, in which `storage` is held.
    package func withUnsafeBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
        try withExtendedLifetime(storage) { try body(UnsafeRawBufferPointer(storage.bytes)) }
    }
}

/// HKDF with SHA-256 (RFC 5869).
package enum HKDF {
    /// Derives a key.
    ///
    /// - Parameters:
    ///   - salt: may be empty.
    ///   - outputByteCount: at most 255 * 32.
    package static func deriveKey(
        inputKeyMaterial: some ContiguousBytes, salt: some ContiguousBytes = [UInt8](), info: some ContiguousBytes,
        outputByteCount: Int
    ) -> SymmetricKey {
        precondition((1...255 * 32).contains(outputByteCount), "HKDF of \(outputByteCount) bytes")
        return inputKeyMaterial.withUnsafeBytes { input in
            salt.withUnsafeBytes { salt in
                info.withUnsafeBytes { info in
                    SymmetricKey(byteCount: outputByteCount) { key in
                        let isDerived = apus_hkdf(
                            input.baseAddress, input.count, salt.baseAddress, salt.count, info.baseAddress, info.count,
                            key.baseAddress, key.count)
                        precondition(isDerived == 1, "libcrypto cannot derive a key")
                    }
                }
            }
        }
    }
}

import CApusCrypto
package import Foundation

/// AES-256 in Galois/Counter Mode (NIST SP 800-38D).
package enum AES {
    /// What is sealed has three parts: the nonce, the ciphertext, and the tag.
    package enum GCM {
        package static let keyByteCount = Int(APUS_GCM_KEY_SIZE)
        package static let nonceByteCount = Int(APUS_GCM_NONCE_SIZE)
        package static let tagByteCount = Int(APUS_GCM_TAG_SIZE)

        /// Seals with a random nonce.
        ///
        /// - Parameter context: what the tag is also of. It is not part of the result, and must be the same to open it.
        /// - Throws: ``CryptoError/size(_:)`` if the key does not have ``keyByteCount`` bytes.
        package static func seal(
            _ plain: some ContiguousBytes, using key: SymmetricKey, context: some ContiguousBytes = [UInt8]()
        ) throws(CryptoError) -> [UInt8] {
            try seal(plain, using: key, context) { apus_random($0, nonceByteCount) == 1 }
        }

        /// Seals with a nonce that is never used again with this key.
        ///
        /// - Throws: ``CryptoError/size(_:)`` if the key does not have ``keyByteCount`` bytes, or the nonce
        ///   ``nonceByteCount``.
        package static func seal(
            _ plain: some ContiguousBytes, using key: SymmetricKey, nonce: some ContiguousBytes,
            context: some ContiguousBytes = [UInt8]()
        ) throws(CryptoError) -> [UInt8] {
            guard nonce.withUnsafeBytes({ $0.count }) == nonceByteCount else {
                throw .size("the nonce does not have \(nonceByteCount) bytes")
            }
            return try seal(plain, using: key, context) { target in
                // SAFETY: the target has room for a nonce.
                nonce.withUnsafeBytes { nonce in
                    UnsafeMutableRawBufferPointer(start: target, count: nonceByteCount).copyMemory(from: nonce)
                }
                return true
            }
        }

        private static func seal(
            _ plain: some ContiguousBytes, using key: SymmetricKey, _ context: some ContiguousBytes,
            writeNonce: (UnsafeMutablePointer<UInt8>) -> Bool
        ) throws(CryptoError) -> [UInt8] {
            try check(key)
            var isSealed = false
            let sealed = inputs(plain, key, context) { plain, key, context in
                [UInt8](unsafeUninitializedCapacity: nonceByteCount + plain.count + tagByteCount) { sealed, count in
                    // SAFETY: the array has room for the three parts.
                    guard let nonce = sealed.baseAddress, writeNonce(nonce) else { return }
                    let ciphertext = nonce + nonceByteCount
                    isSealed =
                        apus_gcm_seal(
                            key.baseAddress, nonce, context.baseAddress, context.count, plain.baseAddress,
                            plain.count, ciphertext, ciphertext + plain.count) == 1
                    if isSealed { count = nonceByteCount + plain.count + tagByteCount }
                }
            }
            guard isSealed else { throw .library("libcrypto cannot seal") }
            return sealed
        }

        /// Opens what was sealed.
        ///
        /// - Throws: ``CryptoError/notAuthentic`` if it was sealed with another key or context or was changed,
        ///   or ``CryptoError/size(_:)`` if it is too short, or the key does not have ``keyByteCount`` bytes.
        package static func open(
            _ sealed: some ContiguousBytes, using key: SymmetricKey, context: some ContiguousBytes = [UInt8]()
        ) throws(CryptoError) -> [UInt8] {
            try check(key)
            let count = sealed.withUnsafeBytes { $0.count } - nonceByteCount - tagByteCount
            guard count >= 0 else { throw .size("it is too short to be sealed") }
            var isOpen = false
            let plain = inputs(sealed, key, context) { sealed, key, context in
                [UInt8](unsafeUninitializedCapacity: count) { plain, plainCount in
                    // SAFETY: what is sealed has the three parts, and the array room for the second.
                    guard let nonce = sealed.baseAddress else { return }
                    let ciphertext = nonce + nonceByteCount
                    isOpen =
                        apus_gcm_open(
                            key.baseAddress, nonce, context.baseAddress, context.count, ciphertext, count,
                            ciphertext + count, plain.baseAddress) == 1
                    if isOpen { plainCount = count }
                }
            }
            guard isOpen else { throw .notAuthentic }
            return plain
        }

        // SAFETY: the bytes are valid within the closure.
        private static func inputs<Result>(
            _ bytes: some ContiguousBytes, _ key: SymmetricKey, _ context: some ContiguousBytes,
            _ body: (UnsafeRawBufferPointer, UnsafeRawBufferPointer, UnsafeRawBufferPointer) -> Result
        ) -> Result {
            bytes.withUnsafeBytes { bytes in
                key.withUnsafeBytes { key in context.withUnsafeBytes { body(bytes, key, $0) } }
            }
        }

        private static func check(_ key: SymmetricKey) throws(CryptoError) {
            guard key.byteCount == keyByteCount else { throw .size("the key does not have \(keyByteCount) bytes") }
        }
    }
}

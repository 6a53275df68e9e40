import CApusCrypto
package import Foundation

/// Message authentication codes (RFC 2104) with SHA-256, or with SHA-1 where STUN demands it.
package enum HMAC<Hash: HashFunction & ~Copyable> {
    /// The code of a message, whose second part follows the first.
    package static func authenticationCode(
        for message: some ContiguousBytes, then rest: some ContiguousBytes = [UInt8](),
        using key: some ContiguousBytes
    ) -> [UInt8] {
        inputs(key, message, rest) { key, message, rest in
            // SAFETY: the array has room for every code.
            [UInt8](unsafeUninitializedCapacity: Int(APUS_DIGEST_SIZE_MAX)) { code, count in
                count = apus_hmac(
                    Hash.algorithm.native, key.baseAddress, key.count, message.baseAddress, message.count,
                    rest.baseAddress, rest.count, code.baseAddress)
                precondition(count == Hash.algorithm.byteCount, "libcrypto has no memory for a code")
            }
        }
    }

    /// True if the code is that of the message. The time does not depend on the bytes of the code.
    ///
    /// - Parameter byteCount: the size of the code if it is truncated (RFC 2104 §5). A code of another size is invalid.
    package static func isValidAuthenticationCode(
        _ code: some ContiguousBytes, authenticating message: some ContiguousBytes,
        then rest: some ContiguousBytes = [UInt8](), using key: some ContiguousBytes, byteCount: Int? = nil
    ) -> Bool {
        code.withUnsafeBytes { code in
            guard code.count == byteCount ?? Hash.algorithm.byteCount else { return false }
            return inputs(key, message, rest) { key, message, rest in
                apus_hmac_is_valid(
                    Hash.algorithm.native, key.baseAddress, key.count, message.baseAddress, message.count,
                    rest.baseAddress, rest.count, code.baseAddress, code.count) == 1
            }
        }
    }

    // SAFETY: the bytes are valid within the closure.
    private static func inputs<Result>(
        _ key: some ContiguousBytes, _ message: some ContiguousBytes, _ rest: some ContiguousBytes,
        _ body: (UnsafeRawBufferPointer, UnsafeRawBufferPointer, UnsafeRawBufferPointer) -> Result
    ) -> Result {
        key.withUnsafeBytes { key in
            message.withUnsafeBytes { message in rest.withUnsafeBytes { body(key, message, $0) } }
        }
    }
}

/// Comparison of secrets.
package enum ConstantTime {
    /// True if both have the same bytes. The time depends on their counts alone.
    package static func isEqual(_ left: some ContiguousBytes, _ right: some ContiguousBytes) -> Bool {
        left.withUnsafeBytes { left in
            right.withUnsafeBytes { right in
                left.count == right.count
                    && apus_is_equal(left.baseAddress, right.baseAddress, left.count) == 1
            }
        }
    }
}

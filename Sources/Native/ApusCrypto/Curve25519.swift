import CApusCrypto
package import Foundation

/// The curve of RFC 7748, and its twin.
package enum Curve25519 {
    /// Ed25519 (RFC 8032).
    package enum Signing {
        package struct PrivateKey: Sendable {
            private let handle: KeyHandle

            /// A new key.
            package init() { handle = KeyHandle(new: APUS_ED25519) }

            /// - Throws: ``CryptoError/size(_:)`` if there are not 32 bytes.
            package init(rawRepresentation: some ContiguousBytes) throws(CryptoError) {
                handle = try KeyHandle.raw(rawRepresentation, APUS_ED25519, isPrivate: true)
            }

            package var rawRepresentation: Data { Data(handle.bytes(isPrivate: true)) }
            package var publicKey: PublicKey { PublicKey(handle: handle) }

            /// 64 bytes.
            ///
            /// - Throws: ``CryptoError/library(_:)`` without memory.
            package func signature(for data: some ContiguousBytes) throws(CryptoError) -> Data {
                Data(
                    try ApusCrypto.signature { signature in
                        data.withUnsafeBytes {
                            apus_key_sign_ed25519(handle.pointer, $0.baseAddress, $0.count, signature)
                        }
                    })
            }
        }

        package struct PublicKey: Sendable {
            private let handle: KeyHandle

            init(handle: KeyHandle) { self.handle = handle }

            /// - Throws: ``CryptoError/size(_:)`` if there are not 32 bytes.
            package init(rawRepresentation: some ContiguousBytes) throws(CryptoError) {
                handle = try KeyHandle.raw(rawRepresentation, APUS_ED25519, isPrivate: false)
            }

            package var rawRepresentation: Data { Data(handle.bytes(isPrivate: false)) }

            package func isValidSignature(_ signature: some ContiguousBytes, for data: some ContiguousBytes) -> Bool {
                signature.withUnsafeBytes { signature in
                    guard signature.count == Int(APUS_SIGNATURE_SIZE) else { return false }
                    return data.withUnsafeBytes {
                        apus_key_verify_ed25519(handle.pointer, $0.baseAddress, $0.count, signature.baseAddress) == 1
                    }
                }
            }
        }
    }

    /// X25519 (RFC 7748).
    package enum KeyAgreement {
        package struct PrivateKey: Sendable {
            private let handle: KeyHandle

            /// A new key.
            package init() { handle = KeyHandle(new: APUS_X25519) }

            /// - Throws: ``CryptoError/size(_:)`` if there are not 32 bytes.
            package init(rawRepresentation: some ContiguousBytes) throws(CryptoError) {
                handle = try KeyHandle.raw(rawRepresentation, APUS_X25519, isPrivate: true)
            }

            package var rawRepresentation: Data { Data(handle.bytes(isPrivate: true)) }
            package var publicKey: PublicKey { PublicKey(handle: handle) }

            /// The secret of both keys, 32 bytes. A key is derived from it with ``HKDF``.
            ///
            /// - Throws: ``CryptoError/malformed(_:)`` if the public key is a point of small order, with which anybody
            ///   could compute the secret (RFC 7748 §6.1).
            package func sharedSecret(with publicKey: PublicKey) throws(CryptoError) -> SymmetricKey {
                var isAgreed = false
                let secret = SymmetricKey(byteCount: Int(APUS_RAW_KEY_SIZE)) { secret in
                    secret.initializeMemory(as: UInt8.self, repeating: 0)
                    // SAFETY: the memory has the size of a secret.
                    isAgreed = apus_key_agree(handle.pointer, publicKey.handle.pointer, secret.baseAddress) == 1
                }
                guard isAgreed else { throw .malformed("the public key is a point of small order") }
                return secret
            }
        }

        package struct PublicKey: Sendable {
            fileprivate let handle: KeyHandle

            fileprivate init(handle: KeyHandle) { self.handle = handle }

            /// - Throws: ``CryptoError/size(_:)`` if there are not 32 bytes.
            package init(rawRepresentation: some ContiguousBytes) throws(CryptoError) {
                handle = try KeyHandle.raw(rawRepresentation, APUS_X25519, isPrivate: false)
            }

            package var rawRepresentation: Data { Data(handle.bytes(isPrivate: false)) }
        }
    }
}

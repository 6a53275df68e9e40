import CApusCrypto
package import Foundation

/// The curve P-256 (FIPS 186-4).
package enum P256 {
    /// ECDSA with SHA-256.
    package enum Signing {
        package struct PrivateKey: Sendable {
            let handle: KeyHandle

            /// A new key.
            package init() { handle = KeyHandle(new: APUS_P256) }

            /// Reads a PEM text with this key and nothing else: `PRIVATE KEY` (PKCS#8, RFC 5208) or `EC PRIVATE KEY`
            /// (SEC 1, RFC 5915).
            ///
            /// - Throws: ``CryptoError/malformed(_:)`` for anything else, and for keys of other curves.
            package init(pemRepresentation: String) throws(CryptoError) {
                handle = try KeyHandle.read(pem: pemRepresentation, isPrivate: true)
                guard handle.isP256 else { throw .malformed("it is not a key of P-256") }
            }

            /// PKCS#8, without a line feed at its end.
            package var pemRepresentation: String { handle.pem(isPrivate: true) }

            package var publicKey: PublicKey { PublicKey(handle: handle) }

            /// - Throws: ``CryptoError/library(_:)`` without memory.
            package func signature(for data: some ContiguousBytes) throws(CryptoError) -> ECDSASignature {
                ECDSASignature(
                    bytes: try ApusCrypto.signature { signature in
                        data.withUnsafeBytes {
                            apus_key_sign_p256(handle.pointer, $0.baseAddress, $0.count, signature)
                        }
                    })
            }
        }

        package struct PublicKey: Sendable {
            let handle: KeyHandle

            init(handle: KeyHandle) { self.handle = handle }

            /// Reads a PEM text with this key and nothing else: `PUBLIC KEY` (SubjectPublicKeyInfo, RFC 5280 §4.1).
            ///
            /// - Throws: ``CryptoError/malformed(_:)`` for anything else, and for keys of other curves.
            package init(pemRepresentation: String) throws(CryptoError) {
                handle = try KeyHandle.read(pem: pemRepresentation, isPrivate: false)
                guard handle.isP256 else { throw .malformed("it is not a key of P-256") }
            }

            /// SubjectPublicKeyInfo, without a line feed at its end.
            package var pemRepresentation: String { handle.pem(isPrivate: false) }

            package func isValidSignature(_ signature: ECDSASignature, for data: some ContiguousBytes) -> Bool {
                data.withUnsafeBytes {
                    apus_key_verify_p256(handle.pointer, $0.baseAddress, $0.count, signature.bytes) == 1
                }
            }
        }

        /// A signature: the numbers r and s, each big-endian in 32 bytes (RFC 7518 §3.4).
        package struct ECDSASignature: Sendable {
            fileprivate let bytes: [UInt8]

            fileprivate init(bytes: [UInt8]) { self.bytes = bytes }

            /// - Throws: ``CryptoError/size(_:)`` if there are not 64 bytes.
            package init(rawRepresentation: some ContiguousBytes) throws(CryptoError) {
                bytes = rawRepresentation.withUnsafeBytes { [UInt8]($0) }
                guard bytes.count == Int(APUS_SIGNATURE_SIZE) else {
                    throw .size("a signature has \(APUS_SIGNATURE_SIZE) bytes, not \(bytes.count)")
                }
            }

            package var rawRepresentation: Data { Data(bytes) }
        }
    }
}

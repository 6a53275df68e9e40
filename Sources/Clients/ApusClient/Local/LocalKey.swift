package import ApusCore
package import ApusCrypto
package import Foundation
import NIOCore

/// The key of the connections between an app and a device in its own network (IV-D14, docs/local-access.md).
///
/// Both sides agree on it with X25519 (RFC 7748), and send each other public keys alone, through the cluster. TLS 1.2
/// with ECDHE and the key as a pre-shared key (RFC 5489, RFC 7905) authenticates both sides without certificates, and
/// earlier connections stay secret if the key becomes known.
package enum LocalKey {
    /// The longest frame, in bytes: a path and a value, with the quotes that JSON in a message needs.
    package static let frameByteCountMax = 72 << 10

    /// - Parameters:
    ///   - identity: binds the key to what the device has granted.
    /// - Returns: 32 bytes.
    /// - Throws: 21031 if the other side's key is none.
    package static func key(
        _ own: Curve25519.KeyAgreement.PrivateKey, with other: some ContiguousBytes, identity: String,
        of device: DeviceID
    ) throws(ApusError) -> [UInt8] {
        do {
            // A point of small order is refused.
            let secret = try own.sharedSecret(with: .init(rawRepresentation: other))
            let key = HKDF.deriveKey(
                inputKeyMaterial: secret, salt: Array(identity.utf8), info: Array("apus local access 1 \(device)".utf8),
                outputByteCount: 32)
            return key.withUnsafeBytes { Array($0) }
        } catch {
            throw ApusError(.badParameter, "the public key is not one of X25519")
        }
    }
}

import ApusClient
package import ApusCore
import ApusCrypto
package import Foundation

/// What a device grants to apps in its own network (IV-D14, docs/local-access.md).
///
/// A grant is in its identity, which the app sends when it connects, so the device remembers nothing but its secret.
/// An identity is not secret. Its key is known to the app alone, which has sent its public key for it.
///
/// Pure value: time is passed in.
package struct LocalGrants: Sendable {
    /// The length of the secret, in bytes.
    package static let secretByteCount = 32
    /// The form of an identity: a version, the expiry, whose it is, the app's public key, and a code over these.
    private enum Layout {
        static let version: UInt8 = 1
        static let expires = 1..<9
        static let owner = 9..<25
        static let publicKey = 25..<57
        static let code = 57..<89
    }

    package let device: DeviceID
    private let agreement: Curve25519.KeyAgreement.PrivateKey
    private let codeKey: SymmetricKey

    /// - Throws: 10022 if the secret does not have ``secretByteCount`` bytes.
    package init(secret: [UInt8], of device: DeviceID) throws(ApusError) {
        guard secret.count == Self.secretByteCount else {
            throw ApusError(.configurationInvalid, "the secret of local access has \(Self.secretByteCount) bytes")
        }
        func derived(_ info: String) -> SymmetricKey {
            HKDF.deriveKey(
                inputKeyMaterial: secret, info: Data("apus local \(info) \(device)".utf8),
                outputByteCount: 32)
        }
        self.device = device
        codeKey = derived("code")
        do {
            agreement = try .init(rawRepresentation: derived("agreement"))
        } catch {
            throw ApusError(.internalFailure, "\(error)")
        }
    }

    /// Grants access to the holder of a public key.
    ///
    /// - Parameters:
    ///   - owner: who it is; it has to be named with each connection.
    ///   - expires: Unix seconds.
    /// - Returns: the identity, and the device's public key.
    /// - Throws: 21031 if the key is none.
    package func grant(
        to publicKey: Data, owner: String, expires: Int64
    ) throws(ApusError) -> (identity: String, key: Data) {
        guard publicKey.count == Layout.publicKey.count else {
            throw ApusError(.badParameter, "the public key is not one of X25519")
        }
        var bytes = [Layout.version]
        withUnsafeBytes(of: expires.bigEndian) { bytes += $0 }
        bytes += Self.mark(owner) + publicKey
        bytes += code(bytes)
        let identity = Data(bytes).base64EncodedString()
        // A key that cannot be used is refused here, and not at the first connection.
        _ = try LocalKey.key(agreement, with: publicKey, identity: identity, of: device)
        return (identity, agreement.publicKey.rawRepresentation)
    }

    /// The key of an identity; nil if it was not granted by this device, has expired, or expires later than anything
    /// that is granted now.
    ///
    /// - Parameter lifetime: the longest of what is granted, in seconds. It also bounds what a clock that is set back
    ///   makes valid again.
    package func key(of identity: String, at now: Int64, lifetime: Int64) -> [UInt8]? {
        guard let bytes = granted(identity), now < expiry(bytes), expiry(bytes) - now <= lifetime else { return nil }
        return try? LocalKey.key(agreement, with: bytes[Layout.publicKey], identity: identity, of: device)
    }

    /// Whether the identity was granted to this owner.
    package func isGranted(_ identity: String, to owner: String) -> Bool {
        granted(identity).map { Array($0[Layout.owner]) == Self.mark(owner) } ?? false
    }

    private func granted(_ identity: String) -> [UInt8]? {
        guard let data = Data(base64Encoded: identity), data.count == Layout.code.upperBound,
            data.first == Layout.version
        else { return nil }
        let bytes = [UInt8](data)
        let isValid = HMAC<SHA256>.isValidAuthenticationCode(
            bytes[Layout.code], authenticating: bytes[..<Layout.code.lowerBound], using: codeKey)
        return isValid ? bytes : nil
    }

    private func expiry(_ bytes: [UInt8]) -> Int64 {
        bytes[Layout.expires].reduce(0) { $0 << 8 | Int64($1) }
    }

    private func code(_ bytes: [UInt8]) -> [UInt8] {
        HMAC<SHA256>.authenticationCode(for: bytes, using: codeKey)
    }

    private static func mark(_ owner: String) -> [UInt8] {
        Array(SHA256.hash(data: Array(owner.utf8)).prefix(Layout.owner.count))
    }
}

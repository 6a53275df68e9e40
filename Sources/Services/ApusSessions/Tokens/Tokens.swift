package import ApusCore
import ApusCrypto
import ApusTransport
import Foundation

/// Signs tokens with the cluster's private key (ES256, RFC 7518 §3.4). Only the operator's machine has that key.
package struct TokenSigner: Sendable {
    private static let header = Base64URL.encode(Array(#"{"alg":"ES256","typ":"JWT"}"#.utf8))

    private let key: P256.Signing.PrivateKey

    /// Throws 10022 if the PEM text is not a P-256 private key.
    package init(privateKeyPEM: String) throws(ApusError) {
        do {
            key = try P256.Signing.PrivateKey(pemRepresentation: privateKeyPEM)
        } catch {
            throw ApusError(.configurationInvalid, "the token key is not a P-256 private key in PEM form")
        }
    }

    /// Returns the signed token as a compact serialization (RFC 7515 §7.1).
    package func sign(_ claims: TokenClaims) throws(ApusError) -> String {
        do {
            let body = Self.header + "." + Base64URL.encode(Array(try JSONEncoder().encode(claims)))
            let signature = try key.signature(for: Data(body.utf8)).rawRepresentation
            return body + "." + Base64URL.encode(Array(signature))
        } catch {
            throw ApusError(.internalFailure, "the token cannot be signed: \(error)")
        }
    }
}

/// Verifies tokens with the cluster's public key (IV-A6).
package struct TokenVerifier: Sendable {
    /// The maximum length of a token, in bytes.
    package static let byteCountMax = 8192
    /// The accepted clock difference.
    package static let leewaySeconds: Int64 = 30

    /// The most public keys of a file: the current one, and another while the key is changed.
    package static let keyCountMax = 2

    private let keys: [P256.Signing.PublicKey]
    private let cluster: ClusterID

    /// Accepts tokens that were signed with any of the keys in the PEM text.
    ///
    /// Throws 10022 if the text has anything else than one or two P-256 public keys.
    package init(publicKeyPEM: String, cluster: ClusterID) throws(ApusError) {
        let blocks = ClusterPKI.pemBlocks(publicKeyPEM)
        guard blocks.count == publicKeyPEM.ranges(of: "-----BEGIN ").count else {
            throw ApusError(.configurationInvalid, "a token key is not complete")
        }
        keys = try blocks.map { block throws(ApusError) in
            do {
                return try P256.Signing.PublicKey(pemRepresentation: block)
            } catch {
                throw ApusError(.configurationInvalid, "the token key is not a P-256 public key in PEM form")
            }
        }
        guard (1...Self.keyCountMax).contains(keys.count) else {
            throw ApusError(
                .configurationInvalid, "there are \(keys.count) token keys; one is expected, or two during a change")
        }
        self.cluster = cluster
    }

    /// Verifies a token and returns its claims. Throws 12001 if it is not valid, 12002 if it has expired.
    /// Only ES256 under the cluster's key is accepted, and no header with critical extensions (RFC 7515 §4.1.11).
    package func verify(_ token: String, wallSeconds: Int64) throws(ApusError) -> TokenClaims {
        guard token.utf8.count <= Self.byteCountMax else { throw ApusError(.tokenInvalid, "the token is too long") }
        guard let claims = signedClaims(of: Array(token.utf8)) else {
            throw ApusError(.tokenInvalid, "the token is not signed by this cluster")
        }
        guard claims.iss == cluster.rawValue else {
            throw ApusError(.tokenInvalid, "the token was issued by another cluster")
        }
        guard claims.exp > wallSeconds - Self.leewaySeconds else { throw ApusError(.tokenExpired) }
        guard max(claims.nbf ?? 0, claims.iat) <= wallSeconds + Self.leewaySeconds else {
            throw ApusError(.tokenInvalid, "the token is not valid yet; are the clocks right?")
        }
        return claims
    }

    /// The claims of a compact serialization (RFC 7515 §7.1) with the cluster's signature; nil otherwise.
    private func signedClaims(of token: [UInt8]) -> TokenClaims? {
        guard let dot = token.firstIndex(of: UInt8(ascii: ".")), let last = token.lastIndex(of: UInt8(ascii: ".")),
            dot < last, let headerText = Base64URL.decode(token[..<dot]),
            let header = JSONValue(headerText[...]), header["alg"]?.string == "ES256", header["crit"] == nil,
            let signatureBytes = Base64URL.decode(token[(last + 1)...]),
            let payload = Base64URL.decode(token[(dot + 1)..<last]),
            let signature = try? P256.Signing.ECDSASignature(rawRepresentation: signatureBytes),
            keys.contains(where: { $0.isValidSignature(signature, for: token[..<last]) })
        else { return nil }
        return JSONValue(payload[...]).flatMap { TokenClaims($0) }
    }
}

extension Session {
    /// The session that a token opens. Throws 12001 if its names or its role are not valid.
    package init(claims: TokenClaims, id: String, sinceMilliseconds: Int64) throws(ApusError) {
        guard let access = AccessID(rawValue: claims.sub), let account = AccountID(rawValue: claims.acct),
            let role = Role(rawValue: claims.role)
        else { throw ApusError(.tokenInvalid, "the token's names are not valid") }
        let device = claims.dev.flatMap { DeviceID(rawValue: $0) }
        guard role != .device || device != nil else {
            throw ApusError(.tokenInvalid, "the token has role device but names no device")
        }
        guard !(device.map(ChannelOwner.isReserved) ?? false) else {
            throw ApusError(.tokenInvalid, "the id of the device is one of a call")
        }
        self.init(
            id: id, role: role, access: access, account: account, device: role == .device ? device : nil,
            allowedDevices: claims.devices?.compactMap { DeviceID(rawValue: $0) }, sinceMilliseconds: sinceMilliseconds,
            token: TokenMark(claims))
    }
}

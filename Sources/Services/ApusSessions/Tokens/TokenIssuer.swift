package import ApusCore

/// Issues tokens in the name of the cluster, for services whose clients ask for them.
///
/// Isolation: any thread.
package struct TokenIssuer: Sendable {
    private let signing: TokenSigning
    private let cluster: ClusterID

    package init(signing: TokenSigning, cluster: ClusterID) { (self.signing, self.cluster) = (signing, cluster) }

    /// True if this node has a key to sign tokens with.
    package var canSign: Bool { signing.current != nil }

    /// The token of a device (IV-A2).
    ///
    /// - Parameters:
    ///   - id: the token's id, by which it is revoked.
    ///   - now: Unix seconds.
    /// - Throws: 21025 if this node has no key.
    package func token(
        of device: DeviceID, account: AccountID, id: String, at now: Int64, lifetime: Duration
    ) throws(ApusError) -> String {
        try sign(
            TokenClaims(
                access: AccessID(unchecked: device.rawValue), account: account, role: .device, device: device,
                issuedAt: now, lifetime: lifetime, cluster: cluster, id: id))
    }

    /// A token with which a device asks for its next token, and which opens no session.
    ///
    /// - Throws: 21025 if this node has no key.
    package func text(of token: RefreshToken) throws(ApusError) -> String { try sign(token.claims(cluster)) }

    private func sign(_ claims: TokenClaims) throws(ApusError) -> String {
        guard let signer = signing.current else {
            throw ApusError(.unavailable, "this node has no key to sign tokens with (keys.token_private)")
        }
        return try signer.sign(claims)
    }
}

/// What a refresh token says (RFC 6749 §1.5). Its role is none of a session, so it cannot sign in.
///
/// Pure value.
package struct RefreshToken: Sendable, Hashable {
    private static let role = "refresh"

    package var device: DeviceID
    package var account: AccountID
    /// The id of all tokens of the grant.
    package var grant: String
    /// The number of the refresh token within its grant, from 1.
    package var generation: UInt64
    /// The time of issue and the expiry, in Unix seconds.
    package var issuedAt: Int64
    package var expires: Int64

    package init(
        device: DeviceID, account: AccountID, grant: String, generation: UInt64, issuedAt: Int64, lifetime: Duration
    ) {
        (self.device, self.account, self.grant, self.generation) = (device, account, grant, generation)
        (self.issuedAt, expires) = (issuedAt, issuedAt + lifetime.components.seconds)
    }

    /// Nil for claims of another kind of token.
    init?(_ claims: TokenClaims) {
        guard claims.role == Self.role, let generation = UInt64(claims.sub), let grant = claims.jti,
            let device = claims.dev.flatMap({ DeviceID(rawValue: $0) }), let account = AccountID(rawValue: claims.acct)
        else { return nil }
        (self.device, self.account, self.grant, self.generation) = (device, account, grant, generation)
        (issuedAt, expires) = (claims.iat, claims.exp)
    }

    func claims(_ cluster: ClusterID) -> TokenClaims {
        TokenClaims(
            sub: "\(generation)", acct: account.rawValue, role: Self.role, dev: device.rawValue, devices: nil,
            exp: expires, iat: issuedAt, nbf: nil, iss: cluster.rawValue, jti: grant, once: nil)
    }

    /// What a revocation may name.
    var mark: TokenMark { TokenMark(tag: TokenMark.tag(of: grant), issuedAt: issuedAt, expires: expires) }
}

extension SessionService {
    /// The content of a refresh token.
    ///
    /// - Throws: 12001 if it is not valid or was revoked, 12002 if it has expired.
    package func refreshToken(of text: String) throws(ApusError) -> RefreshToken {
        guard let token = RefreshToken(try verifier.verify(text, wallSeconds: wallSeconds())) else {
            throw ApusError(.tokenInvalid, "the token is not a refresh token")
        }
        guard
            !revocations.list.revokes(token.mark, account: token.account, identities: [token.device.rawValue])
        else { throw ApusError(.tokenInvalid, "the token was revoked") }
        return token
    }
}

package import ApusCore
import Foundation

/// The claims of a signed token (IV-A2, IV-A3, IV-A6).
package struct TokenClaims: Encodable, Sendable, Equatable {
    /// The bearer's access id (IV-A1).
    package var sub: String
    /// The account to which the bearer belongs.
    package var acct: String
    /// `device`, `app` or `admin`.
    package var role: String
    /// The bearer's device id, for role `device`.
    package var dev: String?
    /// The only devices that the bearer may access (IV-A3); if absent, all of the account.
    package var devices: [String]?
    /// Unix seconds.
    package var exp: Int64
    package var iat: Int64
    package var nbf: Int64?
    /// The cluster that issued the token.
    package var iss: String
    package var jti: String?
    /// One client can sign in with the token, once (IV-A3).
    package var once: Bool?

    package init(
        access: AccessID, account: AccountID, role: Session.Role, device: DeviceID? = nil, devices: [DeviceID]? = nil,
        issuedAt: Int64, lifetime: Duration, cluster: ClusterID, id: String? = nil, isForOneUse: Bool = false
    ) {
        sub = access.rawValue
        acct = account.rawValue
        self.role = role.rawValue
        dev = device?.rawValue
        self.devices = devices?.map(\.rawValue)
        iat = issuedAt
        exp = issuedAt + lifetime.components.seconds
        nbf = nil
        iss = cluster.rawValue
        jti = id
        once = isForOneUse ? true : nil
    }

    init(
        sub: String, acct: String, role: String, dev: String?, devices: [String]?, exp: Int64, iat: Int64, nbf: Int64?,
        iss: String, jti: String?, once: Bool?
    ) {
        self.sub = sub
        self.acct = acct
        self.role = role
        self.dev = dev
        self.devices = devices
        self.exp = exp
        self.iat = iat
        self.nbf = nbf
        self.iss = iss
        self.jti = jti
        self.once = once
    }
}

package import ApusCore

/// Who has asked for something that takes effect later, and with which token (IV-A3, IV-A6, IV-B10).
///
/// What is deferred, such as a command that waits or a setting that is pending, carries this. When it takes effect,
/// ``SessionService`` checks it again with the rules here, and only here: docs/authority.md lists what is deferred, and
/// what ends it.
///
/// Pure value.
package struct Authority: Sendable, Hashable {
    package var account: AccountID
    /// The access id, and the device's id if it is a device: what a revocation may name.
    package var identities: [String]
    package var token: TokenMark
    /// The token is for certain devices only. It gives temporary access, and nothing asked for with it outlasts it. The
    /// other tokens are renewed by the app: the end of one is no loss of a right.
    package var isRestricted: Bool

    package init(account: AccountID, identities: [String], token: TokenMark, isRestricted: Bool = false) {
        (self.account, self.identities, self.token) = (account, identities, token)
        self.isRestricted = isRestricted
    }

    /// Of a client that asks now.
    package init(_ session: Session) {
        self.init(
            account: session.account, identities: [session.access.rawValue, session.identity], token: session.token,
            isRestricted: session.allowedDevices != nil)
    }

    /// - Throws: 12001 if the token was revoked, 12002 if it is restricted and has expired.
    package func checkToken(_ revocations: RevocationList, wallSeconds: Int64) throws(ApusError) {
        guard !revocations.revokes(token, account: account, identities: identities) else {
            throw ApusError(.tokenInvalid, "the token was revoked")
        }
        guard !isRestricted || !token.hasEnded(at: wallSeconds) else { throw ApusError(.tokenExpired) }
    }

    /// Whether the account may still use the device. A disabled device is another matter: what is deferred for it
    /// waits.
    ///
    /// - Parameters:
    ///   - record: nil if the device is not known any more.
    ///   - control: also to change settings and to send commands.
    /// - Throws: 8003 if the account has no right to the device, 12004 if it may not control it.
    package func checkRight(to record: DeviceRecord?, control: Bool) throws(ApusError) {
        guard let right = record?.right(of: account) else { throw ApusError(.illegalRelation) }
        guard !control || right != .view else {
            throw ApusError(.notAllowed, "the account may not control the device")
        }
    }
}

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

extension SessionService {
    /// Checks the token of what a client has asked for before (docs/authority.md).
    ///
    /// - Throws: as ``Authority/checkToken(_:wallSeconds:)``.
    package func check(_ authority: Authority) throws(ApusError) {
        try authority.checkToken(revocations.list, wallSeconds: wallSeconds())
    }

    /// Those of several that may still control a device. One read of the records decides about all of them.
    ///
    /// - Throws: 10021 if the records cannot be read.
    package func controlling(_ device: DeviceID, _ several: Set<Authority>) async throws(ApusError) -> Set<Authority> {
        guard !several.isEmpty else { return [] }
        let record = try await revocations.records.record(of: device)
        return several.filter { authority -> Bool in
            do throws(ApusError) {
                try check(authority)
                try authority.checkRight(to: record, control: true)
                return true
            } catch {
                return false
            }
        }
    }

    /// Checks that a client may still control a device, with the token that it has shown to the device
    /// (docs/local-access.md).
    ///
    /// - Throws: 12002 if the token has expired, 20011 if the device is disabled, 10021 if the records cannot be read;
    ///   otherwise as ``Authority/checkToken(_:wallSeconds:)`` and ``Authority/checkRight(to:control:)``.
    package func check(_ user: RelayUser, controls device: DeviceID) async throws(ApusError) {
        var authority = user.authority
        authority.isRestricted = true
        try check(authority)
        let record = try await revocations.records.record(of: device)
        try authority.checkRight(to: record, control: false)
        try record?.checkEnabled()
        try authority.checkRight(to: record, control: true)
    }
}

package import ApusCore

// Browsers that have signed in (docs/sign-in.md). The cookie is sealed as tickets are, so every node can read it, and
// none keeps it. Signing out is a revocation of the sign-in's tag: it ends the cookie and all that was opened with it.

extension SessionService {
    /// The cookie of a browser. Throws 10001 if it cannot be sealed.
    package func cookie(of browser: Session) throws(ApusError) -> [UInt8] { try sealer.sealSignIn(browser) }

    /// The browser of a cookie. Throws 12001 if the cookie is not valid, or the browser has signed out, and 12002 if it
    /// has expired.
    package func browser(of cookie: [UInt8]) throws(ApusError) -> Session {
        let browser = try sealer.openSignIn(cookie, wallSeconds: wallSeconds())
        try checkSignIn(browser)
        return browser
    }

    /// Throws 12001 if the browser has signed out, or the token was revoked; 12002 if it has expired.
    func checkSignIn(_ browser: Session) throws(ApusError) {
        guard !browser.token.hasEnded(at: wallSeconds()) else { throw ApusError(.tokenExpired) }
        try revocations.check(browser)
    }

    /// Signs a browser out, at every node. Durable on return.
    ///
    /// - Throws: 10007 if too many revocations exist, 10021 if the records cannot be written.
    package func signOut(_ browser: Session) async throws(ApusError) {
        let revocation = RevocationRecord(
            .token(browser.signIn), expires: browser.token.expires + TokenVerifier.leewaySeconds)
        try await revocations.records.revoke(
            revocation, wallSeconds: wallSeconds(), countMax: RevocationRecord.countMax / 2)
        try await readRevocations()
    }
}

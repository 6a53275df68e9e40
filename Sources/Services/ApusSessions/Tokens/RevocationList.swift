import ApusCore

/// The revoked tokens, in a form for lookups at every sign-in and for every session (IV-A6).
/// A lookup takes constant time, whatever the number of revocations. Pure.
package struct RevocationList: Sendable, Equatable {
    private var tokens: Set<UInt64> = []
    /// Tokens that were issued before these times are revoked.
    private var identities: [String: [AccountID: Int64]] = [:]
    private var accounts: [AccountID: Int64] = [:]
    /// The number of revocations in the list.
    package let count: Int

    package init(_ records: [RevocationRecord] = []) {
        count = records.count
        for record in records {
            switch record.subject {
            case .token(let tag): tokens.insert(tag)
            case .identity(let id, let account, let before):
                identities[id, default: [:]][account] = max(identities[id]?[account] ?? .min, before)
            case .account(let account, let before): accounts[account] = max(accounts[account] ?? .min, before)
            }
        }
    }

    package var isEmpty: Bool { count == 0 }

    /// True if the token of a session was revoked, or the sign-in from which it comes has ended.
    package func revokes(_ session: Session) -> Bool {
        if session.signIn != 0, tokens.contains(session.signIn) { return true }
        return revokes(
            session.token, account: session.account, identities: [session.access.rawValue, session.identity])
    }

    /// True if a token of these identities of an account was revoked.
    func revokes(_ token: TokenMark, account: AccountID, identities ids: [String]) -> Bool {
        guard count > 0 else { return false }
        if token.tag != 0, tokens.contains(token.tag) { return true }
        if let before = accounts[account], token.issuedAt < before { return true }
        return ids.contains { id in (identities[id]?[account]).map { token.issuedAt < $0 } ?? false }
    }
}

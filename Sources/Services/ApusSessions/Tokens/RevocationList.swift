package import ApusCore

/// The revoked tokens, in a form for lookups at every sign-in and for every session (IV-A6).
/// A lookup takes constant time, whatever the number of revocations. Pure.
package struct RevocationList: Sendable, Equatable {
    private var tokens: Set<UInt64> = []
    /// Tokens that were issued before these times are revoked.
    private var identities: [String: [AccountID: Int64]] = [:]
    private var accounts: [AccountID: Int64] = [:]
    /// The accounts that lost a right to a device (IV-B10).
    private var withdrawals: [DeviceID: [DeviceWithdrawal]] = [:]
    /// The number of revocations in the list.
    package let count: Int

    package init(_ records: [RevocationRecord] = [], withdrawals: [DeviceWithdrawal] = []) {
        count = records.count
        self.withdrawals = Dictionary(grouping: withdrawals, by: \.device)
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

    /// True if the token of a session was revoked.
    package func revokes(_ session: Session) -> Bool {
        revokes(session.token, account: session.account, identities: [session.access.rawValue, session.identity])
    }

    /// True if the account lost a right to the device lately. It may have received another since, so the owner decides.
    package func hasWithdrawn(_ account: AccountID, from device: DeviceID) -> Bool {
        withdrawals[device]?.contains { $0.account == account } ?? false
    }

    /// What this list has and the other has not.
    func newWithdrawals(since other: RevocationList) -> [DeviceWithdrawal] {
        withdrawals.values.joined().filter { new in
            other.withdrawals[new.device]?.contains { $0.number == new.number } != true
        }
    }

    /// True if a token of these identities of an account was revoked.
    func revokes(_ token: TokenMark, account: AccountID, identities ids: [String]) -> Bool {
        guard count > 0 else { return false }
        if token.tag != 0, tokens.contains(token.tag) { return true }
        if let before = accounts[account], token.issuedAt < before { return true }
        return ids.contains { id in (identities[id]?[account]).map { token.issuedAt < $0 } ?? false }
    }
}

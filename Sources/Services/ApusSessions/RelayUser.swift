package import ApusCore

/// A client as a user of the relays and of devices in its own network: its identity within its account, to which quotas
/// apply, and the mark of its token, by which its credentials are revoked (D8, IV-D14).
/// Its form in a relay's user name is `ACCOUNT/IDENTITY;access=ACCESS;token=ISSUED.TAG`, with both numbers in
/// hexadecimal. The relay counts the part before the semicolon as one user.
///
/// Pure.
package struct RelayUser: Sendable, Equatable {
    package var account: AccountID
    package var identity: String
    package var access: String
    package var token: TokenMark

    package init(_ session: Session) {
        account = session.account
        identity = session.identity
        access = session.access.rawValue
        token = session.token
    }

    /// Nil for names that the cluster did not issue: names from operators' own secrets identify other users.
    package init?(_ user: String, expires: Int64) {
        let parts = user.split(separator: ";", omittingEmptySubsequences: false)
        guard parts.count == 3, parts[1].hasPrefix("access="), parts[2].hasPrefix("token=") else { return nil }
        let names = parts[0].split(separator: "/", omittingEmptySubsequences: false)
        let numbers = parts[2].dropFirst("token=".count).split(separator: ".", omittingEmptySubsequences: false)
        guard names.count == 2, numbers.count == 2, let account = AccountID(rawValue: String(names[0])),
            let issuedAt = Int64(numbers[0], radix: 16), let tag = UInt64(numbers[1], radix: 16)
        else { return nil }
        self.account = account
        identity = String(names[1])
        access = String(parts[1].dropFirst("access=".count))
        token = TokenMark(tag: tag, issuedAt: issuedAt, expires: expires)
    }

    /// What it has asked for, such as an allocation or access to a device in its network.
    package var authority: Authority {
        Authority(account: account, identities: [access, identity], token: token)
    }

    /// The form in a relay's user name.
    package var text: String {
        "\(account)/\(identity);access=\(access);token=\(String(token.issuedAt, radix: 16))."
            + String(token.tag, radix: 16)
    }
}

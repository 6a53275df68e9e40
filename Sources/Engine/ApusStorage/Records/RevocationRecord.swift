package import ApusCore

/// What an operator revoked (IV-A6): tokens, and with them all that was opened with them.
package struct RevocationRecord: Sendable, Hashable {
    package enum Subject: Sendable, Hashable {
        /// The token of this tag (the first 64 bits of the SHA-256 of its id).
        case token(UInt64)
        /// Tokens of one identity, an access id or a device's id, of an account, that were issued before a time in Unix
        /// seconds.
        case identity(String, AccountID, issuedBefore: Int64)
        /// Tokens of an account that were issued before a time in Unix seconds.
        case account(AccountID, issuedBefore: Int64)
    }

    package var subject: Subject
    /// When all that it revokes has expired anyway, in Unix seconds; it is forgotten then.
    package var expires: Int64

    package init(_ subject: Subject, expires: Int64) {
        self.subject = subject
        self.expires = expires
    }
}

/// What is revoked now, with a mark that differs whenever that has changed.
package struct RevocationSet: Sendable, Equatable {
    package var mark: RevocationMark
    package var records: [RevocationRecord]
}

/// Compared with an earlier one it says whether what is revoked has changed.
package struct RevocationMark: Sendable, Hashable {
    /// The newest revocation's number.
    var newest: Int64
    var count: Int
}

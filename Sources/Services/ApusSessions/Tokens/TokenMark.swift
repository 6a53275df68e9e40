import ApusCrypto
import Foundation

/// What a session, its tickets and its grants keep of the token that opened them: its expiry, and the fields by which
/// it is revoked (IV-A6).
///
/// Pure.
package struct TokenMark: Sendable, Hashable {
    /// The first 64 bits of the SHA-256 of the token's id, which may have any length; 0 if it has none.
    package var tag: UInt64
    /// The time of issue, in Unix seconds.
    package var issuedAt: Int64
    /// The expiry, in Unix seconds. What was opened with the token ends at that second, without leeway.
    package var expires: Int64

    package init(tag: UInt64, issuedAt: Int64, expires: Int64) {
        self.tag = tag
        self.issuedAt = issuedAt
        self.expires = expires
    }

    /// The tag of a token's id; never 0.
    package static func tag(of id: String) -> UInt64 {
        let tag = SHA256.hash(data: Array(id.utf8)).prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
        return max(tag, 1)
    }

    /// True from the second of the expiry on.
    package func hasEnded(at wallSeconds: Int64) -> Bool { wallSeconds >= expires }

    /// The number of seconds for which something with this lifetime is valid: at most until the token's expiry, and 0
    /// if the token has expired.
    package func seconds(of lifetime: Duration, at wallSeconds: Int64) -> Int64 {
        let (rest, isOver) = expires.subtractingReportingOverflow(wallSeconds)
        guard !isOver else { return expires > wallSeconds ? lifetime.components.seconds : 0 }
        return max(0, min(lifetime.components.seconds, rest))
    }
}

extension TokenMark {
    init(_ claims: TokenClaims) {
        self.init(tag: claims.jti.map(Self.tag) ?? 0, issuedAt: claims.iat, expires: claims.exp)
    }
}

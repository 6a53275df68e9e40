import HTTPTypes

/// The bearer token of an `Authorization` header (RFC 6750 §2.1).
/// The scheme is compared without regard to case, and one or more spaces separate it from the token (RFC 9110 §11.1,
/// §11.4). Pure.
enum BearerToken {
    private static let scheme = "bearer"

    /// Nil if there is no such header, or it has another scheme or no token.
    static func of(_ headers: HTTPFields) -> String? {
        guard let header = headers[.authorization] else { return nil }
        let parts = header.split(separator: " ", maxSplits: 1, omittingEmptySubsequences: true)
        guard parts.count == 2, parts[0].lowercased() == scheme else { return nil }
        let token = parts[1].drop { $0 == " " }
        return token.isEmpty ? nil : String(token)
    }
}

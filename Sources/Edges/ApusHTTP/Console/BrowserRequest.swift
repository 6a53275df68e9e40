import ApusCore
import HTTPTypes
import Hummingbird

/// What a browser's request says about itself: its cookie, and the page that has made it (docs/sign-in.md).
///
/// The browser sends the cookie with every request to this host, whoever has caused it. So a cookie counts only where
/// the page that has made the request is one of this node: its origin says so, or, for requests that change something,
/// a header that no form and no other page can send.
///
/// Pure.
struct BrowserRequest {
    static let cookieName = "apus-session"
    /// Sent by pages of this node with what changes something.
    static let headerName = "X-Apus"

    /// The value of the cookie; nil without one.
    let cookie: String?
    /// Nil if the request says nothing.
    private let origin: String?
    private let host: String?
    private let isSecure: Bool

    init(cookies: [String], origins: [String], host: String?, isSecure: Bool) {
        cookie = Self.value(in: cookies)
        // Two origins are none of this node.
        origin = origins.count > 1 ? "null" : origins.first
        (self.host, self.isSecure) = (host, isSecure)
    }

    init(_ request: Request, _ context: HTTPContext) {
        self.init(
            cookies: request.headers[values: .cookie], origins: request.headers[values: .origin],
            host: request.head.authority, isSecure: context.isEncrypted)
    }

    private static func value(in cookies: [String]) -> String? {
        for part in cookies.lazy.flatMap({ $0.split(separator: ";") }) {
            let pair = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            guard pair.count == 2, String(pair[0]).trimmed.isExactly(cookieName) else { continue }
            return String(pair[1]).trimmed
        }
        return nil
    }

    /// True if the request says that a page of this node has made it.
    var isOfOwnPage: Bool {
        guard let origin, let host, !host.isEmpty else { return false }
        if origin.lowercased().isExactly("https://\(host.lowercased())") { return true }
        // A proxy before the node may have TLS. A node with TLS has no other pages.
        return !isSecure && origin.lowercased().isExactly("http://\(host.lowercased())")
    }

    /// Checks that the cookie counts.
    ///
    /// - Parameters:
    ///   - changes: the request may change something.
    ///   - isMarked: the request has the header ``headerName``.
    /// - Throws: 12004.
    func check(changes: Bool, isMarked: Bool) throws(ApusError) {
        guard origin == nil || isOfOwnPage else {
            throw ApusError(.notAllowed, "a page of another origin does not act for who has signed in here")
        }
        guard !changes || isMarked else {
            throw ApusError(.notAllowed, "a change with a cookie needs the header \(Self.headerName): 1")
        }
    }

    func check(_ request: Request) throws(ApusError) {
        try check(
            changes: request.method != .get && request.method != .head,
            isMarked: request.headers[.apus]?.isExactly("1") ?? false)
    }
}

extension HTTPField.Name {
    static let apus = Self(unchecked: BrowserRequest.headerName)
}

extension String {
    fileprivate var trimmed: String {
        var rest = Substring(self)
        while rest.first == " " { rest.removeFirst() }
        while rest.last == " " { rest.removeLast() }
        return String(rest)
    }
}

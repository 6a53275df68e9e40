import ApusCore
import NIOHTTP1

/// What the upgrade to a WebSocket says about the page that asked for it.
///
/// Browsers let every page open a WebSocket to every host, and send the cookie of that host with it. So the cookie
/// counts only for pages of this node, which an `Origin` shows. Others bring a ticket or a token in their hello.
///
/// Pure value.
struct BrowserUpgrade: Sendable {
    private let cookie: String?
    private let isOfOwnPage: Bool

    init(_ head: HTTPRequestHead, isSecure: Bool) {
        let browser = BrowserRequest(
            cookies: head.headers["cookie"], origins: head.headers["origin"], host: head.headers["host"].first,
            isSecure: isSecure)
        (cookie, isOfOwnPage) = (browser.cookie, browser.isOfOwnPage)
    }

    /// The cookie for a hello with neither token nor ticket; nil without one.
    ///
    /// - Throws: 12004 if the page is not one of this node.
    func cookieOfPage() throws(ApusError) -> String? {
        guard let cookie else { return nil }
        guard isOfOwnPage else {
            throw ApusError(.notAllowed, "a page of another origin does not act for who has signed in here")
        }
        return cookie
    }
}

import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
import ApusSignIn

/// A session that a WebSocket has opened.
package struct OpenedWebSocket: Sendable {
    package var session: Session
    package var welcome: ClientWelcome
    /// As ``ApusSessions/OpenedSession/isConfirmed``.
    package var isConfirmed: Bool

    package init(session: Session, welcome: ClientWelcome, isConfirmed: Bool = false) {
        (self.session, self.welcome, self.isConfirmed) = (session, welcome, isConfirmed)
    }
}

/// The sessions of WebSockets. A port, so that tests need no cluster.
///
/// Isolation: called from any thread.
package protocol WebSocketSessions: Sendable {
    /// Opens the session of a client's hello.
    func open(_ hello: ClientHello, link: any ClientLink) async -> Result<OpenedWebSocket, ApusError>
    /// Opens a session of a browser, by its cookie.
    func open(
        signedIn cookie: String, instance: UInt64, link: any ClientLink
    ) async -> Result<OpenedWebSocket, ApusError>
    /// Notes that the client chose this socket of its session.
    func chosen(_ session: Session, link: any ClientLink)
    /// Removes a closed socket.
    func close(_ session: Session, link: any ClientLink)
    /// The cluster's time, in Unix seconds.
    func wallSeconds() -> Int64
}

extension WebSocketSessions {
    /// Without a sign-in of browsers.
    package func open(
        signedIn cookie: String, instance: UInt64, link: any ClientLink
    ) async -> Result<OpenedWebSocket, ApusError> { .failure(ApusError(.tokenInvalid)) }
}

/// The sessions of this node.
struct NodeWebSocketSessions: WebSocketSessions {
    let sessions: SessionService
    /// Nil: browsers do not sign in.
    let signIn: SignInService?
    let welcome: @Sendable (OpenedSession) -> ClientWelcome

    func open(_ hello: ClientHello, link: any ClientLink) async -> Result<OpenedWebSocket, ApusError> {
        await sessions.open(hello, link: link).map(opened)
    }

    func open(
        signedIn cookie: String, instance: UInt64, link: any ClientLink
    ) async -> Result<OpenedWebSocket, ApusError> {
        do throws(ApusError) {
            guard let signIn else { throw ApusError(.tokenInvalid) }
            let browser = try signIn.browser(of: cookie)
            return await sessions.open(signedIn: browser, instance: instance, link: link).map(opened)
        } catch {
            return .failure(error)
        }
    }

    private func opened(_ session: OpenedSession) -> OpenedWebSocket {
        OpenedWebSocket(session: session.session, welcome: welcome(session), isConfirmed: session.isConfirmed)
    }

    func chosen(_ session: Session, link: any ClientLink) { sessions.chosen(session, link: link) }

    func close(_ session: Session, link: any ClientLink) { sessions.close(session, link: link) }

    func wallSeconds() -> Int64 { sessions.view.clock.wallSeconds() }
}

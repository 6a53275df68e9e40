package import ApusClientAPI
package import ApusContract
package import ApusCore
package import ApusDeviceAuthorization
package import ApusSessions
package import ApusSignIn
import Synchronization

/// The functions of a node that REST and WebSocket need to serve clients.
///
/// Isolation: closures are called from any thread.
package struct HTTPClients: Sendable {
    package var services: ClientServices
    /// The bearer of a token, as a session for one request. Throws 12001 and 12002.
    package var session: @Sendable (_ token: String) throws(ApusError) -> Session
    /// Nil if this node has no sessions.
    package var sessions: SessionService?
    /// The sessions of WebSockets; nil if this node has none.
    package var webSockets: (any WebSocketSessions)?
    /// Nil if WebSockets of this node have no media.
    package var media: HTTPMedia?
    /// Issues tokens to devices with a user code; nil: this node does not.
    package var authorization: DeviceAuthorizationService?
    /// Signs browsers in; nil: this node does not.
    package var signIn: SignInService?
    /// The files of services; nil: this node has none.
    package var downloads: (any MediaDownloads)?

    /// - Parameter welcome: the welcome of a WebSocket's client.
    package init(
        services: ClientServices, sessions: SessionService? = nil,
        authorization: DeviceAuthorizationService? = nil, signIn: SignInService? = nil, media: HTTPMedia? = nil,
        downloads: (any MediaDownloads)? = nil,
        session: @escaping @Sendable (_ token: String) throws(ApusError) -> Session,
        welcome: @escaping @Sendable (OpenedSession) -> ClientWelcome = { _ in ClientWelcome() }
    ) {
        (self.services, self.sessions, self.session) = (services, sessions, session)
        (self.authorization, self.signIn, self.media) = (authorization, signIn, media)
        self.downloads = downloads
        webSockets = sessions.map { NodeWebSocketSessions(sessions: $0, signIn: signIn, welcome: welcome) }
    }
}

/// Caches bearers of verified tokens. A signature is verified once, expiry and revocation are checked each time.
///
/// Isolation: any thread.
package final class BearerCache: Sendable {
    /// The maximum number of tokens. When it is reached, the cache is cleared.
    private static let countMax = 8192

    private let verify: @Sendable (String) throws(ApusError) -> Session
    private let isValid: @Sendable (Session) throws(ApusError) -> Void
    private let generation: @Sendable () -> Int
    private let known = Mutex<(sessions: [ExactText: Session], generation: Int)>(([:], 0))

    /// - Parameters:
    ///   - verify: verifies the signature and the names.
    ///   - isValid: throws 12001 if the token is revoked and 12002 if it has expired.
    ///   - generation: changes with the keys that verify tokens. The cache is then cleared.
    package init(
        verify: @escaping @Sendable (String) throws(ApusError) -> Session,
        isValid: @escaping @Sendable (Session) throws(ApusError) -> Void, generation: @escaping @Sendable () -> Int
    ) {
        (self.verify, self.isValid, self.generation) = (verify, isValid, generation)
    }

    /// Throws 12001 and 12002.
    package func session(_ token: String) throws(ApusError) -> Session {
        let generation = generation()
        let held = known.withLock { known in
            if known.generation != generation { known = ([:], generation) }
            return known.sessions[ExactText(token)]
        }
        if let held {
            try isValid(held)
            return held
        }
        let session = try verify(token)
        try isValid(session)
        known.withLock { known in
            guard known.generation == generation else { return }
            if known.sessions.count >= Self.countMax { known.sessions.removeAll(keepingCapacity: true) }
            known.sessions[ExactText(token)] = session
        }
        return session
    }
}

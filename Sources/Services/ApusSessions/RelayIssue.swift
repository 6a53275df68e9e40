package import ApusCore
import Synchronization

/// The credentials with which a client may use the cluster's relays for a time (D8).
package struct RelayGrant: Sendable, Equatable {
    /// TURN URLs (RFC 7065), with those of the client's own node first.
    package var urls: [String]
    /// `EXPIRY:USER`, see ``RelayUser``.
    package var username: String
    package var credential: String
    /// The lifetime, in seconds.
    package var lifetimeSeconds: UInt32

    package init(urls: [String], username: String, credential: String, lifetimeSeconds: UInt32) {
        self.urls = urls
        self.username = username
        self.credential = credential
        self.lifetimeSeconds = lifetimeSeconds
    }
}

/// Issues credentials for the cluster's relays: the port that a node's relay implements (D8).
/// Isolation: may be called from anywhere; implementations must not block.
package protocol RelayIssuer: Sendable {
    /// A user name, a password and the relays' URLs; nil if no known relay accepts clients.
    func issue(user: String, lifetime: Duration) -> RelayGrant?

    /// Ends the allocations of revoked users, and refuses their credentials from now on. Returns false if that is not
    /// possible now.
    /// - Parameter isRevoked: decides about a user, as passed to ``issue(user:lifetime:)``, and the expiry of its
    ///   credentials.
    func endRevoked(_ isRevoked: @escaping @Sendable (_ user: String, _ expires: Int64) -> Bool) -> Bool
}

/// Credentials of the cluster's relays, for sessions and for bearers of a token.
extension SessionService {
    /// Issues credentials for the relays. Fails with 10007 if the client asks too often, with 20004 if this node has no
    /// relay or has seen none that accepts clients, with 12002 if the client's token has expired, and with 12001 if it
    /// was revoked. The credentials expire with the token at the latest.
    /// The user is the identity itself, so its quotas apply to all its requests, at every node.
    package func relayCredentials(for session: Session) -> Result<RelayGrant, ApusError> {
        Result { () throws(ApusError) in
            try issueRelayGrant(for: session) {
                issues.withLock {
                    $0.take("\(session.role.rawValue) \(session.account)/\(session.identity)", at: .now())
                }
            }
        }
    }

    /// The same for a call that was accepted. Calls have a limit of their own, so this one does not count; nil where
    /// ``relayCredentials(for:)`` would fail.
    package func relayGrant(for session: Session) -> RelayGrant? {
        try? issueRelayGrant(for: session) { true }
    }

    private func issueRelayGrant(
        for session: Session, isInTime: () -> Bool
    ) throws(ApusError) -> RelayGrant {
        guard let relayIssuer else { throw ApusError(.noRelayAddress, "this node has no relay") }
        let lifetime = session.token.seconds(of: configuration.relayLifetime, at: wallSeconds())
        guard lifetime > 0 else { throw ApusError(.tokenExpired) }
        if revocations.list.revokes(session) { throw ApusError(.tokenInvalid, "the token was revoked") }
        guard isInTime() else {
            throw ApusError(.overloaded, "too many requests for credentials; use the earlier ones")
        }
        guard let grant = relayIssuer.issue(user: RelayUser(session).text, lifetime: .seconds(lifetime)) else {
            throw ApusError(.noRelayAddress, "no relay accepts clients now")
        }
        return grant
    }
}

package import ApusCore
import Synchronization

/// What a client needs to use the relays of the cluster for a time (D8).
package struct RelayGrant: Sendable, Equatable {
    /// RFC 7065; those of the client's own node first.
    package var urls: [String]
    /// `EXPIRY:USER`, see ``RelayUser``.
    package var username: String
    package var credential: String
    /// How long it is good for, in seconds.
    package var lifetimeSeconds: UInt32

    package init(urls: [String], username: String, credential: String, lifetimeSeconds: UInt32) {
        self.urls = urls
        self.username = username
        self.credential = credential
        self.lifetimeSeconds = lifetimeSeconds
    }
}

/// Who issues credentials of the cluster's relays: the port that a node's relay implements (D8).
///
/// Isolation: callable from anywhere; must answer without waiting.
package protocol RelayIssuer: Sendable {
    /// A name and password for this user, and where they serve; nil where no relay is known that takes clients.
    func issue(user: String, lifetime: Duration) -> RelayGrant?

    /// Ends the allocations of users that are revoked, and takes their credentials no more. False where that cannot be
    /// done now.
    ///
    /// - Parameter isRevoked: of a user as ``issue(user:lifetime:)`` was told it, with when its credentials expire.
    func endRevoked(_ isRevoked: @escaping @Sendable (_ user: String, _ expires: Int64) -> Bool) -> Bool
}

/// Credentials of the cluster's relays, for sessions and for bearers of a token.
extension SessionService {
    /// What the client needs to use the relays. Fails with 10007 for one that asks too often, with 21025 where this
    /// node relays nothing or knows of no relay that takes clients, with 12002 where the client's token has ended: the
    /// credentials are valid no longer than it.
    ///
    /// The user is the identity itself, so that its quotas hold whichever way it asked, and at whichever node.
    package func relayCredentials(for session: Session) -> Result<RelayGrant, ApusError> {
        guard let relayIssuer else { return .failure(ApusError(.unavailable, "this node relays nothing")) }
        let lifetime = session.token.seconds(of: configuration.relayLifetime, at: wallSeconds())
        guard lifetime > 0 else { return .failure(ApusError(.tokenExpired)) }
        if revocations.list.revokes(session) {
            return .failure(ApusError(.tokenInvalid, "the token was revoked"))
        }
        let isInTime = issues.withLock {
            $0.take("\(session.role.rawValue) \(session.account)/\(session.identity)", at: .now())
        }
        guard isInTime else {
            return .failure(ApusError(.overloaded, "credentials were asked for too often; use those of before"))
        }
        guard let grant = relayIssuer.issue(user: RelayUser(session).text, lifetime: .seconds(lifetime)) else {
            return .failure(ApusError(.unavailable, "no relay takes clients now"))
        }
        return .success(grant)
    }
}

package import ApusCore
import Synchronization

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

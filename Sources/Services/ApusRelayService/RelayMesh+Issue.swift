import ApusCluster
import ApusCore
import ApusRelay
import ApusSessions
import ApusTraversal

extension RelayMesh: RelayIssuer {
    /// Every node of the cluster accepts these credentials: their key is derived from the cluster's key, or is the
    /// operator's.
    func issue(user: String, lifetime: Duration) -> RelayGrant? {
        let urls = clientURLs
        guard !urls.isEmpty else { return nil }
        let seconds = lifetime.components.seconds
        let issued = credentials.issue(user: user, expiry: view.clock.wallSeconds() + seconds)
        return RelayGrant(
            urls: urls, username: issued.username, credential: issued.password,
            lifetimeSeconds: UInt32(clamping: seconds))
    }

    func endRevoked(_ isRevoked: @escaping @Sendable (_ user: String, _ expires: Int64) -> Bool) -> Bool {
        relay.order(
            .revoked { username in
                guard let name = RelayCredentials.parts(of: username) else { return false }
                return isRevoked(name.user, name.expiry)
            })
    }
}

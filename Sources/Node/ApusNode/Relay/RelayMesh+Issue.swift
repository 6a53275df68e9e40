import ApusCore
import ApusSessions
import ApusTraversal

extension RelayMesh: RelayIssuer {
    /// Any node of the cluster takes what this one issues: the key is derived from the cluster's, or is the operator's.
    func issue(user: String, lifetime: Duration) -> RelayGrant? {
        let urls = clientURLs
        guard !urls.isEmpty else { return nil }
        let seconds = lifetime.components.seconds
        let issued = credentials.issue(user: user, expiry: view.clock.wallSeconds() + seconds)
        return RelayGrant(
            urls: urls, username: issued.username, credential: issued.password,
            lifetimeSeconds: UInt32(clamping: seconds))
    }
}

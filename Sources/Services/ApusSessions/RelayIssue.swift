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

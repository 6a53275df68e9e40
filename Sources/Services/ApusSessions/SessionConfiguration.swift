import ApusCore

/// The configuration of sessions, with keys under `sessions.` (D13).
package struct SessionConfiguration: Sendable {
    /// How long a ticket can resume a session. Key `sessions.ticket_lifetime`.
    package var ticketLifetime: Duration = .seconds(24 * 3600)
    /// How long a grant permits playing a device without asking its owner again. Key `sessions.grant_lifetime`.
    package var grantLifetime: Duration = .seconds(60)
    /// How long a request to an identity's owner may take, including hand-overs and failovers. Key
    /// `sessions.ask_timeout`.
    package var askTimeout: Duration = .seconds(3)
    /// The lifetime of relay credentials. Key `sessions.relay_lifetime`.
    package var relayLifetime: Duration = .seconds(3600)
    /// How many relay credentials per minute an identity may obtain at one node; also the burst. Key
    /// `sessions.relay_credentials_per_minute`.
    package var relayCredentialsPerMinute = 12
    /// The maximum number of concurrent connections of one client, at one node and over all nodes, while it chooses
    /// one. Beyond it the oldest ends. Key `sessions.connections_max`.
    package var connectionsMax: Int {
        get { presence.placesMax }
        set { presence.placesMax = newValue }
    }
    /// The maximum number of identities whose newest client is not written yet. Changes of further ones are not
    /// written. Key `sessions.unwritten_max`.
    package var unwrittenMax = 65_536
    /// The maximum number of sessions at this node, including ended ones whose owners have not acknowledged that.
    /// Further ones are refused with 10007. Key `sessions.sessions_max`.
    package var sessionsMax = 65_536
    /// The maximum number of presence subscriptions of one session. Further ones are refused with 10007. Key
    /// `sessions.subscriptions_max`.
    package var subscriptionsMax = 10_000
    /// The interval at which this node polls for revocations. Key `sessions.revocation_interval`.
    package var revocationInterval: Duration = .milliseconds(250)
    /// The presence machine's configuration.
    package var presence = PresenceStateMachine.Configuration()

    package init() {}

    /// The configuration of the session table.
    func edge<Link>() -> EdgeSessionStateMachine<Link>.Configuration {
        var edge = EdgeSessionStateMachine<Link>.Configuration()
        edge.linksMax = connectionsMax
        edge.sessionsMax = sessionsMax
        edge.subscriptionsMax = subscriptionsMax
        return edge
    }
}

import ApusCore

/// The bounds of sessions, each with its key under `sessions.` (D13).
package struct SessionConfiguration: Sendable {
    /// How long a ticket resumes a session. Key `sessions.ticket_lifetime`.
    package var ticketLifetime: Duration = .seconds(24 * 3600)
    /// How long a grant serves to watch a device without asking its owner again. Key `sessions.grant_lifetime`.
    package var grantLifetime: Duration = .seconds(60)
    /// How long an identity's owner may take to answer, moves and failures included. Key `sessions.ask_timeout`.
    package var askTimeout: Duration = .seconds(3)
    /// How long credentials of the relay serve. Key `sessions.relay_lifetime`.
    package var relayLifetime: Duration = .seconds(3600)
    /// How often an identity is given credentials of the relay at one node, and how many at once. Key
    /// `sessions.relay_credentials_per_minute`.
    package var relayCredentialsPerMinute = 12
    /// Connections of one client, at one node and over all nodes, that are kept beside each other while it chooses one;
    /// one more ends the oldest. Key `sessions.connections_max`.
    package var connectionsMax: Int {
        get { presence.placesMax }
        set { presence.placesMax = newValue }
    }
    /// Identities whose newest client waits to be written down; one more is not remembered beyond its owner. Key
    /// `sessions.unwritten_max`.
    package var unwrittenMax = 65_536
    /// Sessions at this node, those included whose owners have yet to be told that they ended; one more is refused with
    /// 10007. Key `sessions.sessions_max`.
    package var sessionsMax = 65_536
    /// Devices whose presence one session listens to; one more is refused with 10007. Key
    /// `sessions.subscriptions_max`.
    package var subscriptionsMax = 10_000
    /// How often this node looks whether something was revoked. Key `sessions.revocation_interval`.
    package var revocationInterval: Duration = .milliseconds(250)
    /// The presence machine's own.
    package var presence = PresenceStateMachine.Configuration()

    package init() {}

    /// The bounds of the sessions' table.
    func edge<Link>() -> EdgeSessionStateMachine<Link>.Configuration {
        var edge = EdgeSessionStateMachine<Link>.Configuration()
        edge.linksMax = connectionsMax
        edge.sessionsMax = sessionsMax
        edge.subscriptionsMax = subscriptionsMax
        return edge
    }
}

package import ApusCore

/// The configuration of the client listener, with keys under `gateway.` (D13).
package struct GatewayConfiguration: Sendable {
    /// The address at which devices and apps connect.
    package var bind: HostPort
    /// The client endpoint that this node advertises to clients and to the cluster.
    package var advertised: HostPort
    /// PEM files of the listener's certificate chain and key.
    package var certificateFile: String
    package var keyFile: String
    /// The maximum number of connections. Further connections are refused, and so are those of an account beyond its
    /// share (`AccountShares`). Key `connections_max`.
    package var connectionsMax = 15_000
    /// The maximum number of connections beyond ``connectionsMax`` that receive 21020 before they are closed. Further
    /// ones are closed at once. Key `refusals_max`.
    package var refusalsMax = 64
    /// Chooses the loop of the next connection. Key `loop_step`.
    package var placement = LoopPlacement()
    /// The maximum number of unauthenticated connections. Beyond it, ``HandshakePlaces`` says which one is closed. Key
    /// `unauthenticated_max`.
    package var unauthenticatedMax = 1024
    /// The sessions that the other nodes admit each second if this node dies. Its clients without streams spread their
    /// connects accordingly, over at most ``reconnectSpreadMax``; 0: they do not. Key `reconnect_rate`.
    package var reconnectRate = 1_500
    /// The longest such time. Key `reconnect_spread_max`.
    package var reconnectSpreadMax: Duration = .seconds(15)
    /// How long a client may resume its TLS session, at any node; zero turns resumption off. Key `tls_ticket_lifetime`.
    package var tlsTicketLifetime: Duration = tlsTicketLifetimeMax
    /// The maximum. A ticket is valid in its key's period and the next one, so no key is in use for longer than a day.
    package static let tlsTicketLifetimeMax: Duration = .seconds(12 * 3600)
    /// The maximum time from the connection to a valid hello. Key `handshake_timeout`.
    package var handshakeTimeout: Duration = .seconds(5)
    /// The largest frame before the hello is accepted, in bytes. Key `hello_bytes_max`.
    package var helloByteCountMax = 16 << 10
    /// The largest frame from an app, in bytes. Key `app_frame_bytes_max`.
    package var appFrameByteCountMax = 64 << 10
    /// The largest frame from a device, in bytes. Key `device_frame_bytes_max`.
    package var deviceFrameByteCountMax = 4 << 20
    /// The maximum number of streams, played or published, on one connection. Key `streams_per_connection_max`.
    package var streamsPerConnectionMax = 64
    /// The number of queued bytes above which a connection counts as behind. Key `outbound_bytes_max`.
    package var outboundByteCountMax = 256 << 10
    /// How long a connection may be behind before it is closed (10016). Key `slow_reader_timeout`.
    package var slowReaderTimeout: Duration = .seconds(10)
    /// The longest silence of the node on an idle session. Key `keepalive`.
    package var keepalive: Duration = .seconds(5)
    /// The longest silence of the node while a stream is open; the client's watchdog relies on it. It is longer than a
    /// frame's interval, so a stream's frames serve as keepalives, and less than half of the watchdog's 180 ms. Key
    /// `stream_keepalive`.
    package var streamKeepalive: Duration = .milliseconds(80)
    /// How long a drain waits for the node's clients to connect elsewhere. Key `leave_timeout`.
    package var leaveTimeout: Duration = .seconds(15)
    /// How long a client may be silent before it is closed (10015). Key `idle_timeout`.
    package var idleTimeout: Duration = .seconds(20)

    package init(bind: HostPort, advertised: HostPort, certificateFile: String, keyFile: String) {
        self.bind = bind
        self.advertised = advertised
        self.certificateFile = certificateFile
        self.keyFile = keyFile
    }

    /// The time over which clients without streams spread their connects if their node dies.
    ///
    /// - Parameter sessions: those of the node.
    package func reconnectSpread(sessions: Int) -> Duration {
        guard reconnectRate > 0 else { return .zero }
        let spread = Duration.seconds(sessions) / reconnectRate
        return spread < Self.reconnectSpreadMin ? .zero : min(spread, reconnectSpreadMax)
    }
    /// Fewer clients are admitted at once.
    private static let reconnectSpreadMin = Duration.milliseconds(100)
}

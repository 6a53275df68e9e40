package import ApusCore

/// The bounds of the client door, each with its key under `gateway.` (D13).
package struct GatewayConfiguration: Sendable {
    /// Where devices and apps connect.
    package var bind: HostPort
    /// Doors of the cluster that clients are told, this node's own first.
    package var advertised: HostPort
    /// PEM files of the door's certificate chain and key.
    package var certificateFile: String
    package var keyFile: String
    /// The most connections at once; one more is refused, and so is an account's beyond its share of them
    /// (`AccountShares`). Key `connections_max`.
    package var connectionsMax = 15_000
    /// Connections beyond ``connectionsMax`` that are told so (21020) before they are closed; one more is closed at
    /// once. Key `refusals_max`.
    package var refusalsMax = 64
    /// Which loop takes the next connection. Key `loop_step`.
    package var placement = LoopPlacement()
    /// The most connections that have not said who they are; the oldest makes room. Key `unauthenticated_max`.
    package var unauthenticatedMax = 1024
    /// How long a client may resume its TLS session, at any node; zero: not at all. Key `tls_ticket_lifetime`.
    package var tlsTicketLifetime: Duration = tlsTicketLifetimeMax
    /// Each ticket is taken in its epoch and the next one, so that no key is in use for longer than a day.
    package static let tlsTicketLifetimeMax: Duration = .seconds(12 * 3600)
    /// How long a client may take from connect to a valid hello. Key `handshake_timeout`.
    package var handshakeTimeout: Duration = .seconds(5)
    /// The largest frame before the hello is accepted, in bytes. Key `hello_bytes_max`.
    package var helloByteCountMax = 16 << 10
    /// The largest frame from an app, in bytes. Key `app_frame_bytes_max`.
    package var appFrameByteCountMax = 64 << 10
    /// The largest frame from a device, in bytes. Key `device_frame_bytes_max`.
    package var deviceFrameByteCountMax = 4 << 20
    /// The most streams, played or published, on one connection. Key `streams_per_connection_max`.
    package var streamsPerConnectionMax = 64
    /// Bytes that wait in a connection before it counts as behind. Key `outbound_bytes_max`.
    package var outboundByteCountMax = 256 << 10
    /// How long a connection may be behind before it is closed (10016). Key `slow_reader_timeout`.
    package var slowReaderTimeout: Duration = .seconds(10)
    /// The node is not silent for longer on an idle session. Key `keepalive`.
    package var keepalive: Duration = .seconds(5)
    /// The same while a stream is open: what a client's watchdog rests on. Longer than a frame's interval, so that a
    /// picture is keepalive enough, and less than half of the watchdog's 180 ms. Key `stream_keepalive`.
    package var streamKeepalive: Duration = .milliseconds(80)
    /// How long the clients of a node that is drained may take to go elsewhere. Key `leave_timeout`.
    package var leaveTimeout: Duration = .seconds(15)
    /// How long a client may be silent before it is closed (10015). Key `idle_timeout`.
    package var idleTimeout: Duration = .seconds(20)

    package init(bind: HostPort, advertised: HostPort, certificateFile: String, keyFile: String) {
        self.bind = bind
        self.advertised = advertised
        self.certificateFile = certificateFile
        self.keyFile = keyFile
    }
}

package import ApusCore

/// The bounds of the HTTP listener (D13), each with its key under `http.`.
package struct HTTPConfiguration: Sendable {
    /// Where apps, operators and their tools connect; port 0 asks the system for a free one.
    package var bind: HostPort
    /// The certificate and its key in PEM form; nil: plain HTTP. Read anew at SIGHUP. Keys `tls`, `certificate`, `key`.
    package var tls: HTTPCertificateFiles?
    /// Connections at once, 2 or more; one more waits in the system's queue until another closes. From fifteen
    /// sixteenths of them on, the connection that waited for longest makes room. Key `connections_max`.
    package var connectionsMax = 256
    /// Connections beside these that became WebSockets; one more is refused with 503. Key `websockets_max`.
    package var webSocketsMax = 4000
    /// How long a client may take for a whole request, and be idle after its answer. Key `request_timeout`.
    package var requestTimeout: Duration = .seconds(10)
    /// Descriptors that are kept for this listener alone, for the case that the process has no other left.
    package var descriptorsReserved = 4
    /// All header fields of a request together, in bytes; more closes the connection with 400. Key `header_bytes_max`.
    package var headerByteCountMax = 16 << 10
    /// The largest request body, in bytes; a larger one is refused with 413. Key `body_bytes_max`.
    package var bodyByteCountMax = 64 << 10
    /// Whether clients may show their tokens from other machines, over plain HTTP; otherwise 12004. Key `tokens_from`.
    package var isTokenTakenFromAnywhere = false
    /// Origins whose pages may read answers (CORS); `*`: all. Empty: none. Key `cors_origins`.
    package var corsOrigins: [String] = []
    /// How often a silent WebSocket is asked for a sign of life. Key `websocket_ping`.
    package var webSocketPing: Duration = .seconds(20)
    /// Bytes that wait in a WebSocket before its events wait. Key `websocket_outbound_bytes_max`.
    package var webSocketOutboundByteCountMax = 256 << 10

    package init(bind: HostPort) { self.bind = bind }
}

/// What the listener asks the node for. Every closure is called on the cooperative pool, once per request,
/// and must answer in bounded time.
package struct HTTPSources: Sendable {
    /// Whether the node serves.
    package var health: @Sendable () async -> NodeHealth
    /// The node's status.
    package var status: @Sendable () async -> NodeStatus
    /// All metrics in Prometheus' text form.
    package var metrics: @Sendable () -> String
    /// Checks that a bearer token allows administration; throws 12001, 12002 or 12004.
    package var authorizeAdmin: @Sendable (_ token: String) async throws(ApusError) -> Void
    /// Hands the node's shards over and leaves the cluster; returns when the hand-over has begun.
    package var drain: @Sendable () async throws(ApusError) -> Void
    /// What clients may ask, over REST and WebSocket; nil for a relay alone, which has no clients.
    package var clients: HTTPClients?
    /// Allocations of the node's relay; throws 21025 where it has none.
    package var relaySessions: @Sendable (RelaySelection) async throws(ApusError) -> RelaySessions =
        { _ throws(ApusError) in throw ApusError(.unavailable, "nothing is relayed here") }
    /// Ends allocations of the node's relay, and tells how many; throws 21025 where it has none.
    package var endRelaySessions: @Sendable (RelaySelection) async throws(ApusError) -> Int =
        { _ throws(ApusError) in throw ApusError(.unavailable, "nothing is relayed here") }

    package init(
        health: @escaping @Sendable () async -> NodeHealth,
        status: @escaping @Sendable () async -> NodeStatus,
        metrics: @escaping @Sendable () -> String,
        authorizeAdmin: @escaping @Sendable (_ token: String) async throws(ApusError) -> Void,
        drain: @escaping @Sendable () async throws(ApusError) -> Void, clients: HTTPClients? = nil
    ) {
        self.health = health
        self.status = status
        self.metrics = metrics
        self.authorizeAdmin = authorizeAdmin
        self.drain = drain
        self.clients = clients
    }
}

/// The answer of `/healthz`.
package struct NodeHealth: Codable, Sendable, Equatable {
    /// True: 200; false: 503.
    package var healthy: Bool
    /// One word for the state, as in ``NodeStatus/state``.
    package var state: String
    /// A sentence that says why, where the node is not healthy.
    package var reason: String?
    /// What lasts at the moment, also what leaves the node healthy.
    package var conditions: [NodeCondition]

    package init(healthy: Bool, state: String, reason: String? = nil, conditions: [NodeCondition] = []) {
        self.healthy = healthy
        self.state = state
        self.reason = reason
        self.conditions = conditions
    }
}

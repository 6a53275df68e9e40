package import ApusClientAPI
package import ApusContract
package import ApusCore
package import ApusTraversal

/// The configuration of the HTTP listener, with keys under `http.` (D13).
package struct HTTPConfiguration: Sendable {
    /// The address for apps, operators and their tools. Port 0 selects a free port.
    package var bind: HostPort
    /// The certificate and its key in PEM form; nil means plain HTTP. Read again at SIGHUP. Keys `tls`, `certificate`,
    /// `key`.
    package var tls: HTTPCertificateFiles?
    /// The maximum number of connections, 2 or more. Further ones wait in the listener's backlog until another closes.
    /// From fifteen sixteenths of them on, the one that has waited longest for its client is closed. Key
    /// `connections_max`.
    package var connectionsMax = 256
    /// The maximum number of WebSockets, in addition to these connections. Further ones are refused with 503. Key
    /// `websockets_max`.
    package var webSocketsMax = 4000
    /// How long a client may take for a whole request, and be idle after its answer. Key `request_timeout`.
    package var requestTimeout: Duration = .seconds(10)
    /// Descriptors that are reserved for this listener, in case the process has no others left.
    package var descriptorsReserved = 4
    /// The maximum size of all header fields of a request together, in bytes. Beyond it the connection is closed with
    /// 400. Key `header_bytes_max`.
    package var headerByteCountMax = 16 << 10
    /// The maximum size of a request body, in bytes. Larger ones are refused with 413. Key `body_bytes_max`. The
    /// default has room for the largest piece of a greeting, 64 KiB in base64.
    package var bodyByteCountMax = 128 << 10
    /// True if clients on other machines may send their tokens over plain HTTP; otherwise they get 12004. Key
    /// `tokens_from`.
    package var isTokenTakenFromAnywhere = false
    /// Origins whose pages may read answers (CORS). `*` permits all; an empty list permits none. Key `cors_origins`.
    package var corsOrigins: [String] = []
    /// False: this node does not serve the console's pages. Key `console`.
    package var hasConsole = true
    /// The interval of pings on a silent WebSocket. Key `websocket_ping`.
    package var webSocketPing: Duration = .seconds(20)
    /// The number of queued bytes above which a WebSocket's events wait. Key `websocket_outbound_bytes_max`.
    package var webSocketOutboundByteCountMax = 256 << 10

    /// The bounds of embedded voice devices.
    package var evs = EVSLimits()
    /// The bounds of files that clients load.
    package var downloads = DownloadLimits()

    package init(bind: HostPort) { self.bind = bind }
}

/// The bounds of files that clients load from a node, such as recordings (docs/cluster-recordings.md).
package struct DownloadLimits: Sendable, Hashable {
    /// The files that are sent at once; 10007 beyond. Key `http.downloads_max`.
    package var countMax = 96
    /// Of one account. Key `http.downloads_per_account_max`.
    package var accountMax = 32
    /// The bytes of a file that are read at once. Key `http.download_piece_bytes`.
    package var pieceByteCount = 512 << 10

    package init() {}
}

/// The bounds of embedded voice devices at a node (docs/evs.md), with keys under `http.evs_`.
package struct EVSLimits: Sendable, Hashable {
    /// The requests of a device that wait for their answers; 10007 beyond. Key `http.evs_requests_max`.
    package var requestsMax = 8
    /// The spoken replies of a node that can be fetched. Key `http.evs_replies_max`.
    package var repliesMax = 1024
    /// The bytes that these may have. Key `http.evs_reply_bytes_max`.
    package var replyByteCountMax = 64 << 20

    package init() {}
}

/// The functions of the node that the listener calls. Each closure is called on the cooperative pool, once per request,
/// and must return in bounded time.
package struct HTTPSources: Sendable {
    /// The node's health.
    package var health: @Sendable () async -> NodeHealth
    /// The node's status.
    package var status: @Sendable () async -> NodeStatus
    /// All metrics in Prometheus' text format.
    package var metrics: @Sendable () -> String
    /// Checks that a bearer token permits administration, and says whose it is. Throws 12001, 12002 or 12004.
    package var authorizeAdmin: @Sendable (_ token: String) async throws(ApusError) -> AuditActor
    /// Drains a standalone relay; also a node, for the command line of the release before. Returns when that has begun.
    package var drain: @Sendable () async throws(ApusError) -> Void
    /// The requests of clients over REST and WebSocket; nil for a standalone relay, which has no clients.
    package var clients: HTTPClients?
    /// The allocations of the node's relay. Throws 21025 if it has none.
    package var relaySessions: @Sendable (RelaySelection) async throws(ApusError) -> RelaySessions =
        { _ throws(ApusError) in throw ApusError(.unavailable, "this node has no relay") }
    /// Ends allocations of the node's relay and returns their number. Throws 21025 if it has none.
    package var endRelaySessions: @Sendable (RelaySelection) async throws(ApusError) -> Int =
        { _ throws(ApusError) in throw ApusError(.unavailable, "this node has no relay") }

    package init(
        health: @escaping @Sendable () async -> NodeHealth,
        status: @escaping @Sendable () async -> NodeStatus,
        metrics: @escaping @Sendable () -> String,
        authorizeAdmin: @escaping @Sendable (_ token: String) async throws(ApusError) -> AuditActor,
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
    /// The reason, if the node is not healthy.
    package var reason: String?
    /// The current conditions, including those that leave the node healthy.
    package var conditions: [NodeCondition]

    package init(healthy: Bool, state: String, reason: String? = nil, conditions: [NodeCondition] = []) {
        self.healthy = healthy
        self.state = state
        self.reason = reason
        self.conditions = conditions
    }
}

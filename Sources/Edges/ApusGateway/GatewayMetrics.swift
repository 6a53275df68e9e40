import ApusSessions
package import CoreMetrics

/// The metrics of the client listener.
package struct GatewayMetrics: Sendable {
    /// Open connections, in any state.
    package let connections = Meter(label: "apus_gateway_connections")
    /// Connections accepted.
    package let accepted = Counter(label: "apus_gateway_accepted_total")
    /// Sessions opened.
    package let sessions = Counter(label: "apus_gateway_sessions_total")
    /// The time over which clients spread their connects if this node dies.
    package let reconnectSpread = Gauge(label: "apus_gateway_reconnect_spread_seconds")
    /// Bytes received.
    package let bytesIn = Counter(label: "apus_gateway_bytes_in_total")

    /// Open sessions.
    private let devices = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "device")])
    private let apps = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "app")])
    private let admins = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "admin")])
    /// Open streams.
    private let played = Meter(label: "apus_gateway_streams", dimensions: [("direction", "played")])
    private let published = Meter(label: "apus_gateway_streams", dimensions: [("direction", "published")])

    package init() {}

    /// The meter of open sessions of this role.
    func open(_ role: Session.Role) -> Meter {
        switch role {
        case .device: devices
        case .app: apps
        case .admin, .customer: admins
        }
    }

    /// Notes that the number of a connection's streams has changed.
    func streamsChanged(from before: (played: Int, published: Int), to now: (played: Int, published: Int)) {
        if now.played != before.played { played.increment(by: Double(now.played - before.played)) }
        if now.published != before.published { published.increment(by: Double(now.published - before.published)) }
    }

    /// Counts a connection that this side closed, by error code.
    package func closed(code: Int32) {
        Counter(label: "apus_gateway_closed_total", dimensions: [("code", "\(code)")]).increment()
    }

    /// Counts a request that was refused, by error code.
    package func refused(code: Int32) {
        Counter(label: "apus_gateway_refused_total", dimensions: [("code", "\(code)")]).increment()
    }
}

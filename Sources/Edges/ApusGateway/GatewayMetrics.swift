import ApusSessions
package import CoreMetrics

/// The metrics of the client listener.
package struct GatewayMetrics: Sendable {
    /// Connections that are open now, in any state.
    package let connections = Meter(label: "apus_gateway_connections")
    /// Connections accepted.
    package let accepted = Counter(label: "apus_gateway_accepted_total")
    /// Sessions opened.
    package let sessions = Counter(label: "apus_gateway_sessions_total")
    /// Bytes that came in.
    package let bytesIn = Counter(label: "apus_gateway_bytes_in_total")

    /// Sessions that are open now.
    private let devices = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "device")])
    private let apps = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "app")])
    private let admins = Meter(label: "apus_gateway_open_sessions", dimensions: [("role", "admin")])
    /// Streams that are open now.
    private let played = Meter(label: "apus_gateway_streams", dimensions: [("direction", "played")])
    private let published = Meter(label: "apus_gateway_streams", dimensions: [("direction", "published")])

    package init() {}

    /// The sessions of this role that are open now.
    func open(_ role: Session.Role) -> Meter {
        switch role {
        case .device: devices
        case .app: apps
        case .admin: admins
        }
    }

    /// A connection has more streams than before, or fewer.
    func streamsChanged(from before: (played: Int, published: Int), to now: (played: Int, published: Int)) {
        if now.played != before.played { played.increment(by: Double(now.played - before.played)) }
        if now.published != before.published { published.increment(by: Double(now.published - before.published)) }
    }

    /// Connections that this side closed, by the number of the reason.
    package func closed(code: Int32) {
        Counter(label: "apus_gateway_closed_total", dimensions: [("code", "\(code)")]).increment()
    }

    /// Requests that were refused, by the number of the reason.
    package func refused(code: Int32) {
        Counter(label: "apus_gateway_refused_total", dimensions: [("code", "\(code)")]).increment()
    }
}

package import CoreMetrics

/// What the client door counts.
package struct GatewayMetrics: Sendable {
    /// Connections that are open now, in any state.
    package let connections = Meter(label: "apus_gateway_connections")
    /// Connections accepted.
    package let accepted = Counter(label: "apus_gateway_accepted_total")
    /// Sessions opened.
    package let sessions = Counter(label: "apus_gateway_sessions_total")
    /// Bytes that came in.
    package let bytesIn = Counter(label: "apus_gateway_bytes_in_total")

    package init() {}

    /// Connections that this side closed, by the number of the reason.
    package func closed(code: Int32) {
        Counter(label: "apus_gateway_closed_total", dimensions: [("code", "\(code)")]).increment()
    }

    /// Requests that were refused, by the number of the reason.
    package func refused(code: Int32) {
        Counter(label: "apus_gateway_refused_total", dimensions: [("code", "\(code)")]).increment()
    }
}

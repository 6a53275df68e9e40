import ApusWire
import CoreMetrics

/// The transport's metrics.
struct TransportMetrics: Sendable {
    /// Links refused or closed because of a fault of the peer, by reason.
    private let rejected: [RejectReason: Counter]
    /// Calls and tells that were refused at a limit (10007).
    let overloaded = Counter(label: "apus_transport_overloaded_total")
    /// Calls whose deadline passed (10005).
    let deadlineExceeded = Counter(label: "apus_transport_deadline_exceeded_total")
    /// Established links, dialled by this node, that were lost.
    let linksLost = Counter(label: "apus_transport_links_lost_total")

    /// Listeners that closed by themselves and were opened again.
    let listenersLost = Counter(label: "apus_transport_listeners_lost_total")

    /// Connections between two other nodes that this node forwards now.
    let forwarded = Gauge(label: "apus_transport_forwarded_connections")
    /// Bytes forwarded between other nodes.
    let forwardedBytes = Counter(label: "apus_transport_forwarded_bytes_total")

    init() {
        rejected = Dictionary(
            uniqueKeysWithValues: RejectReason.allCases.map {
                ($0, Counter(label: "apus_transport_rejected_total", dimensions: [("reason", $0.rawValue)]))
            })
    }

    func countRejected(_ reason: RejectReason) { rejected[reason]?.increment() }
}

import CoreMetrics

/// The heartbeat thread's meters.
struct HeartbeatMetrics: Sendable {
    let sent = Counter(label: "apus_heartbeat_sent_total")
    let received = Counter(label: "apus_heartbeat_received_total")
    /// Datagrams that the system did not take from this node, by a firewall's rule for instance.
    let refused = Counter(label: "apus_heartbeat_refused_total")
    /// Sockets opened anew after an error.
    let reopened = Counter(label: "apus_heartbeat_reopened_total")
    /// Datagrams that the kernel dropped because this node did not read them in time, since the socket was opened.
    let dropped = Gauge(label: "apus_heartbeat_dropped")
    /// How the thread is scheduled: 2 at real-time priority, 1 with a better niceness, 0 as any other.
    let scheduling = Gauge(label: "apus_heartbeat_scheduling")
    /// How late the thread was lately, at its worst, in seconds.
    let lateness = Gauge(label: "apus_heartbeat_lateness_seconds")
    /// Datagrams without effect, by reason.
    private let ignored: [HeartbeatFault: Counter]

    init() {
        ignored = Dictionary(
            uniqueKeysWithValues: HeartbeatFault.allCases.map {
                ($0, Counter(label: "apus_heartbeat_ignored_total", dimensions: [("reason", $0.rawValue)]))
            })
    }

    func countIgnored(_ fault: HeartbeatFault) { ignored[fault]?.increment() }
}

import CoreMetrics

/// The metrics of the heartbeat thread.
struct HeartbeatMetrics: Sendable {
    let sent = Counter(label: "apus_heartbeat_sent_total")
    let received = Counter(label: "apus_heartbeat_received_total")
    /// Datagrams that the system refused to send, for example because of a firewall rule.
    let refused = Counter(label: "apus_heartbeat_refused_total")
    /// Sockets opened again after an error.
    let reopened = Counter(label: "apus_heartbeat_reopened_total")
    /// Datagrams that the kernel dropped since the socket was opened, because this node did not read them in time.
    let dropped = Gauge(label: "apus_heartbeat_dropped")
    /// The thread's scheduling: 2 is real-time priority, 1 a raised niceness, 0 the default.
    let scheduling = Gauge(label: "apus_heartbeat_scheduling")
    /// The greatest recent lateness of the thread, in seconds.
    let lateness = Gauge(label: "apus_heartbeat_lateness_seconds")
    /// Datagrams that were ignored, by reason.
    private let ignored: [HeartbeatFault: Counter]

    init() {
        ignored = Dictionary(
            uniqueKeysWithValues: HeartbeatFault.allCases.map {
                ($0, Counter(label: "apus_heartbeat_ignored_total", dimensions: [("reason", $0.rawValue)]))
            })
    }

    func countIgnored(_ fault: HeartbeatFault) { ignored[fault]?.increment() }
}

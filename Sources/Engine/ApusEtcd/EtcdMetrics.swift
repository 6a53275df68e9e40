import ApusCore
import ApusStorage
import CoreMetrics

/// The metrics of the ownership store in etcd.
struct EtcdMetrics: Sendable {
    /// What a call does; the label of its duration.
    enum Call: String, Sendable {
        case read, swap, revision, lease, leases
    }

    /// The duration of a call with all its attempts, also of one that failed.
    func ended(_ call: Call, after time: Duration) {
        CoreMetrics.Timer(label: "apus_etcd_call_seconds", dimensions: [("call", call.rawValue)])
            .recordNanoseconds(time.nanoseconds)
    }

    /// An attempt failed. The call may have succeeded at another endpoint.
    func failed(_ kind: EtcdFailure.Kind) {
        Counter(label: "apus_etcd_failures_total", dimensions: [("kind", kind.rawValue)]).increment()
    }

    /// The watch is opened again.
    func restarted(_ reason: EtcdWatchStateMachine.Restart) {
        Counter(label: "apus_etcd_watch_restarts_total", dimensions: [("reason", reason.rawValue)]).increment()
    }

    /// The endpoint is in use for calls, or no longer.
    func uses(_ endpoint: EtcdEndpoint, _ isUsed: Bool) {
        Gauge(label: "apus_etcd_endpoint_in_use", dimensions: [("endpoint", "\(endpoint)")]).record(isUsed ? 1 : 0)
    }
}

import CoreMetrics

/// The metrics of timers. They count events where these are published, so one that is published again after the death
/// of a node counts twice.
///
/// Isolation: any task.
struct TimerMetrics: Sendable {
    private let set = Counter(label: "apus_timers_set_total")
    private let rung = Counter(label: "apus_timers_rung_total")
    private let missed = Counter(label: "apus_timers_missed_total")
    private let late = CoreMetrics.Timer(label: "apus_timers_late_seconds")

    /// Clients were notified of an event, at a time in Unix milliseconds.
    func delivered(_ event: TimerEvent, at now: Int64) {
        switch event.kind {
        case .started: set.increment()
        case .ringing:
            rung.increment()
            late.recordMilliseconds(max(0, now - event.timer.dueMs))
        case .missed: missed.increment()
        case .updated, .stopped, .cancelled, .unspecified, .UNRECOGNIZED: break
        }
    }
}

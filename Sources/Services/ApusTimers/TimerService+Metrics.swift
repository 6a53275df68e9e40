package import ApusCore

extension TimerService {
    package static let metrics: [MetricDescription] = [
        .counter("apus_timers_set_total", "timers", "Timers and alarm clocks that were set."),
        .counter("apus_timers_rung_total", "timers", "Timers and alarm clocks that have begun to ring."),
        .counter(
            "apus_timers_missed_total", "timers",
            "Timers and alarm clocks that were too late to ring after no node was up."),
        .histogram(
            "apus_timers_late_seconds", "seconds",
            "Time from when a timer was due until its clients were notified that it rings."),
    ]
}

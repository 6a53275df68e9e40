import CoreMetrics

/// The metrics of recordings.
///
/// Isolation: any task.
struct RecordingMetrics: Sendable {
    let channels = Gauge(label: "apus_recordings_channels")
    let frames = Counter(label: "apus_recordings_frames_total")
    let lost = Counter(label: "apus_recordings_frames_lost_total")
    let refused = Counter(label: "apus_recordings_frames_refused_total")
    let dropped = Counter(label: "apus_recordings_frames_dropped_total")
    let segments = Counter(label: "apus_recordings_segments_total")
    let bytes = Counter(label: "apus_recordings_segment_bytes_total")
    let purged = Counter(label: "apus_recordings_purged_bytes_total")
    let failures = Counter(label: "apus_recordings_seal_failures_total")
    let logBytes = Gauge(label: "apus_recordings_log_bytes")
    let unsealed = Gauge(label: "apus_recordings_unsealed_seconds")
    let writeTime = CoreMetrics.Timer(label: "apus_recordings_write_seconds")
}

package import ApusCore

extension RecordingService {
    package static let metrics: [MetricDescription] = [
        .gauge("apus_recordings_channels", "channels", "Channels whose frames this node logs."),
        .counter("apus_recordings_frames_total", "frames", "Frames that this node has taken for its log."),
        .counter(
            "apus_recordings_frames_lost_total", "frames",
            "Frames that a channel did not hold any more when this node logged it."),
        .counter(
            "apus_recordings_frames_refused_total", "frames",
            "Frames that the log had no room for (`recordings.log_bytes_max`), or could not write."),
        .counter(
            "apus_recordings_frames_dropped_total", "frames",
            "Frames that are not kept because an hour of their channel has 2,000 segments already."),
        .counter("apus_recordings_segments_total", "segments", "Segments that this node has stored."),
        .counter("apus_recordings_segment_bytes_total", "bytes", "Their bytes."),
        .counter("apus_recordings_purged_bytes_total", "bytes", "Bytes of segments that this node has deleted."),
        .counter(
            "apus_recordings_seal_failures_total", "attempts",
            "Attempts to store segments that failed and are repeated."),
        .gauge("apus_recordings_log_bytes", "bytes", "Bytes of the log that are not in segments yet."),
        .gauge(
            "apus_recordings_unsealed_seconds", "seconds",
            "Age of the oldest frame in the log of a channel of this node that is not in a segment yet."),
        .histogram("apus_recordings_write_seconds", "seconds", "Time of a write of the log with its sync."),
    ]
}

package import ApusCore

extension DiagnosisService {
    package static let metrics: [MetricDescription] = [
        .counter("apus_diagnosis_reports_total", "reports", "Reports of apps about streams that they play."),
        .counter(
            "apus_diagnosis_dropped_total", "sessions",
            "Play sessions that were dropped because a device, or an account, had too many."),
        .counter("apus_diagnosis_requests_total", "requests", "Requests for a diagnosis."),
    ]
}

package import ApusCore

extension FirmwareService {
    package static let metrics: [MetricDescription] = [
        .counter("apus_firmware_read_bytes_total", "bytes", "Bytes of firmware that devices have read."),
        .counter("apus_firmware_uploaded_bytes_total", "bytes", "Bytes of firmware that integrators have uploaded."),
        .counter(
            "apus_firmware_outcomes_total", "devices", [.init("outcome", "`installed`, `failed`")],
            "Outcomes of updates that devices have reported, repetitions not included."),
        .counter("apus_firmware_stopped_total", "versions", "Roll-outs that were stopped by their failures."),
        .counter(
            "apus_firmware_refused_total", "requests",
            "Requests about firmware that reached a bound of bytes, versions, groups or checks (10007)."),
    ]
}

package import ApusCore

extension CallService {
    package static let metrics: [MetricDescription] = [
        .counter("apus_calls_placed_total", "calls", "Calls that clients of this node have placed."),
        .counter("apus_calls_notices_total", "events", "Notices of calls that this node has sent to clients."),
        .gauge("apus_calls_connections", "connections", "Connections of clients that take calls."),
        .gauge("apus_calls_media_clients", "clients", "Clients of this node that may publish and play in a call."),
        .counter(
            "apus_push_sent_total", "messages",
            [.init("result", "`accepted` or `refused` by the webhook, `expired`, `cancelled` or `dropped`")],
            "Push notifications of calls that have ended, by how."),
        .counter("apus_push_attempts_failed_total", "attempts", "Requests to the webhook that it did not accept."),
        .gauge("apus_push_waiting", "messages", "Push notifications that the webhook has not answered yet."),
    ]
}

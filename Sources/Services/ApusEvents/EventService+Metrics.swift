package import ApusCore

extension EventService {
    package static let metrics: [MetricDescription] = [
        .counter("apus_events_published_total", "events", "Events that went to the topics of accounts."),
        .counter(
            "apus_hook_events_total", "events",
            [
                .init(
                    "result",
                    "`written`; `delivered`, `put_aside` (refused by the endpoint), `expired` (`hooks.keep_time`) or "
                        + "`dropped` (`hooks.queue_max`, `hooks.queue_bytes_max`, `hooks.failed_max`)"
                )
            ],
            "Events for the hooks of integrators, by what became of them."),
        .counter(
            "apus_hook_attempts_failed_total", "attempts", "Requests with events that an endpoint did not accept."),
        .counter(
            "apus_server_messages_total", "messages",
            [.init("result", "`answered`, `failed` (21002, 21005), or `refused` because too many waited (10007)")],
            "Raw data of apps and devices for servers of integrators, by what became of them."),
    ]
}

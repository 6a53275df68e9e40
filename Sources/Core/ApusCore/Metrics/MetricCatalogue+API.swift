extension MetricCatalogue {
    private static let request = MetricDescription.Label("request", "name of the request, such as `devices.list`")

    /// Requests and events of clients, over the native protocol, WebSocket and REST.
    static let api: [MetricDescription] = [
        .counter(
            "apus_api_requests_total", "requests", [request, .init("outcome", "`answered`, `failed`")],
            "Requests of clients that were carried out."),
        .histogram(
            "apus_api_request_seconds", "seconds", [request],
            "Time from the start of a request's handler to its answer."),
        .counter(
            "apus_api_quota_refused_total", "requests",
            "Requests that were refused because the account asked too often (10007)."),
        .counter("apus_api_audited_total", "requests", "Requests that are for the audit log."),
        .counter(
            "apus_api_audit_left_out_total", "requests",
            "Of them, refusals and changes by apps and devices that have no line, because there were too many."),
        .gauge("apus_http_websockets", "connections", "WebSockets that are open."),
        .gauge(
            "apus_http_websocket_streams", "streams", [.init("direction", "`played` or `published`")],
            "Streams that clients play and publish over WebSockets."),
        .counter(
            "apus_http_websockets_refused_total", "connections",
            "WebSockets that were refused because of `http.websockets_max` or plain HTTP."),
        .gauge("apus_evs_replies", "replies", "Spoken replies that embedded voice devices can fetch."),
        .gauge("apus_evs_reply_bytes", "bytes", "The bytes that these replies may have."),
        .counter(
            "apus_evs_replies_forgotten_total", "replies",
            "Replies that made room because of `http.evs_replies_max` or `http.evs_reply_bytes_max`."),
        .counter(
            "apus_evs_requests_refused_total", "requests",
            "Requests of embedded voice devices that were refused because of `http.evs_requests_max` (10007)."),
        .counter(
            "apus_evs_sound_dropped_bytes_total", "bytes",
            "Sound of embedded voice devices beyond the bounds of a sentence."),
        .gauge("apus_topics", "topics", "Topics, except presence, to which clients of this node are subscribed."),
        .gauge("apus_topic_subscriptions", "subscriptions", "Subscriptions of clients of this node to these topics."),
        .counter("apus_topic_published_total", "events", "Events that this node published to topics."),
        .counter("apus_topic_delivered_total", "events", "Events that were handed to connections of clients."),
        .counter(
            "apus_topic_reads_total", "reads",
            "Questions to the owners of topics for events that a client had not got."),
        .counter(
            "apus_topic_gaps_total", "events",
            "Events for this node's clients after one that was never published, or came too late to be in order."),
        .counter("apus_trace_spans_exported_total", "spans", "Spans that the collector of traces took."),
        .counter(
            "apus_trace_spans_dropped_total", "spans",
            "Spans that were not sent because of `tracing.queue_max`, or because the collector did not take them."),
        .counter(
            "apus_trace_exports_failed_total", "requests",
            "Requests to the collector of traces that failed, each attempt counted."),
    ]
}

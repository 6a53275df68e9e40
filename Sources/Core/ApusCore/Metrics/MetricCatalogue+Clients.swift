extension MetricCatalogue {
    static let sessions: [MetricDescription] = [
        .counter(
            "apus_sessions_refused_total", "requests",
            "Sessions and subscriptions that were refused because a bound was reached (10007)."),
        .gauge("apus_sessions_revocations", "revocations", "Revocations that are in effect."),
        .counter(
            "apus_accounts_refused_total", "requests",
            "Requests of integrators that reached a bound of keys, users or revocations (10007)."),
        .counter(
            "apus_sessions_revoked_total", "sessions",
            "Sessions that a revocation ended, and sign-ins that a revocation refused."),
        .gauge(
            "apus_sessions_unwritten", "identities",
            "Identities whose newest client waits to be written to the records."),
        .counter(
            "apus_sessions_unwritten_left_out_total", "identities",
            "Identities whose newest client was not written because `sessions.unwritten_max` of them waited."),
    ]

    static let channels: [MetricDescription] = [
        .gauge("apus_channels", "channels", "Channels that are published at this node or copied to it."),
        .gauge(
            "apus_channels_watched", "channels",
            "Channels that only viewers and other nodes request from this node."),
        .gauge(
            "apus_channel_receivers", "receivers",
            "Receivers that take frames from this node: viewers, edges and standbys."),
        .counter("apus_channel_frames_in_total", "frames", "Frames that came from publishers and other nodes."),
        .counter("apus_channel_bytes_out_total", "bytes", "Bytes that were sent to receivers."),
        .counter(
            "apus_channel_frames_skipped_total", "frames",
            "Frames that were left out because a receiver was too slow."),
        .counter(
            "apus_channel_frames_bad_total", "frames",
            "Frames that could not be read; the connection that sent one is closed."),
        .counter(
            "apus_channel_promotions_total", "channels",
            "Channels of which this node became the primary in place of another node."),
        .counter(
            "apus_channel_copies_opened_total", "copies",
            "Copies of channels that were opened at standbys and candidates."),
        .gauge("apus_channel_ring_bytes", "bytes", "Bytes of frames that the channels of this node keep."),
        .counter(
            "apus_channel_rings_shortened_total", "rings",
            "Rings that were shortened because the node was near `channels.ring_bytes_total_max`."),
        .gauge(
            "apus_channel_link_waiting_bytes", "bytes",
            "Bytes of publishers' frames that wait for links to other nodes."),
        .counter(
            "apus_channels_refused_total", "channels",
            "Channels and publishers that were refused because the node or the account has its share (10007)."),
    ]

    static let gateway: [MetricDescription] = [
        .gauge("apus_gateway_connections", "connections", "Client connections that are open, in any state."),
        .gauge(
            "apus_gateway_open_sessions", "sessions", [.init("role", "`device`, `app`, `admin`")],
            "Sessions that are open at this node's client listener."),
        .gauge(
            "apus_gateway_streams", "streams", [.init("direction", "`played` (viewers), `published`")],
            "Streams that clients of this node have open."),
        .gauge(
            "apus_gateway_reconnect_spread_seconds", "seconds",
            "The time over which the clients of this node without streams spread their connects if it dies."),
        .counter("apus_gateway_accepted_total", "connections", "Client connections that were accepted."),
        .counter("apus_gateway_sessions_total", "sessions", "Sessions that were opened: sign-ins that succeeded."),
        .counter(
            "apus_gateway_closed_total", "connections", [.init("code", "error number")],
            "Client connections that this node closed, and sign-ins that it refused."),
        .counter(
            "apus_gateway_refused_total", "requests", [.init("code", "error number")],
            "Requests of clients that this node refused."),
        .counter("apus_gateway_bytes_in_total", "bytes", "Bytes that clients sent, after decryption."),
    ]

    static let http: [MetricDescription] = [
        .counter(
            "apus_http_requests_total", "requests",
            [.init("route", "path with its parameters by name, or `none`"), .init("status", "HTTP status")],
            "HTTP requests that were answered."),
        .histogram(
            "apus_http_request_seconds", "seconds",
            [.init("route", "path with its parameters by name, or `none`")],
            "Time from the head of an HTTP request to the head of its answer."),
        .gauge("apus_http_requests_running", "requests", "Requests over REST that are carried out."),
        .counter(
            "apus_http_requests_refused_total", "requests",
            "Requests over REST that were refused because the account, or the operators, had too many in progress "
                + "(10007)."),
        .gauge("apus_http_downloads", "files", "Files of recordings that are being sent to clients."),
        .counter(
            "apus_http_downloads_refused_total", "files",
            "Files that were refused because of `http.downloads_max` or `http.downloads_per_account_max` (10007)."),
        .counter(
            "apus_http_downloads_failed_total", "files",
            "Files that ended early: they could not be read, or the right to them was lost."),
        .counter("apus_http_download_bytes_total", "bytes", "Bytes of files that were sent to clients."),
        .counter(
            "apus_http_displaced_total", "connections",
            "HTTP connections that were closed to make room for new ones."),
        .counter(
            "apus_http_late_total", "connections",
            "HTTP connections that were closed after `http.request_timeout`."),
    ]
}

extension MetricCatalogue {
    static let relay: [MetricDescription] = [
        .gauge("apus_relay_allocations", "allocations", "Allocations that exist."),
        .counter("apus_relay_allocations_total", "allocations", "Allocations that were created."),
        .counter(
            "apus_relay_allocations_ended_total", "allocations",
            [
                .init(
                    "reason",
                    "`deleted`, `expired`, `stream-closed`, `moved-away`, `closed-by-node`, `shutdown`")
            ],
            "Allocations that ended."),
        .counter(
            "apus_relay_allocations_refused_total", "allocations", [.init("reason", "`ports`, `descriptors`")],
            "Allocations that were refused (508) for lack of a resource."),
        .counter(
            "apus_relay_packets_total", "packets",
            [.init("direction", "`up` (from clients to peers), `down`")], "Packets of payload that were relayed."),
        .counter(
            "apus_relay_bytes_total", "bytes",
            [.init("direction", "`up` (from clients to peers), `down`")], "Bytes of payload that were relayed."),
        .counter(
            "apus_relay_dropped_total", "packets",
            [
                .init(
                    "reason",
                    "`not_permitted`, `unbound_channel`, `unknown_flow`, `malformed`, `slow_stream`, "
                        + "`refused_stream`, `quota` (of a user), `node_quota`, `send` (the kernel accepted no more), "
                        + "`ring` (the control thread did not keep up with allocations), `unauthenticated` (nor with "
                        + "other clients), `too_long` (a STUN message), `answer` (its client has disconnected), "
                        + "`event`")
            ],
            "Packets, messages and events that were dropped."),
        .gauge("apus_relay_connections", "connections", "Client connections over TCP and TLS."),
        .gauge("apus_relay_dtls_sessions", "sessions", "DTLS sessions of clients."),
        .counter(
            "apus_relay_handshakes_total", "handshakes",
            [.init("result", "`done`, `failed` (or aborted by the client), `late`, `displaced` (by newer ones)")],
            "TLS and DTLS handshakes that ended."),
        .gauge(
            "apus_relay_unauthenticated", "connections",
            "Connections and DTLS sessions on which no client has authenticated."),
        .counter(
            "apus_relay_unauthenticated_ended_total", "connections",
            [.init("result", "`late`, `displaced` (by newer ones)")],
            "Connections and DTLS sessions that ended before a client had authenticated."),
        .counter(
            "apus_relay_limited_total", "answers",
            [
                .init(
                    "answer",
                    "`challenge` (401, 438, 400), `binding`, `proof` (requests that were not checked, because their "
                        + "source had sent too many wrong credentials)")
            ],
            "Answers that were withheld because their source exceeded its limit."),
        .counter(
            "apus_relay_over_quota_total", "requests", [.init("quota", "`allocations` (486), `new_peers` (508)")],
            "Requests that were refused because their user exceeds a quota."),
        .gauge("apus_relay_peer_connections", "connections", "TCP connections to peers (RFC 6062)."),
        .counter(
            "apus_relay_peer_connections_total", "connections",
            [.init("result", "`joined` (with a client's), `failed`, `refused` (no permission)")],
            "TCP connections to peers that were joined with a client's, failed or were refused."),
        .counter(
            "apus_relay_peer_errors_total", "errors",
            [.init("result", "`told` (to the client), `limited` (over the limit of the second), `ignored`")],
            "ICMP errors of packets to peers."),
        .gauge("apus_relay_mirrors", "allocations", "Allocations of other nodes whose state this node keeps."),
        .gauge(
            "apus_relay_connected_flows", "channels",
            "Channels that have a socket connected to their peer because they carry much traffic."),
        .counter(
            "apus_relay_short_circuited_total", "packets",
            "Packets between two allocations of one thread, which did not pass through the kernel."),
        .counter(
            "apus_relay_unsegmented_total", "batches",
            "Batches of packets that the kernel refused to segment and that were sent one by one."),
        .counter("apus_relay_rests_total", "pauses", "Pauses of busy threads, during which packets accumulate."),
    ]

    static let process: [MetricDescription] = [
        .gauge(
            "apus_node_condition", "0 or 1", [.init("type", "type of the condition, as in `/healthz`")],
            "1 while the node has the condition; a condition that never occurred has no series."),
        .gauge(
            "apus_certificate_days_left", "days",
            [.init("certificate", "`node`, `authority`, `clients`, `http`, `relay`, `etcd`")],
            "Days until a certificate of this node expires; negative afterwards."),
        .counter(
            "apus_node_reloads_total", "reloads",
            [.init("outcome", "`applied`, `refused` (nothing has changed; the log has the reason)")],
            "Requests by SIGHUP to read keys and certificates again."),
        .counter(
            "apus_listener_refused_total", "connections",
            [
                .init("listener", "`clients`, `nodes`, `http`, `relay`"),
                .init("reason", "`process_descriptors`, `system_descriptors`, `memory`; for the relay `descriptors`"),
            ],
            "Connections that were refused because the operating system had no descriptor or memory for them."),
        .counter(
            "apus_log_lines_left_out_total", "lines",
            "Log lines that were suppressed because unauthenticated clients can trigger them in any number."),
        .counter("process_cpu_seconds_total", "seconds", "User and system CPU time of the process."),
        .gauge("process_resident_memory_bytes", "bytes", "Resident memory of the process."),
        .gauge("process_open_fds", "files", "Open files of the process."),
        .gauge("process_max_fds", "files", "Limit of open files of the process."),
    ]
}

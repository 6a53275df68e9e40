extension MetricCatalogue {
    static let cluster: [MetricDescription] = [
        .gauge("apus_cluster_members", "nodes", "Members of the cluster that are up or draining in this node's map."),
        .gauge(
            "apus_cluster_watched_peers", "nodes",
            "Nodes that this node exchanges heartbeats with: all others, or its watchers in a large cluster."),
        .gauge("apus_cluster_map_revision", "revision", "Revision of the newest ownership map that this node has."),
        .gauge("apus_cluster_members_cordoned", "nodes", "Members of this node's map that get no new shards."),
        .gauge("apus_cluster_map_changes", "changes", "Changes that the map records, at most 128."),
        .gauge("apus_cluster_shards_owned", "shards", "Shards that this node owns."),
        .gauge("apus_cluster_shards_standby", "shards", "Shards for which this node is the standby."),
        .counter(
            "apus_cluster_term_changes_total", "shards",
            "Shards whose term rose in the maps that this node received: each has a new owner."),
        .gauge(
            "apus_cluster_store_reachable", "0 or 1",
            "1 while the ownership store answers and is the store that the node has seen before."),
        .counter(
            "apus_cluster_store_failures_total", "operations", "Reads and swaps of the ownership store that failed."),
        .counter("apus_cluster_swaps_lost_total", "swaps", "Swaps of the map that another node won; each is retried."),
        .counter("apus_cluster_suspicions_total", "suspicions", "Peers that this node began to suspect."),
        .counter(
            "apus_cluster_suspicions_discarded_total", "suspicions",
            "Suspicions that this node withdrew because its own heartbeat thread was late."),
        .counter(
            "apus_cluster_deaths_confirmed_total", "deaths",
            "Peers whose death this node confirmed after all probes had failed."),
        .counter(
            "apus_cluster_paths_cut_total", "paths",
            "Paths to peers that this node found cut while another node reached both, and changes of that node."),
        .counter(
            "apus_cluster_permission_lapses_total", "lapses",
            "Times at which too few nodes had promised this node that they would not declare it dead, so that it held "
                + "its answers."),
        .counter(
            "apus_cluster_maps_confirmed_total", "maps",
            "Maps that this node replaced by an equal one before it answered again, since others voted against it or "
                + "it did not run for a while."),
        .counter(
            "apus_cluster_answers_held_total", "answers",
            "Answers of entities with kept state that waited for promises of most nodes."),
        .gauge(
            "apus_cluster_cut_paths", "paths",
            "Peers that this node does not reach directly; its messages to them go through another node."),
        .gauge(
            "apus_cluster_handover_pause_seconds", "seconds",
            "Pause between the starts of planned moves of this node's shards, which grows while the node is late."),
        .counter("apus_cluster_handovers_completed_total", "shards", "Planned moves of shards that completed."),
        .counter(
            "apus_cluster_handovers_abandoned_total", "shards",
            "Planned moves of shards that were abandoned; the owner kept the shard."),
        .gauge(
            "apus_clock_offset_seconds", "seconds", [.init("peer", "name of the node")],
            "How far the wall clock of a peer is ahead of this node's clock."),
    ]

    static let etcd: [MetricDescription] = [
        .histogram(
            "apus_etcd_call_seconds", "seconds", [.init("call", "`read`, `swap`, `revision` (a poll)")],
            "Duration of a call to the ownership store in etcd, with all its attempts."),
        .counter(
            "apus_etcd_failures_total", "attempts",
            [
                .init(
                    "kind",
                    "`unreachable`, `timeout`, `no_leader`, `token` (unknown or old), `denied` (user, password or "
                        + "permission), `full`, `refused`, `failed` (at the member, for example a change of the "
                        + "leader), `cancelled`")
            ],
            "Attempts at an endpoint of etcd that failed; the call may have succeeded at another endpoint."),
        .counter(
            "apus_etcd_watch_restarts_total", "watches",
            [
                .init(
                    "reason",
                    "`lost` (connection), `canceled` (by etcd), `compacted`, `went_back` (older revision), `silent`"
                )
            ],
            "Watches of the ownership store in etcd that ended and were opened again."),
        .gauge(
            "apus_etcd_endpoint_in_use", "0 or 1", [.init("endpoint", "address of a member of etcd")],
            "1 while the node sends its calls to this endpoint of etcd."),
    ]

    static let heartbeats: [MetricDescription] = [
        .counter("apus_heartbeat_sent_total", "datagrams", "Heartbeat datagrams that were sent."),
        .counter("apus_heartbeat_received_total", "datagrams", "Heartbeat datagrams that were received and accepted."),
        .counter(
            "apus_heartbeat_refused_total", "datagrams",
            "Heartbeat datagrams that the operating system refused to send, for example because of a firewall rule."),
        .counter(
            "apus_heartbeat_ignored_total", "datagrams",
            [
                .init(
                    "reason",
                    "`malformed`, `version`, `cluster` (another cluster), `forged` (wrong tag), `sender` (not in "
                        + "the map), `revoked` (the node's certificate), `replayed`")
            ],
            "Heartbeat datagrams that had no effect."),
        .counter("apus_heartbeat_reopened_total", "sockets", "Heartbeat sockets that were reopened after an error."),
        .gauge(
            "apus_heartbeat_dropped", "datagrams",
            "Heartbeat datagrams that the kernel dropped since the socket was opened: they were not read in time."
        ),
        .gauge(
            "apus_heartbeat_scheduling", "level",
            "Scheduling of the heartbeat thread: 2 for real-time priority, 1 for a better niceness, 0 for neither."),
        .gauge(
            "apus_heartbeat_lateness_seconds", "seconds",
            "Largest delay of the heartbeat thread behind its schedule in the recent past."),
    ]

    static let transport: [MetricDescription] = [
        .counter(
            "apus_transport_links_lost_total", "links",
            "Established links, dialled by this node, that were lost."),
        .counter(
            "apus_transport_listeners_lost_total", "listeners",
            "Listeners for other nodes that closed by themselves and were reopened."),
        .counter(
            "apus_transport_rejected_total", "links",
            [
                .init(
                    "reason",
                    "`tls`, `certificate`, `revoked`, `name` (not that of the certificate), `cluster`, `version`, "
                        + "`incarnation`, `malformed`, `oversized`, `truncated`, `timeout`, `crowded`, `silent`, "
                        + "`refused` (by the other side)")
            ],
            "Links that were refused or closed because of a fault of the other side."),
        .gauge(
            "apus_transport_forwarded_connections", "connections",
            "Connections between two other nodes that this node forwards, because their path is cut."),
        .counter(
            "apus_transport_forwarded_bytes_total", "bytes", "Bytes that this node forwarded between other nodes."),
        .counter(
            "apus_transport_overloaded_total", "calls",
            "Calls and one-way messages to other nodes that were refused because a bound was reached (10007)."),
        .counter(
            "apus_transport_deadline_exceeded_total", "calls",
            "Calls to other nodes whose deadline passed (10005)."),
    ]
}

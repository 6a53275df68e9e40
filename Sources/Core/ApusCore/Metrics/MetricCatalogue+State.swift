extension MetricCatalogue {
    static let entities: [MetricDescription] = [
        .gauge("apus_entities_active", "entities", "Entities that are active on this node."),
        .counter("apus_entities_activated_total", "entities", "Entities that were activated on this node."),
        .counter(
            "apus_entities_refused_total", "entities",
            "Entities that were not activated because the node has as many as it may have, 200,000 (10007)."),
        .counter("apus_reminders_delivered_total", "reminders", "Reminders that their entities have carried out."),
        .counter("apus_reminders_failed_total", "deliveries", "Deliveries of reminders that failed and are retried."),
        .counter(
            "apus_reminder_reads_failed_total", "reads", "Reads of due reminders from the records that failed."),
        .gauge(
            "apus_reminders_held", "reminders", [.init("durability", "`replicated`, `recorded`")],
            "Reminders that are in memory because they are due soon."),
        .counter(
            "apus_reminders_unreadable_total", "records",
            "Records that were skipped because they contain no reminder that this release can read."),
        .counter(
            "apus_outbox_delivered_total", "entries",
            "Outbox entries that were delivered; the events of properties are among them."),
        .counter(
            "apus_outbox_failed_total", "deliveries", "Deliveries of outbox entries that failed and are repeated."),
        .gauge(
            "apus_outbox_held", "entries",
            "Outbox entries of this node's shards that are not delivered yet; changes are refused from 10,000 or "
                + "64 MiB on."),
        .counter(
            "apus_outbox_refused_total", "changes",
            "Changes that were refused because 32 entries of the entity wait for their delivery, or too many of the "
                + "node (10007)."),
        .counter("apus_outbox_reads_failed_total", "reads", "Reads of the outboxes from the records that failed."),
        .counter(
            "apus_outbox_unreadable_total", "records",
            "Records that were skipped because they contain no outbox entry that this release can read."),
    ]

    static let replication: [MetricDescription] = [
        .counter(
            "apus_replication_changes_total", "changes", "Changes of entities that this node replicated as owner."),
        .counter(
            "apus_replication_acknowledged_alone_total", "changes",
            "Changes that were acknowledged by this node alone because the map named no standby."),
        .counter(
            "apus_replication_refused_total", "changes",
            "Changes that were refused: they exceed a bound (10002, 10007) or carry an outdated term (10013)."),
        .counter("apus_replication_messages_total", "messages", "Replication messages that were sent to other nodes."),
        .counter(
            "apus_replication_batches_total", "batches",
            "Batches in replication messages; each contains the changes of one shard."),
        .counter("apus_replication_bytes_total", "bytes", "Bytes of replication messages that were sent."),
        .counter(
            "apus_replication_messages_lost_total", "messages",
            "Replication messages that were not answered in time or could not be sent."),
        .counter(
            "apus_replication_streams_restarted_total", "streams",
            "Replication streams that restarted at the request of their standby."),
        .counter(
            "apus_replication_batches_overloaded_total", "batches",
            "Batches from other nodes that were refused because this node has no room for copies."),
        .counter(
            "apus_replication_batches_stray_total", "batches",
            "Batches from nodes that do not own the shard under its current term in this node's map."),
        .counter(
            "apus_replication_confirmations_timed_out_total", "changes",
            "Changes whose caller received 10005 because no confirmation arrived in time."),
        .counter("apus_replication_promotions_total", "shards", "Shards that this node took over as their standby."),
        .counter(
            "apus_replication_promotions_incomplete_total", "shards",
            "Shards that this node took over without a complete copy; acknowledged changes may be missing."),
        .counter(
            "apus_replication_malformed_total", "messages",
            "Replication messages from other nodes that could not be read."),
        .gauge("apus_replication_waiting", "changes", "Changes that are not acknowledged yet."),
        .gauge("apus_replication_waiting_bytes", "bytes", "Bytes of the changes that are not acknowledged yet."),
        .gauge("apus_replication_shards", "shards", "Shards that this node replicates as their owner."),
        .gauge(
            "apus_replication_shards_alone", "shards",
            "Shards whose changes this node acknowledges alone because the map names no standby."),
        .gauge(
            "apus_replication_second_standbys_behind", "shards",
            "Shards of this node whose second standby does not have a complete copy."),
        .gauge("apus_replication_shard_entities_max", "entities", "Entities in the largest shard of this node."),
        .gauge(
            "apus_replication_shard_bytes_max", "bytes", "Bytes of entity states in the largest shard of this node."),
        .gauge(
            "apus_replication_silent_peers", "nodes", "Nodes that did not answer the last message in time."),
        .gauge("apus_replication_entities", "entities", "Entities whose states this node holds as owner."),
        .gauge(
            "apus_replication_entity_bytes", "bytes", "Bytes of the entity states that this node holds as owner."),
        .gauge("apus_replication_copies", "entities", "Entities whose states this node holds as copies."),
        .gauge("apus_replication_copy_bytes", "bytes", "Bytes of the entity states that this node holds as copies."),
    ]

    static let storage: [MetricDescription] = [
        .counter("apus_records_commits_total", "commits", "Commits of records that became durable."),
        .counter("apus_records_steps_total", "changes", "Changes of records that became durable."),
        .counter(
            "apus_records_conflicts_total", "changes",
            "Changes of records that were refused by a fence (10013) or a condition (10030)."),
        .counter(
            "apus_records_refused_total", "changes",
            "Changes of records that were refused because too many waited or the store is nearly full (10007)."),
        .counter("apus_records_commits_failed_total", "commits", "Commits of records that failed as a whole (10021)."),
        .histogram(
            "apus_records_commit_seconds", "seconds",
            "Duration of a commit of records, including the wait for other processes."),
        .gauge(
            "apus_records_waiting_steps", "changes", "Changes of records that waited for a commit at the last commit."),
        .gauge(
            "apus_records_waiting_bytes", "bytes",
            "Bytes of the changes of records that waited for a commit at the last commit."),
        .gauge("apus_records_log_bytes", "bytes", "Size of the write-ahead log beside the file of records."),
    ]
    static let objects: [MetricDescription] = [
        .counter(
            "apus_objects_operations_total", "operations",
            [
                .init("operation", "`put`, `get`, `head`, `list`, `delete`, `leftovers`"),
                .init("outcome", "`succeeded`, `failed`"),
            ], "Operations of the object store that ended."),
        .histogram(
            "apus_objects_seconds", "seconds",
            [.init("operation", "`put`, `get`, `head`, `list`, `delete`, `leftovers`")],
            "Duration of an operation of the object store, with its wait and all attempts."),
        .counter(
            "apus_objects_bytes_total", "bytes", [.init("direction", "`put`, `get`")],
            "Bytes of objects that were put or read."),
        .counter("apus_objects_retries_total", "requests", "Requests to the S3 server that were repeated."),
        .counter(
            "apus_objects_refused_total", "operations",
            "Operations of the object store that were refused because too many waited (10007)."),
        .gauge(
            "apus_objects_leftovers", "puts",
            "Puts that ended without a result and left parts, as of the last count."),
    ]
}

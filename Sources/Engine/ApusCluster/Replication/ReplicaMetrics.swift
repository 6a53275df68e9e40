import CoreMetrics

/// The metrics of replication.
struct ReplicaMetrics: Sendable {
    private let changes = Counter(label: "apus_replication_changes_total")
    /// Changes that were acknowledged without another node, because the map named no standby.
    private let alone = Counter(label: "apus_replication_acknowledged_alone_total")
    /// Changes that were refused: at a limit (10002, 10007), or under an epoch that has passed (10013).
    private let refused = Counter(label: "apus_replication_refused_total")
    private let messages = Counter(label: "apus_replication_messages_total")
    /// Batches in these messages, one for each shard that had changes.
    private let batches = Counter(label: "apus_replication_batches_total")
    private let bytes = Counter(label: "apus_replication_bytes_total")
    /// Messages that were not answered in time, or could not be sent.
    private let lost = Counter(label: "apus_replication_messages_lost_total")
    /// Streams that were restarted at the request of their target.
    private let restarted = Counter(label: "apus_replication_streams_restarted_total")
    /// Batches of other nodes that were refused for lack of room.
    private let overloaded = Counter(label: "apus_replication_batches_overloaded_total")
    /// Batches of other nodes that were refused because this node's map names another owner or an earlier epoch.
    private let stray = Counter(label: "apus_replication_batches_stray_total")
    /// Callers that received 10005 because no confirmation came in time.
    let timedOut = Counter(label: "apus_replication_confirmations_timed_out_total")
    let promotions = Counter(label: "apus_replication_promotions_total")
    /// Promotions after which acknowledged changes may be missing.
    let promotionsIncomplete = Counter(label: "apus_replication_promotions_incomplete_total")
    /// Messages of other nodes that could not be decoded.
    let malformed = Counter(label: "apus_replication_malformed_total")
    /// Unacknowledged changes, and their bytes.
    private let waiting = Gauge(label: "apus_replication_waiting")
    private let waitingBytes = Gauge(label: "apus_replication_waiting_bytes")
    /// Shards that this node replicates as their owner, and those of them whose changes it acknowledges alone.
    private let shards = Gauge(label: "apus_replication_shards")
    private let shardsAlone = Gauge(label: "apus_replication_shards_alone")
    /// Those whose second standby does not have a complete copy.
    private let secondStandbysBehind = Gauge(label: "apus_replication_second_standbys_behind")
    /// The most entities, and the most bytes, of one shard of this node.
    private let shardEntitiesMax = Gauge(label: "apus_replication_shard_entities_max")
    private let shardBytesMax = Gauge(label: "apus_replication_shard_bytes_max")
    /// Nodes that did not answer this one's last message in time.
    private let silentPeers = Gauge(label: "apus_replication_silent_peers")
    /// Entities whose states this node owns, and their bytes.
    private let entities = Gauge(label: "apus_replication_entities")
    private let entityBytes = Gauge(label: "apus_replication_entity_bytes")
    /// Entities whose states this node holds as copies, and their bytes.
    private let copies = Gauge(label: "apus_replication_copies")
    private let copyBytes = Gauge(label: "apus_replication_copy_bytes")

    /// Adds the counts since the last call.
    func add(_ now: ReplicaOwnerStateMachine.Counts, since before: ReplicaOwnerStateMachine.Counts) {
        changes.increment(by: Int64(clamping: now.changes - before.changes))
        alone.increment(by: Int64(clamping: now.alone - before.alone))
        refused.increment(by: Int64(clamping: now.refused - before.refused))
        messages.increment(by: Int64(clamping: now.messages - before.messages))
        batches.increment(by: Int64(clamping: now.batches - before.batches))
        bytes.increment(by: Int64(clamping: now.bytes - before.bytes))
        lost.increment(by: Int64(clamping: now.lost - before.lost))
        restarted.increment(by: Int64(clamping: now.restarted - before.restarted))
    }

    func add(overloaded count: UInt64, stray strayCount: UInt64) {
        overloaded.increment(by: Int64(clamping: count))
        stray.increment(by: Int64(clamping: strayCount))
    }

    func show(_ survey: ReplicaOwnerStateMachine.Survey) {
        shards.record(Double(survey.openCount))
        shardsAlone.record(Double(survey.aloneCount))
        secondStandbysBehind.record(Double(survey.behindCount))
        shardEntitiesMax.record(Double(survey.shardEntityCountMax))
        shardBytesMax.record(Double(survey.shardByteCountMax))
        silentPeers.record(Double(survey.silentPeerCount))
    }

    func show(
        waiting: (count: Int, byteCount: Int), entities: (count: Int, byteCount: Int),
        copies: (count: Int, byteCount: Int)
    ) {
        self.waiting.record(Double(waiting.count))
        waitingBytes.record(Double(waiting.byteCount))
        self.entities.record(Double(entities.count))
        entityBytes.record(Double(entities.byteCount))
        self.copies.record(Double(copies.count))
        copyBytes.record(Double(copies.byteCount))
    }
}

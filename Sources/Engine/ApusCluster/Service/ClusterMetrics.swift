import ApusCore
import CoreMetrics

/// The metrics of the cluster.
struct ClusterMetrics: Sendable {
    /// The revision of the newest map.
    let revision = Gauge(label: "apus_cluster_map_revision")
    /// Members that are up or draining.
    let members = Gauge(label: "apus_cluster_members")
    /// Members that are cordoned.
    let membersCordoned = Gauge(label: "apus_cluster_members_cordoned")
    /// Changes that the map records.
    let mapChanges = Gauge(label: "apus_cluster_map_changes")
    /// Members that this node exchanges heartbeats with.
    let watchedPeers = Gauge(label: "apus_cluster_watched_peers")
    /// Shards that this node owns.
    let shardsOwned = Gauge(label: "apus_cluster_shards_owned")
    /// Shards for which this node is the standby.
    let shardsStandby = Gauge(label: "apus_cluster_shards_standby")
    /// Shards whose term rose in the maps that came.
    let termChanges = Counter(label: "apus_cluster_term_changes_total")
    /// 1 while the ownership store answers, and is the one that it was.
    let storeReachable = Gauge(label: "apus_cluster_store_reachable")
    /// Reads and swaps that failed.
    let storeFailures = Counter(label: "apus_cluster_store_failures_total")
    let suspicions = Counter(label: "apus_cluster_suspicions_total")
    /// Suspicions withdrawn because this node itself was late.
    let suspicionsDiscarded = Counter(label: "apus_cluster_suspicions_discarded_total")
    let deathsConfirmed = Counter(label: "apus_cluster_deaths_confirmed_total")
    /// Paths to peers that were found cut. A change of the helper counts too.
    let pathsCut = Counter(label: "apus_cluster_paths_cut_total")
    /// Peers that this node reaches only through another node.
    let cutPaths = Gauge(label: "apus_cluster_cut_paths")
    /// Times at which this node's promises were not from a majority any more.
    let permissionLapses = Counter(label: "apus_cluster_permission_lapses_total")
    /// Maps that this node replaced by an equal one after such a time.
    let mapsConfirmed = Counter(label: "apus_cluster_maps_confirmed_total")
    let swapsLost = Counter(label: "apus_cluster_swaps_lost_total")
    /// The pause between the starts of planned moves.
    let handoverPause = Gauge(label: "apus_cluster_handover_pause_seconds")
    let handoversCompleted = Counter(label: "apus_cluster_handovers_completed_total")
    let handoversAbandoned = Counter(label: "apus_cluster_handovers_abandoned_total")

    /// How far a peer's wall clock is ahead of this node's, in seconds.
    func show(_ clockOffset: Duration, of peer: NodeName) {
        Gauge(label: "apus_clock_offset_seconds", dimensions: [("peer", peer.rawValue)])
            .record(clockOffset.milliseconds / 1000)
    }

    /// - Parameter before: the map that this one replaces. Terms of the first map that a node sees are no changes.
    func show(_ map: ClusterMap, after before: ClusterMap, local slot: MemberSlot?) {
        if before.revision > 0 {
            termChanges.increment(by: zip(before.shards, map.shards).count { $0.epoch < $1.epoch })
        }
        revision.record(Double(map.revision))
        members.record(Double(map.members.count { $0.state.isAlive }))
        membersCordoned.record(Double(map.members.count(where: \.isCordoned)))
        mapChanges.record(Double(map.history.changes.count))
        shardsOwned.record(Double(map.shards.count { $0.owner == slot }))
        shardsStandby.record(Double(map.shards.count { $0.standby == slot }))
    }
}

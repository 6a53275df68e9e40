/// The parameters of the failure detector (D4). The defaults follow from measurements.
package struct MembershipConfiguration: Sendable, Equatable {
    /// The interval between heartbeats to each peer.
    package var heartbeatInterval: Duration = .milliseconds(50)
    /// Silence of this length raises a suspicion: four lost heartbeats in a row.
    package var silenceMax: Duration = .milliseconds(200)
    /// The silence allowed to a peer that has sent no datagram since it joined the map. Its start and the distribution
    /// of the map take longer than a heartbeat.
    package var firstContactTimeout: Duration = .seconds(1)
    /// The duration of a suspicion. All probes of the burst must fail within it.
    package var burstDuration: Duration = .milliseconds(60)
    /// Probes per burst, direct and through each helper, spread evenly over two thirds of the burst.
    package var probeCount: Int = 3
    /// The most peers that are asked to probe for this node.
    package var helperCountMax: Int = 3
    /// An observer whose ticks were further apart than this judges no peer: its own lateness may be the cause of the
    /// silence.
    package var latenessMax: Duration = .milliseconds(50)
    /// The interval between ticks of the machine. The excess of an actual interval is this node's lateness.
    package var tickInterval: Duration = .milliseconds(10)
    /// Lateness of either side up to this does not extend the allowed silence.
    package var latenessSlack: Duration = .milliseconds(20)
    /// The most that the lateness of both sides extends the allowed silence.
    package var extensionMax: Duration = .milliseconds(500)
    /// A peer on this machine that waits for a processor or a disk at the end of a burst gets another burst, until its
    /// silence exceeds this.
    package var starvationMax: Duration = .seconds(1)
    /// How long the statement of another node counts that it does not hear a peer.
    package var voteLifetime: Duration = .milliseconds(300)
    /// The most by which the round trip to a peer extends this node's promises to it.
    package var promiseExtensionMax: Duration = .milliseconds(500)
    /// A node whose permission to answer ended this long ago refuses requests to entities with kept state.
    package var refusalDelay: Duration = .seconds(1)
    /// The interval between checks of a path that is cut.
    package var pathCheckInterval: Duration = .milliseconds(500)
    /// Checks in a row that a peer must answer directly before its path counts as restored.
    package var pathRestoreCount: Int = 3
    /// Larger clock differences are reported. A node whose clock differs from the cluster's by more uses the cluster's.
    package var clockDifferenceMax: Duration = .seconds(2)
    /// Up to this many members, each watches all others.
    package var fullMeshMax: Int = 9
    /// The members that watch each member of a larger cluster: an even number, less than ``fullMeshMax``.
    package var watcherCount: Int = 8
    /// The most members that this node does not watch and examines, or whose paths it checks, at once. Further ones
    /// wait for their turn.
    package var pathCheckCountMax: Int = 16
    /// The most peers. Further ones are ignored. A map has no more slots.
    package var peerCountMax: Int = 1000

    /// The rule that this node writes into the map.
    package var watchRule: WatchRule {
        WatchRule(watcherCount: UInt32(clamping: watcherCount), fullMeshMax: UInt32(clamping: fullMeshMax))
    }

    package init() {}
}

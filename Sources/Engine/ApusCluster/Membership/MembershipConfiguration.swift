/// The numbers of the failure detector (D4), with the defaults that the measurements gave.
package struct MembershipConfiguration: Sendable, Equatable {
    /// A heartbeat goes to every peer this often.
    package var heartbeatInterval: Duration = .milliseconds(50)
    /// Silence of this length makes a suspicion: four heartbeats lost in a row.
    package var silenceMax: Duration = .milliseconds(200)
    /// Silence allowed to a peer that sent no datagram since it came into the map: its start and the
    /// spread of the map take longer than a heartbeat.
    package var firstContactTimeout: Duration = .seconds(1)
    /// A suspicion lasts this long; all probes of the burst must fail within it.
    package var burstDuration: Duration = .milliseconds(60)
    /// Probes of one burst, direct and through each helper, spread evenly over two thirds of the burst.
    package var probeCount: Int = 3
    /// Peers that are asked to probe for this node.
    package var helperCountMax: Int = 3
    /// An observer whose ticks were further apart than this judges nobody: its own lateness may be the silence.
    package var latenessMax: Duration = .milliseconds(50)
    /// How often the machine is ticked; what an interval is longer counts as this node's lateness.
    package var tickInterval: Duration = .milliseconds(10)
    /// Lateness of either side up to this is no reason to wait longer.
    package var latenessSlack: Duration = .milliseconds(20)
    /// The most that the lateness of both sides adds to the silence that makes a suspicion.
    package var extensionMax: Duration = .milliseconds(500)
    /// A peer on this machine that is seen waiting for a processor or a disk at the end of a burst gets another burst,
    /// until its silence is longer than this.
    package var starvationMax: Duration = .seconds(1)
    /// Clocks that differ more are reported, and a node whose clock differs from its cluster's goes by the cluster's.
    package var clockDifferenceMax: Duration = .seconds(2)
    /// Peers that are watched; more are ignored. A cluster has at most 32 nodes in full mesh.
    package var peerCountMax: Int = 64

    package init() {}
}

/// The numbers of the failure detector (D4), with the defaults that the measurements gave.
package struct MembershipConfiguration: Sendable, Equatable {
    /// A heartbeat goes to every peer this often.
    package var heartbeatInterval: Duration = .milliseconds(50)
    /// Silence of this length makes a suspicion: four heartbeats lost in a row.
    package var silenceMax: Duration = .milliseconds(200)
    /// Silence allowed to a peer that was never heard since it came into the map: its start and the
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
    /// Peers that are watched; more are ignored. A cluster has at most 32 nodes in full mesh.
    package var peerCountMax: Int = 64

    package init() {}
}

import ApusCore

/// A simulated cluster whose nodes carry entities: the machines that keep an entity's word, over the cluster's own
/// (D4, D5, D15, D16, D18).
///
/// On each process run, besides membership, ownership and hand-over, the machines that a node composes:
/// ``EntityStateMachine`` for each activation, the owner's and the standby's side of replication, group commit to a
/// record store that all share, and ``ReminderStateMachine`` for entities of both strengths. Clients send requests,
/// most of them with an id under which they are repeated: changes, turns that last, reminders, messages to other
/// entities, and such as throw. Every change adds a number to its entity's content that no other has.
///
/// Besides what ``ClusterSimulation`` does to the processes, the record store is slow, down, stopped or cut off from a
/// node, and reports steps as failed that it has made, or makes later.
///
/// **Checked:** what was acknowledged is in every later owner's state, unless one of them said that changes may be
/// missing; nothing is done twice; a handler that threw has changed nothing; no reminder comes before its time, each
/// comes once, and within 1 s of its time when the cluster is at rest; the records take nothing of a former owner;
/// index entries match the records, and reminders their entities; what an entity tells others follows from a change
/// that was made, and nobody takes it under an older epoch than it knows. **In runs of kills**, where each node dies
/// when every copy is complete: no owner reports a loss, and reminders come within 1 s of the take-over.
package struct EntitySimulation {
    private let cluster: ClusterSimulation
    private let workload: EntityWorkload
    private let mutant: EntityMutant

    /// Runs one seed to its end, or to its first failure.
    ///
    /// - Parameters:
    ///   - profile: `entities` or `kills`; without it every fourth seed has kills.
    ///   - killCount: of a run of kills.
    ///   - isLarge: 10,000 entities in place of a dozen.
    ///   - isTraced: keep the ``story``; it changes nothing else.
    package static func run(
        seed: UInt64, mutant: EntityMutant = .none, profile: SimulationProfile? = nil, killCount: Int? = nil,
        isLarge: Bool = false, isTraced: Bool = false
    ) -> EntitySimulation {
        let cluster = ClusterSimulation(
            seed: seed, mutant: .none, profile: profile ?? (seed % 4 == 0 ? .kills : .entities), isTraced: isTraced
        ) { settings in
            if let killCount { settings.killCountMax = killCount }
            guard isLarge else { return }
            settings.nodeCount = 5
            settings.delayMax = .milliseconds(1)
            settings.eventCountMax = 100_000_000
        }
        let workload = EntityWorkload(cluster, mutant: mutant, isLarge: isLarge)
        cluster.workload = workload
        cluster.run()
        return EntitySimulation(cluster: cluster, workload: workload, mutant: mutant)
    }

    package var isFailed: Bool { cluster.isFailed }
    /// The failures of the run and how to see it again.
    package var report: String {
        "seed \(cluster.seed) (\(cluster.profile.rawValue), a node that \(mutant.rawValue)): "
            + cluster.failures.joined(separator: "; ")
    }
    package var story: [String] { cluster.story }
    package var traceHash: UInt64 { cluster.traceHash }
    package var eventCount: Int { cluster.eventCount }
    /// How long the cluster took to come to rest after the last fault.
    package var settleTime: Duration { cluster.settleTime }
    package var deathCount: Int { cluster.deathCount }
    package var killCount: Int { cluster.killCount }
    package var handoverCount: Int { cluster.handoverCount }
    /// Changes that were acknowledged.
    package var acknowledgedCount: Int { workload.ledger.acknowledgedCount }
    /// Shards that an owner took over, and those of which it said that changes may be missing.
    package var promotionCount: Int { workload.promotionCount }
    package var lossCount: Int { workload.lossCount }
    /// Acknowledged changes that are gone, each after such a loss was reported.
    package var lostCount: Int { workload.lostCount }
    /// Reminders that entities carried out, at least once each.
    package var firedCount: Int { workload.firedCount }
    /// Messages of entities that others took.
    package var toldCount: Int { workload.toldCount }
    /// Answers that told a client that its change is not certain.
    package var refusalCount: Int { workload.refusalCount }
    /// Steps of the record store whose outcome its client was not told.
    package var uncertainCount: Int { workload.records.uncertainCount }
}

import ApusCore

/// A simulated cluster whose nodes have entities: the machines for the entities' durability, on top of the cluster's
/// own (D4, D5, D15, D16, D18).
///
/// Each process runs, besides membership, ownership and hand-over, the machines that a node composes:
/// ``EntityStateMachine`` for each activation, the owner's and the standby's side of replication, group commit to a
/// record store that all share, and ``ReminderStateMachine`` for entities of both durabilities. Clients send requests,
/// most of them with an id under which they are repeated: changes, turns that take time, reminders, messages to other
/// entities, and requests that throw. Every change adds a unique number to its entity's content.
///
/// In addition to the faults of ``ClusterSimulation``, the record store is slow, down, stopped or cut off from a node.
/// It reports steps as failed that it has made, or makes later.
///
/// **Checked:** everything acknowledged is in every later owner's state, unless one of them reported that changes may
/// be missing. Nothing is done twice. A handler that threw has changed nothing. No reminder is delivered before its
/// time, each is delivered once, and within 1 s of its time when the cluster is stable. The records accept nothing of a
/// former owner. Index entries match the records, and reminders match their entities. Each change of an entity with an
/// outbox is delivered when it is durable, in the order of the changes, and none is missing. A message of an entity
/// follows from a change that was made, and no receiver accepts it under an older epoch than it knows. **In runs of
/// kills**, where each node dies when every copy is complete: no owner reports a loss, and reminders are delivered
/// within 1 s of the take-over.
package struct EntitySimulation: SimulationRun {
    package let cluster: ClusterSimulation
    private let workload: EntityWorkload
    private let mutant: EntityMutant

    /// Runs one seed to its end, or to its first failure.
    ///
    /// - Parameters:
    ///   - profile: `entities`, `kills` or `pairs`; by default every fourth seed has kills.
    ///   - killCount: of a run of kills.
    ///   - hasOutbox: true if each change of a recorded entity is also sent through its outbox.
    ///   - isLarge: 10,000 entities instead of a dozen.
    ///   - isTraced: true to keep the ``story``; it changes nothing else.
    package static func run(
        seed: UInt64, mutant: EntityMutant = .none, profile: SimulationProfile? = nil, killCount: Int? = nil,
        hasOutbox: Bool = false, isLarge: Bool = false, isTraced: Bool = false
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
        let workload = EntityWorkload(
            cluster, mutant: mutant, isLarge: isLarge, hasOutbox: hasOutbox || mutant.needsOutbox)
        cluster.workload = workload
        cluster.run()
        return EntitySimulation(cluster: cluster, workload: workload, mutant: mutant)
    }

    package var mutantName: String { mutant.rawValue }
    /// Changes that were acknowledged.
    package var acknowledgedCount: Int { workload.ledger.acknowledgedCount }
    /// Shards that an owner took over, and those for which it reported that changes may be missing.
    package var promotionCount: Int { workload.promotionCount }
    package var lossCount: Int { workload.lossCount }
    /// Acknowledged changes that are lost, each after such a report.
    package var lostCount: Int { workload.lostCount }
    /// Reminders that entities carried out, at least once each.
    package var firedCount: Int { workload.firedCount }
    /// Messages between entities that were accepted.
    package var tellCount: Int { workload.tellCount }
    /// Outbox entries that were delivered, and deliveries beyond these.
    package var deliveredCount: Int { workload.receivedCounts.values.reduce(0, +) }
    package var repeatedCount: Int { workload.repeatedCount }
    /// Answers to clients that their change is uncertain.
    package var refusalCount: Int { workload.refusalCount }
    /// Steps of the record store whose client did not receive the outcome.
    package var uncertainCount: Int { workload.records.uncertainCount }
}

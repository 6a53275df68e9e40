import ApusCore

/// A simulated cluster on which parties call each other (CALL-3 to CALL-9, D4, D16).
///
/// The handlers of calls and of parties run as they are in a node, as replicated entities of an ``EntitySimulation``:
/// with real membership, ownership, hand-over, replication and reminders, under the same faults. What a node's service
/// does around them is simulated: connections of clients, notices to them, pushes, and the records of calls.
///
/// Clients are connected to some node. When it stops they come back at another one, or never. They place calls of all
/// types, also to parties that are busy or that call them, and ring, accept, reject, cancel and hang up. A request is
/// repeated until it is answered. After the last fault they hang up, and then each party is called once more.
///
/// **Checked:** what a client has learned, or an owner has confirmed, is in the state of every later owner, unless one
/// of its shard reported that changes may be missing: the call, its winner, and the end of each leg. A client rings
/// only in a call that has called it, and not after its end. A party is on one call at a time. Nobody rings out early,
/// or more than 2 s late when the cluster is stable, or without having been notified. **At the end:** all calls have
/// ended, and each client has the end that the record of the call says. Each call has one record, whose reasons fit
/// each other. Each party can be called again.
///
/// **Not simulated:** media and channels, the rights to call, and answering machines.
package struct CallSimulation: SimulationRun {
    package let cluster: ClusterSimulation
    private let calls: CallWorkload
    private let mutant: CallServiceMutant
    /// Shards that an owner took over, and those for which it reported that changes may be missing.
    package let promotionCount: Int
    package let lossCount: Int

    /// Runs one seed to its end, or to its first failure.
    ///
    /// - Parameters:
    ///   - profile: `entities` or `kills`; by default every second seed has kills.
    ///   - isTraced: true to keep the ``story``; it changes nothing else.
    package static func run(
        seed: UInt64, mutant: CallServiceMutant = .none, profile: SimulationProfile? = nil, isTraced: Bool = false
    ) -> CallSimulation {
        let cluster = ClusterSimulation(
            seed: seed, mutant: .none, profile: profile ?? (seed % 2 == 0 ? .kills : .entities), isTraced: isTraced
        ) { settings in
            settings.settleTimeMax = CallWorkload.settleTimeMax
            settings.faultsEnd = max(settings.faultsEnd, .seconds(8))
        }
        var calls: CallWorkload?
        let workload = EntityWorkload(cluster, mutant: mutant.ofEntities, isLarge: false) { world in
            let made = CallWorkload(world, mutant: mutant)
            calls = made
            return made
        }
        cluster.workload = workload
        cluster.run()
        guard let calls else { preconditionFailure("the workload makes its service") }
        return CallSimulation(
            cluster: cluster, calls: calls, mutant: mutant, promotionCount: workload.promotionCount,
            lossCount: workload.lossCount)
    }

    package var mutantName: String { mutant.rawValue }
    package var callCount: Int { calls.calls.count }
    /// Calls that were accepted.
    package var acceptedCount: Int { calls.calls.count { $0.seen.winner != nil } }
    /// Calls by the reason of their end.
    package var reasons: [String: Int] { calls.reasons }
}

/// Deliberate errors of calls and of what is below them; the checks of ``CallSimulation`` must find each.
package enum CallServiceMutant: String, Sendable, CaseIterable {
    case none = "does everything right"
    case forgetsRestoring = "does not report to a call that it has another owner"
    case losesChanges = "replicates no change of a call that sets no reminder"
    case forgetsReminders = "sets no reminder of a call"
    case keepsClaims = "does not release a party"
    case forgetsClaims = "forgets the claim of a party at a take-over"
    case keepsDeadConnections = "takes the connections of dead nodes for alive"
    case renewsWithoutClients = "renews a claim without the clients that take part"
    case dropsEnds = "notifies no leg of the end"
    case confirmsUnwritten = "confirms a record before it is written"
    case tellsEarly = "sends what a change causes before the change is safe"
    case dropsEpochs = "sends what a change causes without an epoch"
    case acknowledgesEarly = "acknowledges before the standby has it"
    case promotesEmpty = "opens a shard without the copy that it has"
    case dropsRemindersAtPromotion = "drops reminders at a promotion"

    /// The error below the service.
    var ofEntities: EntityMutant {
        switch self {
        case .tellsEarly: .tellsEarly
        case .dropsEpochs: .dropsEpochs
        case .acknowledgesEarly: .acknowledgesEarly
        case .promotesEmpty: .promotesEmpty
        case .dropsRemindersAtPromotion: .dropsRemindersAtPromotion
        case .none, .forgetsRestoring, .losesChanges, .forgetsReminders, .keepsClaims, .forgetsClaims,
            .keepsDeadConnections, .renewsWithoutClients, .dropsEnds, .confirmsUnwritten:
            .none
        }
    }
}

/// A deliberate error in the machines' environment. The simulation's checks must find each.
package enum SimulationMutant: String, Sendable, CaseIterable {
    case none = "does everything right"
    /// The fenced store accepts every write.
    case dropsEpochCheck = "drops the epoch check in the fenced store"
    /// The store's client reports `swapWon` before the store has made the swap.
    case acknowledgesBeforeApply = "acknowledges a swap before it is applied"
    /// A process that starts reuses the last incarnation of its name.
    case reusesIncarnation = "reuses an incarnation after a restart"
    /// One direct probe decides over a suspicion.
    case probesOnce = "probes once instead of in a burst"
    /// An observer that was late relies on the silence that it saw.
    case trustsLateObserver = "does not veto its own lateness"
    /// A peer that waits for a processor is declared dead like a stopped one.
    case ignoresStarvation = "takes a process that waits for a processor for a dead one"
    /// A node applies an announced map, whatever map it has.
    case adoptsStaleMap = "adopts an older map"
    /// A change of owner does not change the epoch.
    case keepsEpochOnTakeover = "does not bump the epoch on a take-over"
    /// A change of owner leaves the new owner as its own standby.
    case keepsStandbyOnTakeover = "leaves the standby equal to the owner"
    /// The target of a hand-over is notified that it is the owner before the map names it.
    case movesBeforeSwap = "answers moved before the swap"
    /// The owner hands a shard over without waiting for the calls in progress.
    case movesBeforeQuiet = "hands over while calls are in progress"
    /// Entities continue while their shard is handed over.
    case writesWhileHeld = "goes on writing while a shard is handed over"
    /// The map names another standby before that one has caught up.
    case namesStandbyEarly = "names a standby before it has caught up"
    /// A hand-over whose swap was not answered is treated as failed.
    case releasesUnanswered = "releases a shard whose hand-over was not answered"
    /// A suspicion is reported as a death.
    case declaresUnconfirmed = "declares a death without confirmation"
    /// A node declares members dead that are only silent, whatever the size of its side.
    case declaresFromMinority = "declares silent nodes dead from a minority"
    /// A node keeps using a path that is cut.
    case ignoresCutPaths = "keeps its links on a path that is cut"
    /// A node answers as long as it runs, whoever hears it.
    case answersWithoutPromises = "answers without the promises of a majority"
    /// A node promises more time than it waits before it votes.
    case votesBeforeItsPromiseEnds = "votes against a node before its promise to it has ended"
    /// A node that receives nothing echoes the heartbeats that were sent to it.
    case echoesUnheard = "echoes heartbeats that it did not hear"
    /// A node's promises do not show that it voted.
    case concealsVotes = "does not say that it voted"
    /// A node whose permission to answer lapsed goes on without replacing the map.
    case answersAfterLapse = "answers after a lapse though a decision against it may be on its way"
    /// In a ring, a node takes its own vote for a majority of the watchers.
    case countsFewVotes = "takes one watcher's vote for those of a majority"
    /// In a ring, a node answers with the promise of one watcher.
    case countsFewPromises = "answers with the promise of one watcher"
    /// In a ring, a node votes as if everybody counted it as a watcher.
    case votesUnacknowledged = "votes against members that do not count it as a watcher"
    /// A node that was declared dead joins again, although it reaches nobody.
    case joinsUnreachable = "joins again while it reaches nobody"
    /// A node that finds itself dead in the map adds itself again.
    case revivesItself = "returns under a dead incarnation"
    /// The store replaces its value whatever revision it holds.
    case swapsWithoutComparing = "swaps without comparing"
    /// A node applies what the store shows, even if it has seen a later map.
    case forgetsRevisions = "takes an older copy of the store for the newest map"
    /// A node joins any store that it finds.
    case joinsEmptyStore = "joins an empty store though it was a member"
    /// The client of a store that does not answer reports the swap as made.
    case takesSilenceForYes = "takes a stopped store's silence for a swap that was made"
    /// A new standby is a cordoned node if there is one.
    case givesToCordoned = "gives shards to a cordoned node"
    /// A process takes another's join under the same incarnation for its own.
    case joinsAsTwin = "joins as the incarnation of another process"
    /// A process joins whether another one is its node or not.
    case joinsBesideTwin = "joins while another process is the same node"
    /// A process takes a twin that it does not reach for one that has ended.
    case ignoresTwinsLease = "joins while a silent process of the same node holds a lease"
    /// A process takes the member at its own address for one that has ended.
    case trustsItsAddress = "joins because the process before it had its address"
    /// The restore uses the map of any node.
    case restoresAnyMap = "restores a map that is not the newest"

    /// The profile of runs in which the error has an effect.
    package var profile: SimulationProfile {
        switch self {
        case .probesOnce, .declaresUnconfirmed: .lossy
        case .trustsLateObserver: .stutter
        case .ignoresStarvation: .starved
        case .declaresFromMinority, .ignoresCutPaths, .joinsUnreachable, .answersWithoutPromises,
            .votesBeforeItsPromiseEnds, .echoesUnheard, .concealsVotes, .answersAfterLapse:
            .partitions
        case .givesToCordoned: .cordons
        case .joinsAsTwin, .joinsBesideTwin, .ignoresTwinsLease, .trustsItsAddress: .twins
        case .countsFewVotes, .countsFewPromises, .votesUnacknowledged: .ring
        case .none, .dropsEpochCheck, .acknowledgesBeforeApply, .reusesIncarnation, .adoptsStaleMap,
            .keepsEpochOnTakeover, .keepsStandbyOnTakeover, .movesBeforeSwap, .movesBeforeQuiet, .writesWhileHeld,
            .namesStandbyEarly, .releasesUnanswered,
            .revivesItself, .swapsWithoutComparing, .forgetsRevisions, .joinsEmptyStore, .takesSilenceForYes,
            .restoresAnyMap:
            .chaos
        }
    }
}

/// The faults of a run.
package enum SimulationProfile: String, Sendable, CaseIterable {
    /// Everything: crashes, pauses, partitions, a failing store, joins, drains.
    case chaos
    /// As chaos, with a sound ownership store, and a workload that has faults of its own.
    case entities = "entities in chaos"
    /// One node after the other is killed, each once the death of any node would lose nothing.
    case kills
    /// Two of five or six nodes at a time are killed, or cut off together, once that would lose nothing.
    case pairs
    /// Paths between two nodes are cut, and minorities are cut off from all others: nobody else is declared dead, and
    /// links go around cut paths.
    case partitions
    /// Two machines have the configuration of one node: they start at the same time, or one while the other runs, is
    /// paused, killed or cut off.
    case twins
    /// As chaos, while nodes are cordoned and uncordoned.
    case cordons
    /// Ten to fourteen nodes with four watchers each: chaos, and cuts of several nodes.
    case ring = "a ring of watchers"
    /// Fifty nodes with the default configuration, and one fault after the other.
    case crowd
    /// Datagrams are lost, duplicated and reordered, and nothing else: no node may be declared dead.
    case lossy
    /// One node after the other runs late and reads its datagrams late: no node may be declared dead.
    case stutter
    /// One node after the other, and several at once, get no processor for 100 to 600 ms: no node may be declared dead.
    case starved

    /// Nodes die, or are cut off for long enough to be declared dead.
    var hasDeaths: Bool {
        switch self {
        case .chaos, .entities, .kills, .pairs, .partitions, .twins, .cordons, .ring, .crowd: true
        case .lossy, .stutter, .starved: false
        }
    }

    /// The profile of a seed: half of the runs are chaos.
    package init(seed: UInt64) {
        switch seed % 10 {
        case 0, 5: self = .lossy
        case 1, 6: self = .stutter
        case 2: self = .starved
        case 3: self = .partitions
        default: self = .chaos
        }
    }
}

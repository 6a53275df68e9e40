import ApusCluster
import ApusCore
import ApusWire

/// Three to five nodes, or up to a hundred in a ring of watchers, on one virtual clock, from one seed: the cluster's
/// real machines in a simulated environment with faults (D4, D5).
///
/// Each process runs ``MembershipStateMachine``, ``OwnershipStateMachine`` and ``HandoverStateMachine`` over maps of 64
/// shards, as a node's shell does. The environment: an ownership store that is slow, fails, or fails after it made the
/// swap; datagrams that are lost, duplicated, delayed and reordered; partitions of one direction or two; processes that
/// are killed, stopped and continued, starved, drained, and started again; a store that is stopped, rolled back or
/// replaced by an empty one, and restored by an operator. Every process writes to a fenced store, under the epochs in
/// its map, some of it late.
///
/// **Checked after each step:** epochs never go back. Every change of owner raises the epoch. A standby is never the
/// owner. All processes with a revision have the same map. A process's map never goes back. An incarnation is used by
/// one process and never returns after its death. The fenced store accepts nothing under an older epoch than it has
/// seen, and each epoch's rows come from one process, which the map named as owner. A shard moves from one live node to
/// another only when it is held and its calls have ended, and another standby is named only when it has everything that
/// the earlier one has; no write that was decided on after that is accepted. Nothing is decided on a damaged store,
/// and every member reports the damage within 2 s. No node may answer for its entities once the store
/// holds a map in which it is dead. **At the end:** within a bound after the last fault every running
/// process is a member with the newest map, and all shards are owned by such members, with another as standby, at their
/// place. **In runs where only datagrams are lost, or observers are late:** no node is declared dead. **In a crowd:**
/// only nodes that were killed, stopped or cut off are declared dead, a killed one within 200 ms, and a silent one is
/// certain within 450 ms. **In runs of twins** (``ClusterSimulation/twin``): no process joins while another one of its
/// node runs and holds a lease, nor while it may answer. Each start and each fault ends at most one process.
///
/// The same seed gives the same run, event by event; ``traceHash`` covers all of them. Not thread-safe; each run is
/// confined to its caller.
package final class ClusterSimulation: SimulationRun {
    static let names = ["a", "b", "c", "d", "e"].map { NodeName(unchecked: $0) }
    /// The names of the run's nodes: at least five. In a run of twins, the last one is the first again: another machine
    /// with a copy of its configuration.
    let names: [NodeName]
    /// The first places of the names. Only looked up.
    let nameIndexes: [NodeName: Int]
    /// The place of the copy, in a run of twins.
    let twin: Int?
    /// By place, the newest process. No other one of the place runs.
    var newest: [SimulatedProcess?]
    private static let storyCountMax = 4000
    static let leaseDuration = Duration.milliseconds(2500)

    package let seed: UInt64
    package let mutant: SimulationMutant
    package let profile: SimulationProfile
    let isTraced: Bool
    var random: SeededRandom
    let settings: SimulationSettings
    var now = MonotonicTime.zero + .seconds(1)
    var queue = SimulationQueue()
    var processes: [SimulatedProcess] = []
    var store: SimulatedOwnershipStore
    var fenced: SimulatedFencedStore
    var requests: [(process: Int, request: StoreRequest, isSilent: Bool)] = []
    var network: SimulatedNetwork
    /// The ends of the leases in the store.
    var leases: [NodeID: MonotonicTime] = [:]
    /// In a run of partitions: the nodes that are cut off from all others now or were in the last cut.
    var isolatedNames: [Int] = []
    /// Those of them that were declared dead since.
    var isolatedDeaths: [Int] = []
    /// By shard, the moves for which its owner held it, one entry for each target and epoch.
    var heldMoves: [[HeldMove]] = Array(repeating: [], count: SimulationSettings.shardCount)
    /// By shard, the moves in progress whose targets have everything of it.
    var caughtUp: [[ShardMove]] = Array(repeating: [], count: SimulationSettings.shardCount)
    /// By shard, the last write that was decided on.
    var lastWrites: [FencedWrite?] = Array(repeating: nil, count: SimulationSettings.shardCount)
    /// The first process that acted under each incarnation.
    var lives: [(id: NodeID, process: Int)] = []
    /// By place, the newest map that a process of it applied as a member: its own directory.
    var memories: [ClusterMap?]
    /// By place, true if its next process starts again in place.
    var isRestarting: [Bool]
    /// Processes of twins that operators started, and other faults of twins: as many processes may be ended by a twin.
    var twinFaultCount = 0
    /// Processes that a twin ended while they ran.
    package internal(set) var deposedCount = 0
    /// Times that a process waited because another one was its node.
    package internal(set) var twinWaitCount = 0
    /// In a crowd: the nodes that are killed, stopped or cut off, since when, and what was found out about them.
    package internal(set) var victims: [SimulatedVictim] = []
    private(set) var isMeasuredOnly = false
    /// Datagrams that nodes sent.
    var datagramCount = 0
    /// In a crowd without faults: datagrams that a node sends in a second.
    package internal(set) var datagramRate = 0.0
    /// In a crowd: the longest times until a killed node was dead in the map, and until a silent one was certain to be.
    package internal(set) var killedTimeMax = Duration.zero
    package internal(set) var silentTimeMax = Duration.zero
    var damagedAt = MonotonicTime.zero
    package internal(set) var restoreCount = 0
    /// Incarnations that were dead or had left in some map.
    var ended: [NodeID] = []
    /// Additional workload; nil: none.
    var workload: (any SimulationWorkload)?
    var isHealed = false
    var healedAt = MonotonicTime.zero
    /// When the check after the last fault last found something unstable.
    var lastUnrest = MonotonicTime.zero
    /// When it last found the map, or a member's copy of it, unstable.
    var lastMapUnrest = MonotonicTime.zero
    var isOver = false
    /// The time from the last fault until the cluster was stable.
    package internal(set) var settleTime: Duration = .zero
    package private(set) var eventCount = 0
    /// A hash of every event of the run and every map that was made.
    package private(set) var traceHash: UInt64 = 0
    /// The failed checks; empty if all held.
    package private(set) var failures: [String] = []
    /// A readable trace; only of a traced run.
    package private(set) var story: [String] = []
    /// Incarnations that others declared dead.
    package internal(set) var deathCount = 0
    /// Deaths in a run without faults that kill.
    package internal(set) var falseEvictionCount = 0
    package internal(set) var writeCount = 0
    /// Writes that the fenced store refused as stale.
    package internal(set) var refusedWriteCount = 0
    package internal(set) var handoverCount = 0
    /// Nodes that were killed in a run of kills.
    package internal(set) var killCount = 0

    init(
        seed: UInt64, mutant: SimulationMutant, profile: SimulationProfile, isTraced: Bool,
        adjust: (inout SimulationSettings) -> Void = { _ in }
    ) {
        self.seed = seed
        self.mutant = mutant
        self.profile = profile
        self.isTraced = isTraced
        random = SeededRandom(seed: StableHash.mix(seed &+ 1))
        var settings = SimulationSettings(profile: profile, mutant: mutant, random: &random)
        adjust(&settings)
        self.settings = settings
        let names = (0..<max(Self.names.count, settings.nodeCount)).map { index in
            index < Self.names.count ? Self.names[index] : NodeName(unchecked: "n\(index)")
        }
        twin = profile == .twins ? names.count : nil
        self.names = profile == .twins ? names + [names[0]] : names
        nameIndexes = Dictionary(uniqueKeysWithValues: names.enumerated().map { ($1, $0) })
        newest = Array(repeating: nil, count: self.names.count)
        network = SimulatedNetwork(nameCount: self.names.count)
        memories = Array(repeating: nil, count: self.names.count)
        isRestarting = Array(repeating: false, count: self.names.count)
        var map = ClusterMap(cluster: ClusterID(unchecked: "simulation"))
        map.shards = Array(repeating: ShardAssignment(), count: SimulationSettings.shardCount)
        store = SimulatedOwnershipStore(map: map)
        fenced = SimulatedFencedStore(
            shardCount: SimulationSettings.shardCount, checksEpochs: mutant != .dropsEpochCheck)
    }

    /// Runs one seed to its end, or to its first failure.
    ///
    /// - Parameters:
    ///   - profile: The faults; by default derived from the seed.
    ///   - nodeCount: The number of nodes; by default drawn from the seed.
    ///   - isMeasuredOnly: In a crowd: no datagram is lost, and the run ends before the first fault.
    ///   - isTraced: True to keep the ``story``; it changes nothing else.
    package static func run(
        seed: UInt64, mutant: SimulationMutant = .none, profile: SimulationProfile? = nil, nodeCount: Int? = nil,
        isMeasuredOnly: Bool = false, isTraced: Bool = false
    ) -> ClusterSimulation {
        let simulation = ClusterSimulation(
            seed: seed, mutant: mutant, profile: profile ?? SimulationProfile(seed: seed), isTraced: isTraced
        ) { settings in
            if let nodeCount { settings.nodeCount = nodeCount }
            if isMeasuredOnly { settings.lossRate = 0 }
        }
        simulation.isMeasuredOnly = isMeasuredOnly
        simulation.run()
        return simulation
    }

    package var isFailed: Bool { !failures.isEmpty }

    package var cluster: ClusterSimulation { self }
    package var mutantName: String { mutant.rawValue }

    func run() {
        workload?.begin()
        tell("\(settings.nodeCount) nodes, \(profile.rawValue), loss \(settings.lossRate), delay \(settings.delayMax)")
        for name in 0..<settings.nodeCount { later(.start(name: name), after: span(0...settings.startTimeMax)) }
        if profile == .crowd {
            later(.measure(isEnd: false), after: settings.faultsBegin - .milliseconds(1000))
            later(.measure(isEnd: true), after: settings.faultsBegin)
        }
        later(.fault, after: settings.faultsBegin)
        later(.heal, after: settings.faultsEnd)
        while !isOver, !isFailed, let entry = queue.takeFirst() {
            now = MonotonicTime(nanoseconds: entry.time)
            eventCount += 1
            fold(entry.time ^ entry.event.kind << 56 ^ UInt64(bitPattern: Int64(entry.process)) << 48)
            guard eventCount < settings.eventCountMax else { return fail("the run does not become stable") }
            if entry.process < 0 {
                happen(entry.event)
            } else {
                deliver(entry.event, to: processes[entry.process])
            }
        }
    }

    private func happen(_ event: SimulationEvent) {
        switch event {
        case .start(let name): start(name)
        case .apply(let request): apply(request)
        case .write(let write): take(write)
        case .fault: makeFault()
        case .heal: heal()
        case .check: checkSettled()
        case .damageSeen: checkDamageIsSeen()
        case .pathsSettled(let from, let to): checkPath(from, to)
        case .isolationSettled: checkIsolation()
        case .restore: restoreStore()
        case .measure(let isEnd): measure(isEnd: isEnd)
        case .bound(let id): checkBound(of: id)
        case .work(let work): work.run()
        case .tick, .datagram, .linkUp, .linkLost, .connectRefused, .dial, .answer, .announced, .replicaReady,
            .callsEnded, .holdAnswered, .askedToOwn, .writeRefused, .resume, .replicaAwaited, .quietAwaited,
            .joinRetried:
            break
        }
    }

    // MARK: Time and chance

    func later(_ event: SimulationEvent, process: Int = -1, after delay: Duration) {
        queue.add(event, process: process, at: now + delay)
    }

    func below(_ bound: Int) -> Int { Int(random.next() % UInt64(bound)) }

    func chance(_ probability: Double) -> Bool { probability > 0 && random.nextUnit() < probability }

    /// A random duration between two numbers of milliseconds, in microseconds.
    func span(_ milliseconds: ClosedRange<Int>) -> Duration {
        let microseconds = (milliseconds.upperBound - milliseconds.lowerBound) * 1000
        return .microseconds(milliseconds.lowerBound * 1000 + below(microseconds + 1))
    }

    // MARK: Trace

    func fold(_ value: UInt64) { traceHash = StableHash.mix(traceHash ^ value) }

    func tell(_ sentence: @autoclosure () -> String) {
        guard isTraced, story.count < Self.storyCountMax else { return }
        story.append("\((now - .zero).milliseconds - 1000) ms: \(sentence())")
    }

    func fail(_ sentence: @autoclosure () -> String) {
        guard failures.count < 3 else { return }
        let failure = "at \((now - .zero).milliseconds - 1000) ms: \(sentence())"
        failures.append(failure)
        tell("FAILED: \(failure)")
    }
}

import ApusCluster
import ApusCore

/// The numbers of a run, drawn from its seed.
struct SimulationSettings {
    /// Shards of the simulated map: enough for every member to own several, few enough to be fast.
    static let shardCount = 64

    var nodeCount: Int
    /// All nodes run on this machine and can inspect each other's processes; 0: each on its own machine.
    var host: UInt64 = 0
    var membership = MembershipConfiguration()
    var ownership = OwnershipStateMachine.Configuration()
    var handover = HandoverStateMachine.Configuration()
    var joining = JoinStateMachine.Configuration()
    /// The share of lost datagrams, outside bursts.
    var lossRate: Double
    var duplicateRate = 0.02
    /// The share of processes that are of an earlier version, which watches all members.
    var earlierRate = 0.0
    /// In a run of twins: both advertise one address.
    var sharesAddress = false
    /// The longest delay of a datagram or a message.
    var delayMax: Duration
    /// The share of swaps and reads that fail while the store is up. Every second of these was made nevertheless.
    var storeFailureRate: Double
    /// The nodes start within this many milliseconds.
    var startTimeMax = 200
    var faultsBegin: Duration = .milliseconds(800)
    var faultsEnd: Duration
    /// After the end of the faults the cluster must be stable within this time.
    var settleTimeMax: Duration = .seconds(15)

    /// More events than any run needs. A run that reaches this does not become stable.
    var eventCountMax = 1_000_000
    /// Kills of a run of kills, after which the faults end.
    var killCountMax = 12

    init(profile: SimulationProfile, mutant: SimulationMutant, random: inout SeededRandom) {
        nodeCount = 3 + Int(random.next() % 3)
        delayMax = .milliseconds([1, 3, 10][Int(random.next() % 3)])
        switch profile {
        case .chaos, .cordons:
            lossRate = [0, 0.01, 0.05, 0.2][Int(random.next() % 4)]
            storeFailureRate = [0, 0.02, 0.1][Int(random.next() % 3)]
            // Some runs are long enough for nodes to give up their proposals while the store is down.
            faultsEnd = .seconds(random.next() % 8 == 0 ? 10 : 5)
            host = random.next() % 2
        case .entities:
            lossRate = [0, 0.01, 0.05][Int(random.next() % 3)]
            storeFailureRate = [0, 0.02][Int(random.next() % 2)]
            faultsEnd = .seconds(4)
            host = random.next() % 2
        case .partitions:
            lossRate = [0, 0.01, 0.05][Int(random.next() % 3)]
            (storeFailureRate, faultsEnd) = (0, .seconds(20))
            host = random.next() % 2
        case .twins:
            lossRate = [0, 0.01, 0.05][Int(random.next() % 3)]
            storeFailureRate = [0, 0.02, 0.1][Int(random.next() % 3)]
            (faultsEnd, host) = (.seconds(12), random.next() % 2)
            sharesAddress = random.next() % 3 == 0
        case .kills:
            (lossRate, storeFailureRate) = (0, 0)
            // They end with the last kill.
            faultsEnd = .seconds(3600)
            host = 1
        case .pairs:
            (lossRate, storeFailureRate, faultsEnd) = (0, 0, .seconds(3600))
            nodeCount = 5 + Int(random.next() % 2)
            killCountMax = 6
            // With the longer one, two nodes fail while shards move.
            ownership.plannedPace = .milliseconds([20, 250][Int(random.next() % 2)])
            host = random.next() % 2
        case .ring:
            lossRate = [0, 0.01, 0.05][Int(random.next() % 3)]
            storeFailureRate = [0, 0.02][Int(random.next() % 2)]
            faultsBegin = .milliseconds(1500)
            faultsEnd = .seconds(9)
            nodeCount = 10 + Int(random.next() % 5)
            earlierRate = [0, 0, 0.05][Int(random.next() % 3)]
            (membership.watcherCount, membership.fullMeshMax) = (4, 5)
            eventCountMax = 3_000_000
            settleTimeMax = .seconds(25)
        case .crowd:
            lossRate = [0, 0.05, 0.1, 0.2][Int(random.next() % 4)]
            (storeFailureRate, startTimeMax) = (0, 3000)
            faultsBegin = .seconds(8)
            faultsEnd = .seconds(22)
            nodeCount = 50
            eventCountMax = 20_000_000
            settleTimeMax = .seconds(30)
        case .lossy:
            lossRate = [0.05, 0.1, 0.15][Int(random.next() % 3)]
            storeFailureRate = 0
            faultsEnd = .seconds(8)
        case .stutter:
            (lossRate, storeFailureRate, faultsEnd) = (0, 0, .seconds(4))
        case .starved:
            lossRate = [0, 0.05][Int(random.next() % 2)]
            storeFailureRate = 0
            faultsEnd = .seconds(8)
            host = 1
        }
        // With 64 shards the default share would be a single one at a time.
        handover.movingShareMax = 0.25
        weaken(mutant)
    }

    private mutating func weaken(_ mutant: SimulationMutant) {
        if mutant == .probesOnce {
            membership.probeCount = 1
            membership.helperCountMax = 0
        }
        if mutant == .trustsLateObserver { membership.latenessMax = .seconds(3600) }
    }
}

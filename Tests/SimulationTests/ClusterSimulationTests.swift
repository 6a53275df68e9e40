import ApusCore
import ApusSimulation
import ApusTestKit
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The cluster's machines of several nodes, on a virtual clock, with seeded faults (D4, D5).
///
/// A seed that fails is named in the failure; `APUS_SIM_SEED=n` runs that one alone and prints what happened in it. The
/// profile is the seed's, or the one that `APUS_SIM_PROFILE` names.
@Suite("A cluster where things go wrong (D4, D5)")
struct ClusterSimulationTests {
    /// Runs without optimization are some fifteen times slower; they take a part of the seeds.
    #if DEBUG
    static let seedCount: UInt64 = 200
    #else
    static let seedCount: UInt64 = 2500
    #endif
    private static let chunkSize = 50
    #if DEBUG
    private static let ringSeedCount: UInt64 = 10
    private static let crowdSeedCount: UInt64 = 5
    private static let twinSeedCount: UInt64 = 200
    #else
    private static let ringSeedCount: UInt64 = 100
    private static let crowdSeedCount: UInt64 = 6
    private static let twinSeedCount: UInt64 = 1000
    #endif
    /// The most seeds until a deliberate error must have shown itself.
    private static let mutantSeedCountMax: UInt64 = 600

    @Test(
        "Every invariant holds, and the cluster comes to rest after the last fault",
        arguments: SeedShare.chunks(of: 0..<seedCount, size: chunkSize))
    func invariantsHold(seeds: [UInt64]) {
        for seed in seeds {
            let run = ClusterSimulation.run(seed: seed)
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed)") }
        }
    }

    @Test("At 5 % loss and more no living node is declared dead: 0 false evictions")
    func noFalseEvictions() {
        let evictions = (0..<UInt64(40)).reduce(0) { sum, seed in
            sum + ClusterSimulation.run(seed: seed, profile: .lossy).falseEvictionCount
        }
        #expect(evictions == 0)
    }

    @Test("Cordoned nodes get no shards that others accept, and the cluster comes to rest with them")
    func cordonsHold() {
        for seed in SeedShare.seeds(of: 0..<(Self.seedCount / 5)) {
            let run = ClusterSimulation.run(seed: seed, profile: .cordons)
            if run.isFailed { Issue.record("\(run.report), with cordons") }
        }
    }

    @Test("Two processes of one node never are one incarnation, and end each other no more than faults make them")
    func twinsHold() {
        var waits = 0
        let seeds = SeedShare.seeds(of: 0..<Self.twinSeedCount)
        for seed in seeds {
            let run = ClusterSimulation.run(seed: seed, profile: .twins)
            waits += run.twinWaitCount
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed) APUS_SIM_PROFILE=twins") }
        }
        // The faults reach what they aim at.
        #expect(waits > 2 * seeds.count, "\(waits)")
    }

    @Test("Invariants hold in a ring of watchers", arguments: SeedShare.chunks(of: 0..<ringSeedCount, size: 10))
    func ringInvariantsHold(seeds: [UInt64]) {
        for seed in seeds {
            let run = ClusterSimulation.run(seed: seed, profile: .ring)
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed) APUS_SIM_PROFILE=ring") }
        }
    }

    @Test(
        "Of 50 nodes only those die that are killed, stopped or cut off, and within the bounds",
        arguments: SeedShare.seeds(of: 0..<crowdSeedCount))
    func crowd(seed: UInt64) {
        let run = ClusterSimulation.run(seed: seed, profile: .crowd)
        if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed) APUS_SIM_PROFILE=crowd") }
        print(
            "seed \(seed): \(run.victims.count) victims, killed for at most \(run.killedTimeMax), "
                + "silent for at most \(run.silentTimeMax), \(Int(run.datagramRate)) datagrams a node and second")
    }

    @Test("A node sends as many datagrams in a cluster of 100 nodes as in one of 20")
    func datagramRate() {
        let rates = [10, 20, 50, 100].map { count in
            ClusterSimulation.run(seed: 4, profile: .crowd, nodeCount: count, isMeasuredOnly: true).datagramRate
        }
        print("datagrams a node and second with 10, 20, 50 and 100 nodes: \(rates.map { Int($0) })")
        // Heartbeats to 8 watchers, 20 a second, and one probe with its answer for each.
        for rate in rates { #expect((160...240).contains(rate)) }
    }

    @Test("The faults reach what they aim at: deaths, stale writes and hand-overs happen")
    func faultsHappen() {
        var (deaths, refusals, handovers) = (0, 0, 0)
        for seed in 0..<UInt64(20) {
            let run = ClusterSimulation.run(seed: seed, profile: .chaos)
            deaths += run.deathCount
            refusals += run.refusedWriteCount
            handovers += run.handoverCount
        }
        #expect(deaths >= 20)
        #expect(refusals >= 20)
        #expect(handovers >= 200)
    }

    @Test("A seed replays exactly, traced or not", arguments: [2, 5, 6, 13] as [UInt64])
    func replay(seed: UInt64) {
        let first = ClusterSimulation.run(seed: seed)
        let second = ClusterSimulation.run(seed: seed, isTraced: true)
        #expect(first.traceHash == second.traceHash)
        #expect(first.eventCount == second.eventCount)
        #expect(ClusterSimulation.run(seed: seed + 1).traceHash != first.traceHash)
    }

    @Test("Each deliberate error is caught", arguments: SimulationMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: SimulationMutant) {
        let caught = MutantSearch.firstSeed(
            "\(mutant)", from: MutantSearch.cluster, countMax: Self.mutantSeedCountMax
        ) { seed in
            ClusterSimulation.run(seed: seed, mutant: mutant, profile: mutant.profile).isFailed
        }
        #expect(caught != nil, "no seed of \(Self.mutantSeedCountMax) notices a node that \(mutant.rawValue)")
    }

    @Test("One seed with its story", .enabled(if: chosenSeed != nil))
    func oneSeed() {
        guard let seed = Self.chosenSeed else { return }
        Self.show(ClusterSimulation.run(seed: seed, profile: Self.chosenProfile, isTraced: true))
    }

    /// Prints the story of a run, and records its failure.
    static func show(_ run: some SimulationRun) {
        for line in run.story { print(line) }
        print("trace hash \(run.traceHash), \(run.eventCount) events, at rest after \(run.settleTime)")
        if run.isFailed { Issue.record("\(run.report)") }
    }

    static var chosenSeed: UInt64? { text("APUS_SIM_SEED").flatMap { UInt64($0) } }

    /// Nil: the profile of the seed.
    static var chosenProfile: SimulationProfile? {
        text("APUS_SIM_PROFILE").flatMap { name in SimulationProfile.allCases.first { "\($0)" == name } }
    }

    private static func text(_ name: String) -> String? {
        // SAFETY: the text is read before anything in this process changes its environment.
        getenv(name).map { String(cString: $0) }
    }
}

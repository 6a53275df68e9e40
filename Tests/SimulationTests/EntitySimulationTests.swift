import ApusCore
import ApusSimulation
import ApusTestKit
import Foundation
import Testing

/// Entities of both durabilities on a simulated cluster, on a virtual clock, with seeded faults (D15, D16, D18).
///
/// A seed that fails is named in the failure; `APUS_SIM_SEED=n` prints what happens in that one.
@Suite("Entities where things go wrong (D15, D16, D18)")
struct EntitySimulationTests {
    /// Runs without optimization take a part of the seeds.
    #if DEBUG
    static let seedCount: UInt64 = 100
    #else
    static let seedCount: UInt64 = 2000
    #endif
    private static let chunkSize = 50
    /// The seed of the large run, if it is wanted. It takes some ten seconds in a release build.
    private static let largeSeed = ProcessInfo.processInfo.environment["APUS_SIM_LARGE"].flatMap { UInt64($0) }
    private static let largeKillCount = 250
    /// The most seeds until a deliberate error must have shown itself.
    private static let mutantSeedCountMax: UInt64 = 8000

    @Test(
        "Every word is kept, and the cluster comes to rest after the last fault",
        arguments: SeedShare.chunks(of: 0..<seedCount, size: chunkSize))
    func wordsAreKept(seeds: [UInt64]) {
        for seed in seeds {
            let run = EntitySimulation.run(seed: seed)
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed)") }
        }
    }

    @Test(
        "Two of five or six nodes that fail at once lose nothing",
        arguments: SeedShare.chunks(of: 0..<seedCount / 20, size: 10))
    func pairs(seeds: [UInt64]) {
        for seed in seeds {
            let run = EntitySimulation.run(seed: seed, profile: .pairs)
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed)") }
            #expect(run.killCount == 6 && run.acknowledgedCount > 0 && run.lostCount == 0, "seed \(seed)")
        }
    }

    @Test(
        "Each change is delivered through its outbox once it is durable, in order, whatever dies",
        arguments: SeedShare.chunks(of: 0..<seedCount / 2, size: chunkSize))
    func outbox(seeds: [UInt64]) {
        var (deliveredCount, repeatedCount) = (0, 0)
        for seed in seeds {
            let run = EntitySimulation.run(seed: seed, hasOutbox: true)
            if run.isFailed { Issue.record("\(run.report); with an outbox") }
            (deliveredCount, repeatedCount) = (deliveredCount + run.deliveredCount, repeatedCount + run.repeatedCount)
        }
        print("\(seeds.count) seeds: \(deliveredCount) changes delivered, \(repeatedCount) again")
        // The faults reach what they aim at: deliveries are repeated, and few are.
        #expect(repeatedCount > 0 && repeatedCount < deliveredCount / 4, "\(repeatedCount) of \(deliveredCount)")
    }

    @Test("Each deliberate error is caught", arguments: EntityMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: EntityMutant) {
        let caught = MutantSearch.firstSeed(
            "\(mutant)", from: MutantSearch.entities, countMax: Self.mutantSeedCountMax
        ) { seed in
            EntitySimulation.run(seed: seed, mutant: mutant, profile: mutant.profile).isFailed
        }
        #expect(caught != nil, "no seed of \(Self.mutantSeedCountMax) notices a node that \(mutant.rawValue)")
    }

    @Test("Ten thousand entities keep their word through hundreds of deaths", .enabled(if: largeSeed != nil))
    func large() throws {
        let run = EntitySimulation.run(
            seed: try #require(Self.largeSeed), profile: .kills, killCount: Self.largeKillCount, isLarge: true)
        print(
            "\(run.killCount) kills, \(run.promotionCount) shards taken over, \(run.acknowledgedCount) changes "
                + "acknowledged, \(run.firedCount) reminders, \(run.tellCount) messages, \(run.uncertainCount) "
                + "uncertain steps, \(run.lostCount) lost, \(run.eventCount) events")
        #expect(!run.isFailed, "\(run.report)")
        #expect(run.killCount == Self.largeKillCount && run.lostCount == 0)
    }

    @Test("A seed replays exactly, traced or not", arguments: [1, 2, 4, 7] as [UInt64])
    func replay(seed: UInt64) {
        let first = EntitySimulation.run(seed: seed)
        let second = EntitySimulation.run(seed: seed, isTraced: true)
        #expect(first.traceHash == second.traceHash)
        #expect(first.eventCount == second.eventCount)
        #expect(EntitySimulation.run(seed: seed + 1).traceHash != first.traceHash)
    }

    @Test("One seed with its story", .enabled(if: ClusterSimulationTests.chosenSeed != nil))
    func oneSeed() {
        guard let seed = ClusterSimulationTests.chosenSeed else { return }
        let profile = ClusterSimulationTests.chosenProfile
        let hasOutbox = ProcessInfo.processInfo.environment["APUS_SIM_OUTBOX"] != nil
        ClusterSimulationTests.show(
            EntitySimulation.run(seed: seed, profile: profile, hasOutbox: hasOutbox, isTraced: true))
    }
}

import ApusCore
import ApusSimulation
import ApusTestKit
import Testing

/// Calls on a simulated cluster, on a virtual clock, with seeded faults (CALL-3 to CALL-9, D4, D16).
///
/// A seed that fails is named in the failure; `APUS_SIM_SEED=n` prints what happens in that one.
@Suite("Calls on a cluster where things go wrong (CALL-3 to CALL-9, D4, D16)")
struct CallSimulationTests {
    /// Runs without optimization take a part of the seeds.
    #if DEBUG
    private static let seedCount: UInt64 = 20
    #else
    private static let seedCount: UInt64 = 100
    #endif
    private static let chunkSize = 20
    /// The most seeds until a deliberate error must have shown itself.
    private static let mutantSeedCountMax: UInt64 = 300

    @Test(
        "Calls, their parties and their records survive the faults of nodes, and everybody learns the same end",
        arguments: SeedShare.chunks(of: 0..<seedCount, size: chunkSize))
    func callsSurvive(seeds: [UInt64]) {
        var (acceptedCount, killCount) = (0, 0)
        for seed in seeds {
            let run = CallSimulation.run(seed: seed)
            if run.isFailed { Issue.record("\(run.report); see it with APUS_SIM_SEED=\(seed)") }
            acceptedCount += run.acceptedCount
            killCount += run.killCount
        }
        #expect(acceptedCount > 0 && killCount > 0)
    }

    @Test("Each deliberate error of calls is caught", arguments: CallServiceMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: CallServiceMutant) {
        let caught = MutantSearch.firstSeed(
            "\(mutant)", from: MutantSearch.calls, countMax: Self.mutantSeedCountMax
        ) { seed in
            CallSimulation.run(seed: seed, mutant: mutant).isFailed
        }
        #expect(caught != nil, "no seed of \(Self.mutantSeedCountMax) notices a node that \(mutant.rawValue)")
    }

    @Test("A seed of calls replays exactly, traced or not", arguments: [1, 2] as [UInt64])
    func replay(seed: UInt64) {
        let first = CallSimulation.run(seed: seed)
        let second = CallSimulation.run(seed: seed, isTraced: true)
        #expect(first.traceHash == second.traceHash)
        #expect(first.eventCount == second.eventCount)
        #expect(CallSimulation.run(seed: seed + 1).traceHash != first.traceHash)
    }

    @Test("One seed of calls with its story", .enabled(if: ClusterSimulationTests.chosenSeed != nil))
    func oneSeed() {
        guard let seed = ClusterSimulationTests.chosenSeed else { return }
        let profile = ClusterSimulationTests.chosenProfile
        ClusterSimulationTests.show(CallSimulation.run(seed: seed, profile: profile, isTraced: true))
    }
}

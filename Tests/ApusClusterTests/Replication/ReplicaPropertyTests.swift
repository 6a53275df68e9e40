import ApusCluster
import ApusTestKit
import Testing

@Suite("Replication under faults (D18)")
struct ReplicaPropertyTests {
    @Test(
        "What was acknowledged is promoted, or its loss is reported; nothing goes back; no one waits for ever",
        arguments: SeedShare.chunks(of: 0..<600, size: 40), [false, true])
    func faults(seeds: [UInt64], skipsMaps: Bool) {
        var (acknowledged, complete, incomplete) = (0, 0, 0)
        for seed in seeds {
            var simulation = ReplicaSimulation(seed: seed, skipsMaps: skipsMaps)
            let violations = simulation.run()
            #expect(violations.isEmpty, "seed \(seed)")
            acknowledged += simulation.acknowledgedCount
            complete += simulation.completePromotionCount
            incomplete += simulation.incompletePromotionCount
        }
        // The runs reach what they are about.
        #expect(acknowledged > seeds.count * 20)
        #expect(complete > incomplete && incomplete > 0)
    }

    @Test(
        "Where nodes die one at a time, with every copy complete, no promotion lacks anything",
        arguments: SeedShare.chunks(of: 5000..<5300, size: 20), [false, true])
    func singleFaults(seeds: [UInt64], skipsMaps: Bool) {
        var complete = 0
        for seed in seeds {
            var simulation = ReplicaSimulation(seed: seed, isGentle: true, skipsMaps: skipsMaps)
            let violations = simulation.run()
            #expect(violations.isEmpty, "seed \(seed)")
            complete += simulation.completePromotionCount
        }
        #expect(complete > seeds.count * 4)
    }

    @Test("With second standbys, and two nodes that die at once", arguments: [false, true])
    func secondStandbys(skipsMaps: Bool) {
        var (complete, incomplete, gentle) = (0, 0, 0)
        let seeds = SeedShare.seeds(of: 9000..<9300)
        for seed in seeds {
            var simulation = ReplicaSimulation(seed: seed, skipsMaps: skipsMaps, hasSecondStandbys: true)
            let violations = simulation.run()
            #expect(violations.isEmpty, "seed \(seed)")
            complete += simulation.completePromotionCount
            incomplete += simulation.incompletePromotionCount
            // With every copy complete, no promotion lacks anything.
            simulation = ReplicaSimulation(seed: seed, isGentle: true, skipsMaps: skipsMaps, hasSecondStandbys: true)
            #expect(simulation.run().isEmpty, "seed \(seed), gentle")
            #expect(simulation.incompletePromotionCount == 0, "seed \(seed), gentle")
            gentle += simulation.completePromotionCount
        }
        #expect(complete > incomplete && incomplete > 0 && gentle > seeds.count)
    }

    @Test("A run is the same whenever it is run")
    func deterministic() {
        var first = ReplicaSimulation(seed: 11)
        var second = ReplicaSimulation(seed: 11)
        _ = first.run()
        _ = second.run()
        #expect(first.acknowledgedCount == second.acknowledgedCount && first.maps == second.maps)
        #expect(first.acknowledged == second.acknowledged && first.now == second.now)
    }

    @Test("Each deliberate error is caught", arguments: ReplicaMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: ReplicaMutant) {
        let seed = (UInt64(0)..<(mutant.needsSecondStandbys ? 2000 : 300)).first { seed in
            var simulation = ReplicaSimulation(
                seed: seed, mutant: mutant, isGentle: mutant.needsGentleness, skipsMaps: mutant.needsSkippedMaps,
                hasSecondStandbys: mutant.needsSecondStandbys)
            return !simulation.run().isEmpty
        }
        #expect(seed != nil, "no seed finds a program that \(mutant.rawValue)")
    }
}

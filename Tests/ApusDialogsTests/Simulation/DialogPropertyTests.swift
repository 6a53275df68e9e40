import ApusTestKit
import Testing

/// Random dialogs in a cluster that fails. A seed that fails is named in the failure.
@Suite("Dialogs over a network that fails, with owners that die (VA-6, VA-7, VA-9)")
struct DialogPropertyTests {
    private static let seedCount: UInt64 = 9_000
    /// The most seeds until a deliberate error must have shown itself.
    private static let mutantSeedCountMax: UInt64 = 4_000

    @Test("Each sentence has one reply and is carried out once, and each change is published in order")
    func schedules() {
        var (replies, repeated, deaths, lost, continued, confirmations, stale, interrupted) = (0, 0, 0, 0, 0, 0, 0, 0)
        var (heard, over, opened) = (0, 0, 0)
        let seeds = SeedShare.seeds(of: 0..<Self.seedCount)
        for seed in seeds {
            var world = DialogWorld(seed: seed)
            let violations = world.run()
            #expect(violations.isEmpty, "seed \(seed)")
            let counts = world.counts
            (replies, repeated, deaths) = (replies + counts.replies, repeated + counts.repeated, deaths + counts.deaths)
            (lost, continued, stale) = (lost + counts.lostChanges, continued + counts.continued, stale + counts.stale)
            (heard, over, opened) = (heard + counts.heard, over + counts.over, opened + counts.opened)
            (confirmations, interrupted) = (confirmations + counts.confirmations, interrupted + counts.interrupted)
        }
        // The runs reach what they are about.
        let share = seeds.count
        #expect(replies > 2 * share && repeated > share / 5 && deaths > share / 2)
        #expect(lost > share / 20 && continued > share / 20 && stale > share / 100)
        #expect(heard > share / 2 && over > share / 20 && opened > share / 100)
        #expect(confirmations > share / 100 && interrupted > share / 50)
    }

    @Test("Each deliberate error is caught", arguments: DialogMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: DialogMutant) {
        let seed = (0..<Self.mutantSeedCountMax).first { seed in
            var world = DialogWorld(seed: seed, mutant: mutant)
            return !world.run().isEmpty
        }
        #expect(seed != nil, "no seed of \(Self.mutantSeedCountMax) notices a dialog that \(mutant.rawValue)")
    }
}

@Suite("Devices of a room over a network that fails (VA-8)")
struct ArbitrationPropertyTests {
    private static let seedCount: UInt64 = 20_000

    @Test("Two devices do not answer one person while the room is up, and the loudest one listens as a rule")
    func schedules() {
        var (revisions, alone, deaths, right, all) = (0, 0, 0, 0, 0)
        for seed in SeedShare.seeds(of: 0..<Self.seedCount) {
            var world = ArbitrationWorld(seed: seed)
            let violations = world.run()
            #expect(violations.isEmpty, "seed \(seed): \(violations)")
            (revisions, alone) = (revisions + world.revisionCount, alone + world.aloneCount)
            (deaths, all) = (deaths + world.deathCount, all + 1)
            if world.isLoudest { right += 1 }
        }
        #expect(revisions > all / 50 && alone > all / 50 && deaths > all / 20)
        #expect(right > all / 3, "\(right) of \(all)")
    }

    @Test("Each deliberate error is caught", arguments: ArbitrationMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: ArbitrationMutant) {
        let seed = (0..<Self.seedCount).first { seed in
            var world = ArbitrationWorld(seed: seed, mutant: mutant)
            return !world.run().isEmpty
        }
        #expect(seed != nil, "no seed notices a room that \(mutant.rawValue)")
    }
}

import ApusCalls
import ApusTestKit
import Foundation
import Testing

/// Random calls in a cluster that fails, against a model of the contract.
///
/// A seed that fails is named in the failure.
@Suite("Calls over a network that fails, with owners that die (CALL-3 to CALL-10)")
struct CallPropertyTests {
    /// Runs without optimization take a part of the seeds.
    #if DEBUG
    private static let seedCount: UInt64 = 500
    #else
    private static let seedCount: UInt64 = 10_000
    #endif
    /// The most seeds until a deliberate error must have shown itself.
    private static let mutantSeedCountMax: UInt64 = 12_000

    @Test(
        "CALL-4: one leg wins, each leg learns its end once, nobody rings after it, and all parties are released",
        arguments: [CallType.oneToOne, .oneToMany, .oneToManySpecial])
    func schedules(type: CallType) {
        var counts = CallWorld.Counts()
        let seeds = SeedShare.seeds(of: 0..<Self.seedCount)
        for seed in seeds {
            var world = CallWorld(seed: seed, type: type)
            let violations = world.run()
            #expect(violations.isEmpty, "seed \(seed) of type \(type.rawValue)")
            counts.add(world.counts)
        }
        // The runs reach what they are about.
        let share = seeds.count
        #expect(counts.ended > share && counts.accepted > share / 5 && counts.deaths > share)
        #expect(counts.lostChanges > share / 100 && counts.lostOutputs > share / 100 && counts.late > 0)
        #expect(counts.deferredChanges > share)
        #expect(counts.busy > share / 20 && counts.glare > share / 200 && counts.joined > share / 100)
        #expect(counts.messages > share / 20 && counts.claimedAhead > share / 10)
        #expect(counts.legsMax >= 6 || type == .oneToOne)
        #expect(counts.byteCountMax < 1500)
    }

    @Test("A run is the same whenever it is run")
    func deterministic() {
        for seed: UInt64 in 0..<20 {
            var first = CallWorld(seed: seed, type: .oneToMany)
            var second = CallWorld(seed: seed, type: .oneToMany)
            _ = first.run()
            _ = second.run()
            #expect(first.counts.events == second.counts.events && first.now == second.now)
            #expect(first.calls.map(\.numbers) == second.calls.map(\.numbers))
        }
    }

    @Test("CALL-4: each deliberate error is caught", arguments: CallMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: CallMutant) {
        let types = [CallType.oneToOne, .oneToMany, .oneToManySpecial]
        let seed = (0..<Self.mutantSeedCountMax).first { seed in
            var world = CallWorld(seed: seed, type: types[Int(seed % 3)], mutant: mutant)
            return !world.run().isEmpty
        }
        #expect(seed != nil, "no seed of \(Self.mutantSeedCountMax) notices a call that \(mutant.rawValue)")
    }
}

extension CallWorld.Counts {
    fileprivate mutating func add(_ other: Self) {
        events += other.events
        accepted += other.accepted
        ended += other.ended
        deaths += other.deaths
        lostChanges += other.lostChanges
        lostOutputs += other.lostOutputs
        deferredChanges += other.deferredChanges
        late += other.late
        busy += other.busy
        glare += other.glare
        joined += other.joined
        lost += other.lost
        messages += other.messages
        claimedAhead += other.claimedAhead
        legsMax = max(legsMax, other.legsMax)
        byteCountMax = max(byteCountMax, other.byteCountMax)
    }
}

import ApusTestKit
import Testing

/// The channel's machines of several nodes, on a virtual clock, with seeded faults (D7, D14).
///
/// Each run kills and stops nodes, breaks links, swaps and replaces primary and standby, restarts the
/// publisher and moves viewers, and checks at every viewer that positions only grow, that nothing is
/// missing or other than it was sent, that what was acknowledged is held, and that in the end everybody
/// has everything. A seed that fails is printed with its story; `World.play(seed:)` runs it again.
@Suite("A channel in a cluster where things go wrong (D7)")
struct ChannelSimulationTests {
    private static func report(_ world: World) -> Comment {
        let lines =
            ["seed \(world.seed): \(world.failures.joined(separator: "; "))"] + world.story + [world.publisher.state]
        return Comment(rawValue: (lines + world.nodes.map(\.state)).joined(separator: "\n"))
    }

    @Test(
        "No frame is lost, doubled or changed, and every viewer catches up",
        arguments: SeedShare.chunks(of: 0..<1200, size: 50))
    func nothingIsLost(seeds: [UInt64]) {
        for seed in seeds {
            let world = World.play(seed: seed)
            if world.isFailed { Issue.record(Self.report(world)) }
        }
    }

    @Test("A seed replays exactly")
    func replay() {
        let (first, second) = (World.play(seed: 7), World.play(seed: 7))
        #expect(first.story == second.story)
        #expect(first.viewers.map(\.last) == second.viewers.map(\.last))
        #expect(first.now == second.now)
    }

    @Test("Each deliberate error is caught", arguments: Mutant.allCases.filter { $0 != .none })
    func mutantsAreCaught(mutant: Mutant) {
        let caught = (0..<UInt64(400)).first { World.play(seed: $0, mutant: mutant).isFailed }
        #expect(caught != nil, "no seed of 400 notices that a node \(mutant.rawValue)")
    }
}

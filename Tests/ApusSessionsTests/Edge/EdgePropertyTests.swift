import Testing

@Suite("Edges before owners that are replaced, over a network that fails (D6, IV-A5)")
struct EdgePropertyTests {
    @Test(
        "In the end the owners know what is true at the edges, and no superseded client has a socket",
        arguments: [0, 200, 400, 600].map { UInt64($0) })
    func rest(first: UInt64) {
        var counts = EdgeSimulation.Counts()
        for seed in first..<(first + 200) {
            var simulation = EdgeSimulation(seed: seed)
            let violations = simulation.run()
            #expect(violations.isEmpty, "seed \(seed)")
            counts.kicked += simulation.counts.kicked
            counts.released += simulation.counts.released
            counts.former += simulation.counts.former
            counts.early += simulation.counts.early
            counts.late += simulation.counts.late
            counts.doubled += simulation.counts.doubled
            counts.confirmed += simulation.counts.confirmed
            counts.open += simulation.counts.open
            counts.subscribed += simulation.counts.subscribed
            counts.asleep += simulation.counts.asleep
        }
        // The runs reach what they are about.
        #expect(counts.kicked > 200 && counts.released > 10 && counts.former > 20 && counts.early > 20)
        #expect(counts.late > 200 && counts.doubled > 200)
        #expect(counts.confirmed > 200 && counts.open > 200 && counts.subscribed > 50 && counts.asleep > 5)
    }

    @Test("A run is the same whenever it is run")
    func deterministic() {
        var first = EdgeSimulation(seed: 11)
        var second = EdgeSimulation(seed: 11)
        _ = first.run()
        _ = second.run()
        #expect(first.step == second.step && first.now == second.now && first.openLinks == second.openLinks)
        #expect(first.tickets == second.tickets && first.presentSince == second.presentSince)
    }

    @Test("Each deliberate error is caught", arguments: EdgeMutant.allCases.filter { $0 != .none })
    func mutantIsCaught(mutant: EdgeMutant) {
        let seed = (UInt64(0)..<400).first { seed in
            var simulation = EdgeSimulation(seed: seed, mutant: mutant)
            return !simulation.run().isEmpty
        }
        #expect(seed != nil, "no seed finds an edge that \(mutant.rawValue)")
    }
}

import ApusClient
import ApusCore
import ApusSessions
import Testing

@Suite("Clients on lines of any length (IV-A5, IV-A7, D6)")
struct LinkPropertyTests {
    private static let lines = [0, 150, 300, 600, 1000].flatMap { roundTrip in
        [0, 5, 40].map { refused in
            LinkSimulation.Line(
                roundTrip: UInt64(roundTrip)...UInt64(roundTrip), jitter: 20, refusedPercent: refused, work: 0...50)
        }
    }

    @Test(
        "Whatever the delays up to 1 s and the refusals, a client comes online with one session and is not kicked",
        arguments: UInt64(1)...300)
    func any(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let line = LinkSimulation.Line(
            roundTrip: 0...UInt64.random(in: 0...1000, using: &random),
            jitter: UInt64.random(in: 0...60, using: &random),
            refusedPercent: Int.random(in: 0...60, using: &random),
            work: 0...UInt64.random(in: 0...1000, using: &random))
        var simulation = LinkSimulation(seed: seed, line: line)
        simulation.run(until: 60_000)
        expectOnline(simulation, "seed \(seed), \(line)")
    }

    @Test("A session that was won is not lost to a hedge, and a hedge costs a node a socket", arguments: lines)
    func won(line: LinkSimulation.Line) {
        for seed in UInt64(1)...20 {
            var simulation = LinkSimulation(seed: seed, line: line)
            simulation.run(until: 30_000)
            expectOnline(simulation, "seed \(seed), \(line)")
            let client = simulation.clients[0]
            #expect(client.activations == 1, "seed \(seed), \(line)")
            #expect(client.hellos == 1, "seed \(seed), \(line)")
            #expect(client.handshakes <= 2, "seed \(seed), \(line)")
        }
    }

    @Test("Nodes that are slow with everything, up to 3 s, lose nobody a session", arguments: UInt64(1)...100)
    func slow(seed: UInt64) {
        let line = LinkSimulation.Line(roundTrip: 0...300, jitter: 200, refusedPercent: 5, work: 0...3000)
        var simulation = LinkSimulation(seed: seed, line: line)
        simulation.run(until: 60_000)
        expectOnline(simulation, "seed \(seed)")
    }

    @Test(
        "Of two clients of one identity that start at once, exactly one stays, and the other is told 12003",
        arguments: UInt64(1)...300)
    func two(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let line = LinkSimulation.Line(
            roundTrip: 0...UInt64.random(in: 0...600, using: &random), jitter: 30,
            refusedPercent: Int.random(in: 0...30, using: &random),
            work: 0...UInt64.random(in: 0...600, using: &random))
        var simulation = LinkSimulation(seed: seed, line: line, clientCount: 2)
        simulation.run(until: 60_000)
        let states = simulation.clients.map(\.state)
        #expect(states.count { $0 == .online } == 1, "seed \(seed): \(states)")
        #expect(states.count { $0 == .kicked } == 1, "seed \(seed): \(states)")
        let winner = states.firstIndex(of: .online) ?? 0
        #expect(simulation.owner.places == [simulation.activePlace(winner)], "seed \(seed)")
    }

    private func expectOnline(_ simulation: LinkSimulation, _ what: String) {
        #expect(simulation.kickCount == 0, "kicked itself: \(what)")
        #expect(simulation.clients[0].state == .online, "\(what)")
        #expect(simulation.activePlace(0) != nil, "\(what)")
        #expect(simulation.owner.places == [simulation.activePlace(0)], "\(what)")
    }
}

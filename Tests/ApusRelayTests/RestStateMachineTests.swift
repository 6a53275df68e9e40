import ApusRelay
import Testing

@Suite("Rests between rounds of a busy relay (D8)")
struct RestStateMachineTests {
    /// A plane under a load, by a clock of its own.
    private struct Load {
        var machine = RestStateMachine()
        var now: UInt64 = 1_000_000_000
        var cpu: UInt64 = 0
        private(set) var restCount = 0

        /// Runs rounds for so long: each takes its interval, longer by a rest, and brings what came meanwhile.
        ///
        /// - Parameters:
        ///   - messages: what a round brings that no rest came before.
        ///   - rested: what a round brings that a rest came before.
        ///   - cost: CPU time of such a round, of either.
        mutating func run(
            milliseconds: UInt64, every interval: UInt64 = 20_000, rest: UInt64 = 70_000, messages: Int, rested: Int,
            cost: (awake: UInt64, rested: UInt64)
        ) {
            let end = now + milliseconds * 1_000_000
            while now < end {
                let isRested = machine.isResting
                now += interval + (isRested ? rest : 0)
                cpu += isRested ? cost.rested : cost.awake
                let count = isRested ? rested : messages
                if machine.roundEnded(messages: count, packets: UInt64(count), at: now) {
                    machine.sliceEnded(at: now, cpu: cpu)
                }
                if machine.isResting { restCount += 1 }
            }
        }
    }

    @Test("A load whose packets are cheaper with rests gets them, for as long as it lasts")
    func cheaper() {
        var load = Load()
        load.run(milliseconds: 50, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(load.machine.isResting)
        let before = load.restCount
        load.run(milliseconds: 2_000, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(load.machine.isResting)
        // 90 µs each; trials, of which half rests, are 6 % of the time.
        #expect((20_500...22_300).contains(load.restCount - before))
        // A call's packets are too few.
        load.run(milliseconds: 20, every: 2_000_000, messages: 1, rested: 1, cost: (12_000, 20_000))
        #expect(!load.machine.isResting)
        let after = load.restCount
        load.run(milliseconds: 3_000, every: 2_000_000, messages: 1, rested: 1, cost: (12_000, 20_000))
        #expect(load.restCount == after)
    }

    @Test("A load that gains less than 8 % is rested for in trials alone", arguments: [37_000 as UInt64, 50_000])
    func dearer(cost: UInt64) {
        var load = Load()
        load.run(milliseconds: 50, messages: 4, rested: 12, cost: (12_000, cost))
        #expect(!load.machine.isResting)
        load.run(milliseconds: 2_000, messages: 4, rested: 12, cost: (12_000, cost))
        // Four trials of three slices of 5 ms, 90 µs a rest.
        #expect((600...740).contains(load.restCount))
    }

    @Test("A sender that waits for its answers never waits for a rest")
    func lockStep() {
        var load = Load()
        // 100,000 packets a second, one under way.
        load.run(milliseconds: 3_000, every: 10_000, messages: 1, rested: 1, cost: (8_000, 8_000))
        #expect(load.restCount == 0)
        // Four at once: a trial shows that rests bring no more of them, and ends at once.
        load.run(milliseconds: 3_000, every: 40_000, rest: 200_000, messages: 4, rested: 4, cost: (12_000, 22_000))
        #expect(!load.machine.isResting)
        #expect(load.restCount < 200)
    }

    @Test("A slow load, and one that comes after a pause, is served at once")
    func slow() {
        var load = Load()
        load.run(milliseconds: 3_000, every: 100_000, messages: 2, rested: 9, cost: (12_000, 20_000))
        #expect(load.restCount == 0)
        load.run(milliseconds: 50, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(load.machine.isResting)
        // Its first round ends the slice that the pause was in.
        load.now += 10_000_000_000
        load.run(milliseconds: 4, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(!load.machine.isResting)
    }

    @Test("The load decides anew: what was cheaper before is given up when it is not any more")
    func changes() {
        var load = Load()
        load.run(milliseconds: 1_000, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(load.machine.isResting)
        load.run(milliseconds: 600, messages: 4, rested: 12, cost: (12_000, 50_000))
        #expect(!load.machine.isResting)
        load.run(milliseconds: 600, messages: 4, rested: 18, cost: (12_000, 40_000))
        #expect(load.machine.isResting)
    }
}

@Suite("How many datagrams a relay socket is asked for (D8)")
struct ReadDepthTests {
    @Test("One, until it had several or is ready in two rounds running; then all, for eight reads of one")
    func depth() {
        var depth = ReadDepth()
        /// A read in a round that gives so many; answers whether all were asked for.
        func read(_ count: Int, in round: UInt32) -> Bool {
            defer { depth.had(count) }
            return depth.isMany(in: round)
        }
        for round in [10 as UInt32, 20, 30] {
            let isMany = read(1, in: round)
            #expect(!isMany)
        }
        let isNext = read(5, in: 31)
        #expect(isNext)
        for number in 0..<UInt32(ReadDepth.readsMax) {
            let isMany = read(1, in: 40 + number * 10)
            #expect(isMany)
        }
        for round in [1_000 as UInt32, 1_010] {
            let isMany = read(-11, in: round)
            #expect(!isMany)
        }
    }
}

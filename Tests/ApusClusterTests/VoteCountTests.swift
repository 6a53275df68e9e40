import ApusCluster
import Testing

/// Every cluster of up to 12 members, and every number of watchers up to 12: who may answer, and who may be declared
/// dead.
@Suite("The votes against a silent member, and the promises to it (D4)")
struct VoteCountTests {
    /// `lost` died just now and their promises may last; `dead` died earlier.
    private func everyCase(of count: Int, _ body: (_ lost: Int, _ dead: Int) -> Void) {
        for lost in 0...count {
            for dead in 0...(count - lost) { body(lost, dead) }
        }
    }

    @Test("Of all members, those that did not promise decide nothing while a majority promised", arguments: 2...12)
    func members(count: Int) {
        everyCase(of: count - 1) { lost, dead in
            let voters = count - 1 - lost - dead
            let promisers = max(0, count / 2 - lost)
            guard promisers <= voters else { return }
            for votes in 0...(voters - promisers) {
                let share = VoteCount(voterCount: voters, lostCount: lost, countedCount: votes).share
                #expect(share == .few, "\(votes) of \(count) with \(lost) lost and \(dead) dead")
            }
        }
    }

    @Test("Of a member's watchers as well, whether their votes count or not", arguments: 1...6)
    func watchers(half: Int) {
        let count = half * 2
        everyCase(of: count) { lost, dead in
            let voters = count - lost - dead
            let promisers = max(0, count / 2 + 1 - lost)
            guard promisers <= voters else { return }
            for votes in 0...(voters - promisers) {
                for counted in 0...votes {
                    let share = VoteCount(
                        voterCount: voters, lostCount: lost, watcherCount: count, countedCount: counted,
                        uncountedCount: votes - counted
                    ).share
                    #expect(share == .few, "\(votes) of \(count) with \(lost) lost and \(dead) dead")
                }
            }
        }
    }

    @Test("Once the promises of the dead have ended, those that are left decide", arguments: 2...12)
    func survivors(count: Int) {
        for dead in 0...(count - 2) {
            let voters = count - 1 - dead
            // Of two members neither is a majority.
            let expected: VoteCount.Share = voters == 1 ? .half : .majority
            #expect(VoteCount(voterCount: voters, countedCount: voters).share == expected)
        }
        guard count.isMultiple(of: 2) else { return }
        for dead in 0..<(count - 1) {
            let voters = count - dead
            #expect(VoteCount(voterCount: voters, watcherCount: count, countedCount: voters).share == .majority)
        }
    }

    @Test("Votes that do not count leave the decision to the lease")
    func uncounted() {
        #expect(VoteCount(voterCount: 8, watcherCount: 8, countedCount: 5).share == .majority)
        #expect(VoteCount(voterCount: 8, watcherCount: 8, countedCount: 4, uncountedCount: 4).share == .half)
        #expect(VoteCount(voterCount: 8, watcherCount: 8, countedCount: 0, uncountedCount: 5).share == .half)
        #expect(VoteCount(voterCount: 8, watcherCount: 8, countedCount: 0, uncountedCount: 3).share == .few)
        #expect(VoteCount(voterCount: 11, countedCount: 4, uncountedCount: 3).share == .half)
    }
}

import ApusCore
import Testing

@Suite("Shares of accounts in what a node has a bounded amount of (D13)")
struct AccountSharesTests {
    private func account(_ name: String) -> AccountID { AccountID(unchecked: name) }

    @Test("One account has most of it, never all; another that comes later has its part at once")
    func late() {
        var shares = AccountShares(capacity: 9_000)
        var first = 0
        while shares.take(1, for: account("first")) { first += 1 }
        #expect(first == 8_000)
        var second = 0
        while shares.take(1, for: account("second")) { second += 1 }
        #expect(second > 800)
        for other in 0..<50 {
            let isTaken = shares.take(1, for: account("other\(other)"))
            #expect(isTaken)
        }
        #expect(shares.used < 9_000)
        // What is given back is another's.
        shares.change(by: -8_000, of: account("first"))
        #expect(shares.held(by: account("first")) == 0)
        while shares.take(1, for: account("second")) { second += 1 }
        #expect(second > 7_500)
    }

    @Test("The first one of an account is taken while there is any room, and nothing beyond the capacity")
    func small() {
        var shares = AccountShares(capacity: 2)
        let accounts: [AccountID?] = [account("a"), account("b"), account("c"), nil]
        let taken = accounts.map { shares.take(1, for: $0) }
        #expect(taken == [true, true, false, false])
        #expect(shares.used == 2)
    }

    @Test(
        "Holders that have too much for a moment are not at another account's cost, in whatever order they are counted")
    func recounted() {
        let (capacity, most, frame) = (64 << 20, 8 << 20, 4 << 20)
        var shares = AccountShares(capacity: capacity)
        let (attacker, good) = (account("attacker"), account("good"))
        var counted = [Int](repeating: 0, count: 60)
        var ours = 0
        // Each holder's first frame is counted before any other holder is counted again.
        for index in counted.indices {
            (_, counted[index]) = shares.recount(from: 0, to: frame, most: most, of: attacker, holderCount: index + 1)
            let result = shares.recount(from: ours, to: 300 << 10, most: most, of: good, holderCount: 1)
            ours = result.counted
            #expect(result.limit >= capacity / 18 && ours == 300 << 10, "after \(index + 1) frames")
        }
        // Once each is counted again, the attacker is within its share, and so it stays.
        for round in 0..<3 {
            for index in counted.indices {
                let result = shares.recount(
                    from: counted[index], to: round == 1 ? frame : min(frame, counted[index]), most: most, of: attacker,
                    holderCount: 60)
                counted[index] = result.counted
            }
            #expect(shares.held(by: attacker) <= shares.limit(of: attacker))
            #expect(shares.used < capacity)
        }
        for index in counted.indices {
            (_, counted[index]) = shares.recount(from: counted[index], to: 0, most: most, of: attacker, holderCount: 60)
        }
        #expect(shares.used == ours)
    }
}

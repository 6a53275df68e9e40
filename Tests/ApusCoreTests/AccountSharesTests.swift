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
}

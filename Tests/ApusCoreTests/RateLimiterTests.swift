import ApusCore
import Testing

@Suite("How often each of many may do something (D13)")
struct RateLimiterTests {
    private let start = MonotonicTime(nanoseconds: 5_000_000_000)

    @Test("A minute's worth comes at once, then one after the other; another identity is not held up")
    func rate() {
        var limiter = RateLimiter<String>(6, per: .seconds(60), burst: 6)
        func taken(_ identity: String, _ count: Int, after span: Duration = .zero) -> Int {
            (0..<count).count { _ in limiter.take(identity, at: start + span) }
        }
        #expect(taken("ann", 9) == 6)
        #expect(taken("bob", 1) == 1)
        #expect(taken("ann", 1, after: .milliseconds(9_999)) == 0)
        #expect(taken("ann", 3, after: .seconds(10)) == 1)
        #expect(taken("ann", 9, after: .seconds(600)) == 6)
    }

    @Test("The table is bounded: one identity more waits until the bucket of another is full again")
    func bounded() {
        var limiter = RateLimiter<String>(6, per: .seconds(60), burst: 6, keysMax: 2)
        func isTaken(_ identity: String, after span: Duration = .zero) -> Bool {
            limiter.take(identity, at: start + span)
        }
        #expect(isTaken("ann") && isTaken("bob"))
        #expect(!isTaken("eve") && limiter.count == 2)
        #expect(isTaken("ann"), "those that are counted go on")
        #expect(isTaken("eve", after: .seconds(10)), "the bucket of bob is full")
        #expect(limiter.count == 2)
    }
}

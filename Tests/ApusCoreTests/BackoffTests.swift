import ApusCore
import Testing

@Suite("Waits that double")
struct BackoffTests {
    /// The next waits, in milliseconds.
    private func waits(_ count: Int, _ backoff: inout Backoff) -> [Int64] {
        (0..<count).map { _ in Int64(backoff.next().milliseconds) }
    }

    @Test("Each wait is twice the one before, up to the longest, and begins again after a success")
    func doubling() {
        var backoff = Backoff(first: .milliseconds(50), longest: .milliseconds(300))
        #expect(backoff.isFirst)
        let first = waits(5, &backoff)
        #expect(first == [50, 100, 200, 300, 300] && !backoff.isFirst)
        backoff.reset()
        #expect(backoff.isFirst)
        let second = waits(2, &backoff)
        #expect(second == [50, 100])
    }

    @Test("A first wait that is the longest stays, and one beyond it is used once")
    func bounds() {
        var same = Backoff(first: .seconds(1), longest: .seconds(1))
        let equal = waits(3, &same)
        #expect(equal == [1_000, 1_000, 1_000] && same.isFirst)
        var longer = Backoff(first: .seconds(2), longest: .seconds(1))
        let bounded = waits(3, &longer)
        #expect(bounded == [2_000, 1_000, 1_000])
    }

    @Test("From a number of failures follow the same waits, however many there are")
    func counted() {
        var backoff = Backoff(first: .milliseconds(7), longest: .seconds(20))
        for failures in 1...40 {
            let wait = backoff.next()
            #expect(Backoff.wait(after: failures, first: .milliseconds(7), longest: .seconds(20)) == wait)
            let stored = Backoff.wait(after: failures, first: 7, longest: 20_000)
            #expect(Duration.milliseconds(stored) == wait)
        }
        #expect(Backoff.wait(after: .max, first: 500, longest: 60_000) == 60_000)
        #expect(Backoff.wait(after: .max, first: .seconds(1), longest: .seconds(60)) == .seconds(60))
        // None has failed: as after the first.
        #expect(Backoff.wait(after: 0, first: 500, longest: 60_000) == 500)
    }
}

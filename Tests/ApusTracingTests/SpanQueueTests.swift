import ApusTracing
import Testing

@Suite("The queue of finished spans")
struct SpanQueueTests {
    private typealias Queue = SpanQueueStateMachine<Int>

    private func make(countMax: Int = 8, batch: Int = 4, retries: [Duration] = [.seconds(1), .seconds(2)]) -> Queue {
        var limits = Queue.Limits()
        (limits.countMax, limits.batchCountMax, limits.retryWaits) = (countMax, batch, retries)
        return Queue(limits)
    }

    private func started(_ outcome: Queue.Outcome) -> (number: Int, wait: Duration)? {
        if case .startTimer(let number, let wait) = outcome.step { (number, wait) } else { nil }
    }

    private func sent(_ outcome: Queue.Outcome) -> [Int]? {
        if case .send(let batch) = outcome.step { batch } else { nil }
    }

    private func isDrained(_ outcome: Queue.Outcome) -> Bool {
        if case .drained = outcome.step { true } else { false }
    }

    private func isQuiet(_ outcome: Queue.Outcome) -> Bool {
        if case .none = outcome.step { outcome.droppedCount == 0 && outcome.exportedCount == 0 } else { false }
    }

    @Test("The first span starts one timer, and what came until it fires is one batch")
    func byTime() throws {
        var queue = make()
        let timer = try #require(started(queue.finished(1)))
        #expect(timer.wait == .seconds(1))
        #expect(isQuiet(queue.finished(2)))
        #expect(sent(queue.timerFired(timer.number)) == [1, 2])
        let outcome = queue.answered(.accepted)
        #expect(outcome.exportedCount == 2 && outcome.droppedCount == 0 && queue.count == 0)
        #expect(isQuiet(queue.timerFired(timer.number)))
    }

    @Test("A full batch is sent at once, and its timer has no effect afterwards; the next batch follows the answer")
    func bySize() throws {
        var queue = make()
        let timer = try #require(started(queue.finished(1)))
        for span in 2...3 { #expect(isQuiet(queue.finished(span))) }
        #expect(sent(queue.finished(4)) == [1, 2, 3, 4])
        #expect(isQuiet(queue.timerFired(timer.number)))
        for span in 5...8 { #expect(isQuiet(queue.finished(span))) }
        #expect(sent(queue.answered(.accepted)) == [5, 6, 7, 8])
    }

    @Test("The span over the bound is dropped; those under way count")
    func bound() {
        var queue = make()
        for span in 1...8 { #expect(queue.finished(span).droppedCount == 0) }
        #expect(queue.count == 8 && queue.finished(9).droppedCount == 1)
        #expect(sent(queue.answered(.accepted)) == [5, 6, 7, 8])
        #expect(queue.finished(10).droppedCount == 0 && queue.count == 5)
    }

    @Test("A batch without an answer is sent again after each wait, and then dropped")
    func retries() throws {
        var queue = make(batch: 1)
        #expect(sent(queue.finished(1)) == [1])
        for wait in [1, 2] {
            let timer = try #require(started(queue.answered(.unavailable)))
            #expect(timer.wait == .seconds(wait) && queue.count == 1)
            #expect(sent(queue.timerFired(timer.number)) == [1])
        }
        let outcome = queue.answered(.unavailable)
        #expect(outcome.droppedCount == 1 && outcome.exportedCount == 0 && queue.count == 0)
    }

    @Test("A refused batch is dropped at once")
    func refused() {
        var queue = make(batch: 1)
        _ = queue.finished(1)
        let outcome = queue.answered(.refused)
        #expect(outcome.droppedCount == 1 && queue.count == 0)
    }

    @Test("A drain sends everything, each batch once, and ends")
    func drain() {
        var queue = make()
        for span in 1...7 { _ = queue.finished(span) }
        #expect(isQuiet(queue.drain()))
        #expect(sent(queue.answered(.accepted)) == [5, 6, 7])
        let last = queue.answered(.unavailable)
        #expect(isDrained(last) && last.droppedCount == 3)
        #expect(queue.finished(8).droppedCount == 1)
        var empty = make()
        #expect(isDrained(empty.drain()))
        #expect(isDrained(empty.drain()))
    }

    @Test("A batch that waits for its next attempt is sent at once by a drain")
    func drainWhileWaiting() throws {
        var queue = make(batch: 1)
        _ = queue.finished(1)
        let timer = try #require(started(queue.answered(.unavailable)))
        #expect(sent(queue.drain()) == [1])
        #expect(isQuiet(queue.timerFired(timer.number)))
        #expect(isDrained(queue.answered(.accepted)))
    }

    @Test("What is left when the drain's time is over is dropped, and a late answer has no effect")
    func abandon() {
        var queue = make()
        for span in 1...6 { _ = queue.finished(span) }
        _ = queue.drain()
        let outcome = queue.abandon()
        #expect(isDrained(outcome) && outcome.droppedCount == 6 && queue.count == 0)
        #expect(isQuiet(queue.answered(.accepted)))
    }
}

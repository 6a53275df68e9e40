import ApusCore
import Synchronization
import Testing

@Suite("Work that is left to a task", .timeLimit(.minutes(1)))
struct WorkQueueTests {
    /// What was performed, in order.
    private final class Record: Sendable {
        private let items = Mutex<[Int]>([])
        var all: [Int] { items.withLock { $0 } }
        func add(_ item: Int) { items.withLock { $0.append(item) } }
    }

    @Test("Items that wait when the queue is finished are performed, and no later one")
    func finished() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        for item in 1...3 { #expect(queue.add(item)) }
        queue.finish()
        #expect(!queue.add(4))
        await queue.run { record.add($0) }
        #expect(record.all.sorted() == [1, 2, 3])
    }

    @Test("Beyond its bound a queue drops the newest item, and says so")
    func bounded() async {
        let (queue, record) = (WorkQueue<Int>(countMax: 2), Record())
        #expect((1...4).map { queue.add($0) } == [true, true, false, false])
        queue.finish()
        await queue.runInOrder { record.add($0) }
        #expect(record.all == [1, 2])
    }

    @Test("Items run side by side: one that waits holds up no other")
    func sideBySide() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        let (gate, opener) = AsyncStream.makeStream(of: Void.self)
        queue.add(1)
        queue.add(2)
        await queue.run { item in
            if item == 1 {
                for await _ in gate { break }
            } else {
                opener.yield()
                queue.finish()
            }
            record.add(item)
        }
        #expect(record.all.sorted() == [1, 2])
    }

    @Test("In order, an item begins when the one before has ended")
    func inOrder() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        for item in 1...5 { queue.add(item) }
        queue.finish()
        await queue.runInOrder { item in
            for _ in 0..<(6 - item) { await Task.yield() }
            record.add(item)
        }
        #expect(record.all == [1, 2, 3, 4, 5])
    }

    @Test("At most so many items run at once, and the next begins when one has ended, whichever it is")
    func atMost() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        let (gate, opener) = AsyncStream.makeStream(of: Void.self)
        let begun = Atomic<Int>(0)
        let running = Atomic<Int>(0)
        let mostRunning = Atomic<Int>(0)
        for item in 1...20 { queue.add(item) }
        queue.finish()
        await queue.run(atMost: 3) { item in
            begun.add(1, ordering: .relaxed)
            mostRunning.max(running.add(1, ordering: .relaxed).newValue, ordering: .relaxed)
            // All three places are used.
            while begun.load(ordering: .relaxed) < 3 { await Task.yield() }
            if item == 1 {
                // Ends last: the others pass it in the two places that are left.
                for await _ in gate { break }
            } else {
                for _ in 0..<10 { await Task.yield() }
                if item == 20 { opener.yield() }
            }
            record.add(item)
            running.subtract(1, ordering: .relaxed)
        }
        #expect(record.all.sorted() == Array(1...20) && record.all.firstIndex(of: 1).map { $0 >= 17 } == true)
        #expect(mostRunning.load(ordering: .relaxed) == 3)
    }

    @Test("A cancelled task ends what runs of at most so many items, and returns")
    func atMostCancelled() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        let (begun, sign) = AsyncStream.makeStream(of: Void.self)
        for item in 1...2 { queue.add(item) }
        let runner = Task {
            await queue.run(atMost: 2) { item in
                record.add(item)
                sign.yield()
                while !Task.isCancelled { await Task.yield() }
            }
        }
        var count = 0
        for await _ in begun {
            count += 1
            if count == 2 { break }
        }
        runner.cancel()
        await runner.value
        queue.add(3)
        #expect(record.all.sorted() == [1, 2])
    }

    @Test("A finished queue waits for what is under way, or cancels it", arguments: [true, false])
    func ending(cancels: Bool) async {
        let queue = WorkQueue<Int>(countMax: nil)
        let wasCancelled = Mutex<Bool?>(nil)
        let (gate, opener) = AsyncStream.makeStream(of: Void.self)
        queue.add(1)
        await queue.run(whenFinished: cancels ? .cancels : .waits) { _ in
            queue.finish()
            // Ends when it is cancelled, or else when the gate is opened.
            if !cancels { opener.yield() }
            for await _ in gate { break }
            let isCancelled = Task.isCancelled
            wasCancelled.withLock { $0 = isCancelled }
        }
        #expect(wasCancelled.withLock { $0 } == cancels)
    }

    @Test("A cancelled task performs nothing further and returns")
    func cancelled() async {
        let (queue, record) = (WorkQueue<Int>(countMax: nil), Record())
        let (begun, sign) = AsyncStream.makeStream(of: Void.self)
        queue.add(1)
        let runner = Task {
            await queue.run { item in
                record.add(item)
                sign.yield()
                while !Task.isCancelled { await Task.yield() }
            }
        }
        for await _ in begun { break }
        runner.cancel()
        await runner.value
        queue.add(2)
        #expect(record.all == [1])
    }
}

/// Work that is left to a task by callers that do not wait for it: a bounded queue, and the loop that performs what is
/// in it.
///
/// Callers of ``add(_:)`` may be anywhere: in a handler of an event loop, under a lock, in another task. One task calls
/// ``run(whenFinished:_:)``, ``run(atMost:_:)`` or ``runInOrder(_:)``, once; its task group owns everything that is
/// performed, so that nothing outlives it.
///
/// Isolation: safe to use from any thread and task.
public final class WorkQueue<Item: Sendable>: Sendable {
    /// What becomes of work that is in progress when the queue is finished.
    public enum Ending: Sendable {
        /// It is waited for.
        case waits
        /// It is cancelled, and waited for.
        case cancels
    }

    private let items: AsyncStream<Item>
    private let feed: AsyncStream<Item>.Continuation

    /// An empty queue.
    ///
    /// - Parameter countMax: items that may wait, beside those in progress; one more is dropped. Nil: whoever adds
    ///   bounds them, for example because each of a bounded number of connections has at most one.
    public init(countMax: Int?) {
        (items, feed) = AsyncStream.makeStream(
            bufferingPolicy: countMax.map { .bufferingOldest($0) } ?? .unbounded)
    }

    /// Leaves an item to the task that runs the queue.
    ///
    /// - Returns: False where it was dropped: as many wait as may, or the queue is finished.
    @discardableResult
    public func add(_ item: Item) -> Bool {
        if case .enqueued = feed.yield(item) { true } else { false }
    }

    /// Takes no more items. What waits is still performed.
    public func finish() { feed.finish() }

    /// Performs the items side by side, each as soon as it is there, until the queue is finished or the task is
    /// cancelled. Returns when no work is in progress.
    public func run(whenFinished ending: Ending = .waits, _ perform: @escaping @Sendable (Item) async -> Void) async {
        await withDiscardingTaskGroup { group in
            for await item in items { group.addTask { await perform(item) } }
            if ending == .cancels { group.cancelAll() }
        }
    }

    /// Performs the items side by side, at most `countMax` of them at once, until the queue is finished or the task is
    /// cancelled. The next one, in the order in which they were added, begins when one has ended. Returns when no work
    /// is in progress.
    public func run(atMost countMax: Int, _ perform: @escaping @Sendable (Item) async -> Void) async {
        await withTaskGroup(of: Void.self) { group in
            var count = 0
            for await item in items {
                if count >= countMax { await group.next() } else { count += 1 }
                group.addTask { await perform(item) }
            }
        }
    }

    /// Performs the items one after another, in the order in which they were added, until the queue is finished or the
    /// task is cancelled.
    public func runInOrder(_ perform: (Item) async -> Void) async {
        for await item in items { await perform(item) }
    }
}

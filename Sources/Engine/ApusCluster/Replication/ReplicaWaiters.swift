package import ApusCore
import DequeModule

/// Who waits for changes of one shard to be acknowledged, in the order of the changes. Each is given back exactly once.
///
/// A value; time is passed in.
package struct ReplicaWaiters<Waiter: Sendable>: Sendable {
    private struct Entry: Sendable {
        var number: UInt64
        var deadline: MonotonicTime
        var waiter: Waiter
    }

    private var entries = Deque<Entry>()

    package init() {}

    package var isEmpty: Bool { entries.isEmpty }

    /// Waits for a change by its number.
    package mutating func add(_ waiter: Waiter, for number: UInt64, until deadline: MonotonicTime) {
        // Nearly always the newest: threads that changed the shard one after the other may come here the other way
        // round.
        var index = entries.count
        while index > 0, entries[index - 1].number > number { index -= 1 }
        entries.insert(Entry(number: number, deadline: deadline, waiter: waiter), at: index)
    }

    /// Those who wait for changes up to this one.
    package mutating func take(upTo number: UInt64) -> [Waiter] {
        var taken: [Waiter] = []
        while let first = entries.first, first.number <= number {
            taken.append(first.waiter)
            entries.removeFirst()
        }
        return taken
    }

    /// Those whose time is over; in order, up to the first whose is not.
    package mutating func takeExpired(at now: MonotonicTime) -> [Waiter] {
        var taken: [Waiter] = []
        while let first = entries.first, first.deadline <= now {
            taken.append(first.waiter)
            entries.removeFirst()
        }
        return taken
    }

    package mutating func takeAll() -> [Waiter] {
        defer { entries.removeAll() }
        return entries.map(\.waiter)
    }
}

package import ApusCore
import DequeModule

/// The callers that wait for changes of one shard to be acknowledged, in the order of the changes. Each is returned
/// exactly once.
///
/// A value. Time is passed in.
package struct ReplicaWaiters<Waiter: Sendable>: Sendable {
    private struct Entry: Sendable {
        var number: UInt64
        var deadline: MonotonicTime
        var waiter: Waiter
    }

    private var entries = Deque<Entry>()

    package init() {}

    package var isEmpty: Bool { entries.isEmpty }

    /// Adds a caller that waits for the change of this number.
    package mutating func add(_ waiter: Waiter, for number: UInt64, until deadline: MonotonicTime) {
        // Nearly always the newest. Threads that changed the shard one after the other may arrive here in the opposite
        // order.
        var index = entries.count
        while index > 0, entries[index - 1].number > number { index -= 1 }
        entries.insert(Entry(number: number, deadline: deadline, waiter: waiter), at: index)
    }

    /// Removes and returns the callers that wait for changes up to this one.
    package mutating func take(upTo number: UInt64) -> [Waiter] {
        var taken: [Waiter] = []
        while let first = entries.first, first.number <= number {
            taken.append(first.waiter)
            entries.removeFirst()
        }
        return taken
    }

    /// Removes and returns the callers whose time-out has passed: in order, up to the first whose time-out has not.
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

/// A caller that waits until a node has everything that a shard's owner has acknowledged.
struct ReplicaCatchUp<Completion> {
    var shard: ShardID
    var epoch: Epoch
    var node: NodeID
    var deadline: MonotonicTime
    var completion: Completion
}

extension ReplicaCatchUp: Sendable where Completion: Sendable {}

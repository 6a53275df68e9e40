import Synchronization

/// A bounded lock-free queue from one thread to another.
///
/// Concurrency model: one thread calls ``push(_:)``, one other ``pop()``. The owner guarantees this (``PlaneLink``: a
/// plane's thread at one end, the control thread at the other).
package final class BoundedRing<Element: Sendable>: @unchecked Sendable {  // SAFETY: `head` and `tail` transfer slots.
    // SAFETY: the producer writes a slot before `tail` passes it (releasing), and the consumer reads it after it saw
    // that (acquiring); the same holds in reverse for `head`. No slot is accessed by both at once.
    private let slots: UnsafeMutablePointer<Element?>
    private let mask: Int
    private let head = Atomic<Int>(0)
    private let tail = Atomic<Int>(0)

    /// - Parameter capacity: the most elements, rounded up to a power of two.
    package init(capacity: Int) {
        var size = 2
        while size < capacity { size *= 2 }
        mask = size - 1
        slots = .allocate(capacity: size)
        slots.initialize(repeating: nil, count: size)
    }

    deinit {
        slots.deinitialize(count: mask + 1)
        slots.deallocate()
    }

    /// The most elements in the ring.
    package var capacity: Int { mask + 1 }

    /// True if nothing waits; for either side.
    package var isEmpty: Bool {
        head.load(ordering: .sequentiallyConsistent) == tail.load(ordering: .sequentiallyConsistent)
    }

    /// Adds an element. The producer only.
    ///
    /// - Returns: false if the ring is full.
    package func push(_ element: Element) -> Bool {
        let position = tail.load(ordering: .relaxed)
        guard position &- head.load(ordering: .acquiring) <= mask else { return false }
        slots[position & mask] = element
        tail.store(position &+ 1, ordering: .sequentiallyConsistent)
        return true
    }

    /// Takes the oldest element. The consumer only.
    package func pop() -> Element? {
        let position = head.load(ordering: .relaxed)
        guard position != tail.load(ordering: .acquiring) else { return nil }
        let element = slots[position & mask]
        slots[position & mask] = nil
        head.store(position &+ 1, ordering: .releasing)
        return element
    }
}

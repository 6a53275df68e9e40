import CApusNet
import Synchronization

/// Wakes one thread that sleeps in its poll. It costs a system call only if the thread sleeps.
///
/// Concurrency model: ``wake()`` from any thread; the rest by the sleeping thread only.
package final class Waker: Sendable {
    /// Readable when the thread is to wake.
    package let descriptor: Int32
    private let isAsleep = Atomic<Bool>(false)

    package init(descriptor: Int32) { self.descriptor = descriptor }

    deinit { apus_close(descriptor) }

    /// Makes the thread check its queues.
    package func wake() {
        guard isAsleep.load(ordering: .sequentiallyConsistent) else { return }
        if isAsleep.exchange(false, ordering: .sequentiallyConsistent) { apus_wake(descriptor) }
    }

    /// The thread is about to sleep. It must check its queues once more after this.
    package func willSleep() { isAsleep.store(true, ordering: .sequentiallyConsistent) }

    /// The thread is awake.
    package func didWake() { isAsleep.store(false, ordering: .sequentiallyConsistent) }

    /// Empties the descriptor.
    package func clear() { apus_wake_clear(descriptor) }
}

/// The rings between a plane and the control thread (D8): events to control, with a separate ring for clients without
/// an allocation, so that a flood of theirs does not delay other clients' refreshes; commands to the plane.
package final class PlaneLink: Sendable {
    package let index: UInt8
    package let events: BoundedRing<PlaneEvent>
    /// Messages of clients without an allocation, or beyond their share. They are handled after ``events``.
    package let unauthenticated: BoundedRing<PlaneEvent>
    package let commands: BoundedRing<PlaneCommand>
    /// Wakes the plane.
    package let plane: Waker
    /// Wakes control; shared by all planes.
    package let control: Waker
    private let stopRequested = Atomic<Bool>(false)

    package init(index: UInt8, capacity: Int, plane: Waker, control: Waker) {
        self.index = index
        events = BoundedRing(capacity: capacity)
        unauthenticated = BoundedRing(capacity: capacity)
        commands = BoundedRing(capacity: capacity)
        self.plane = plane
        self.control = control
    }

    /// Sends a command to the plane. The control thread only.
    ///
    /// - Returns: false if the ring is full.
    package func command(_ command: PlaneCommand) -> Bool {
        guard commands.push(command) else { return false }
        plane.wake()
        return true
    }

    /// Sends an event to control. The plane's thread only.
    ///
    /// - Returns: false if the ring is full.
    func event(_ event: PlaneEvent) -> Bool {
        guard events.push(event) else { return false }
        control.wake()
        return true
    }

    /// Sends an event of a client without an allocation to control. The plane's thread only.
    ///
    /// - Returns: false if the ring is full. Events of allocations have a separate ring.
    func unauthenticatedEvent(_ event: PlaneEvent) -> Bool {
        guard unauthenticated.push(event) else { return false }
        control.wake()
        return true
    }

    /// True if no event of this plane waits for control.
    var isQuiet: Bool { events.isEmpty && unauthenticated.isEmpty }

    /// Stops the plane. Call from any thread.
    func stop() {
        stopRequested.store(true, ordering: .sequentiallyConsistent)
        plane.wake()
    }

    var isStopping: Bool { stopRequested.load(ordering: .sequentiallyConsistent) }
}

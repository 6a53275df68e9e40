import CApusNet
import Synchronization

/// Wakes one thread that sleeps in its poll; costs a system call only when it does.
///
/// Concurrency model: ``wake()`` from any thread; the rest by the sleeper alone.
package final class Waker: Sendable {
    /// Readable when the sleeper was woken.
    package let descriptor: Int32
    private let isAsleep = Atomic<Bool>(false)

    package init(descriptor: Int32) { self.descriptor = descriptor }

    deinit { apus_close(descriptor) }

    /// Makes the sleeper look at what it has.
    package func wake() {
        guard isAsleep.load(ordering: .sequentiallyConsistent) else { return }
        if isAsleep.exchange(false, ordering: .sequentiallyConsistent) { apus_wake(descriptor) }
    }

    /// Says that the sleeper is about to wait. It looks for work once more after this.
    package func willSleep() { isAsleep.store(true, ordering: .sequentiallyConsistent) }

    /// Says that the sleeper is awake.
    package func didWake() { isAsleep.store(false, ordering: .sequentiallyConsistent) }

    /// Empties the descriptor.
    package func clear() { apus_wake_clear(descriptor) }
}

/// The rings between a plane and the control thread (D8): events up, those of clients without an allocation apart from
/// the others, so that a flood of theirs delays nobody's refresh; commands down.
package final class PlaneLink: Sendable {
    package let index: UInt8
    package let events: BoundedRing<PlaneEvent>
    /// Messages of clients that have no allocation, or ask more than their share; they wait behind ``events``.
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

    /// Hands a command down. The control thread only.
    ///
    /// - Returns: false if the plane has as many waiting as it takes.
    package func command(_ command: PlaneCommand) -> Bool {
        guard commands.push(command) else { return false }
        plane.wake()
        return true
    }

    /// Hands an event up. The plane's thread only.
    ///
    /// - Returns: false if control has as many waiting as it takes.
    func event(_ event: PlaneEvent) -> Bool {
        guard events.push(event) else { return false }
        control.wake()
        return true
    }

    /// Hands up an event of a client without an allocation. The plane's thread only.
    ///
    /// - Returns: false if control has as many waiting as it takes; events of allocations have a ring of their own.
    func unauthenticatedEvent(_ event: PlaneEvent) -> Bool {
        guard unauthenticated.push(event) else { return false }
        control.wake()
        return true
    }

    /// Whether control has nothing of this plane to do.
    var isQuiet: Bool { events.isEmpty && unauthenticated.isEmpty }

    /// Asks the plane to end. From any thread.
    func stop() {
        stopRequested.store(true, ordering: .sequentiallyConsistent)
        plane.wake()
    }

    var isStopping: Bool { stopRequested.load(ordering: .sequentiallyConsistent) }
}

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

/// The two rings between a plane and the control thread (D8): events up, commands down.
package final class PlaneLink: Sendable {
    package let index: UInt8
    package let events: BoundedRing<PlaneEvent>
    package let commands: BoundedRing<PlaneCommand>
    /// Wakes the plane.
    package let plane: Waker
    /// Wakes control; shared by all planes.
    package let control: Waker
    private let stopRequested = Atomic<Bool>(false)

    package init(index: UInt8, capacity: Int, plane: Waker, control: Waker) {
        self.index = index
        events = BoundedRing(capacity: capacity)
        commands = BoundedRing(capacity: capacity)
        self.plane = plane
        self.control = control
    }

    /// Hands a command down. The control thread only.
    ///
    /// - Returns: false where the plane has as many waiting as it takes.
    package func command(_ command: PlaneCommand) -> Bool {
        guard commands.push(command) else { return false }
        plane.wake()
        return true
    }

    /// Hands an event up. The plane's thread only.
    ///
    /// - Returns: false where control has as many waiting as it takes.
    func event(_ event: PlaneEvent) -> Bool {
        guard events.push(event) else { return false }
        control.wake()
        return true
    }

    /// Asks the plane to end. From any thread.
    func stop() {
        stopRequested.store(true, ordering: .sequentiallyConsistent)
        plane.wake()
    }

    var isStopping: Bool { stopRequested.load(ordering: .sequentiallyConsistent) }
}

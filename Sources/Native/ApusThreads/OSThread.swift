package import ApusCore
import CApusThreads
import Glibc
import Synchronization

/// A dedicated thread outside the Swift pool: for blocking calls, such as libav's and `write(2)` (D10), and for the
/// relay's packet planes (D8).
///
/// Concurrency model: ``join()`` may be called from any thread but the thread itself; the first call waits.
package final class OSThread: Sendable {
    private final class Body {
        let name: String
        let run: @Sendable () -> Void
        init(name: String, run: @escaping @Sendable () -> Void) {
            self.name = name
            self.run = run
        }
    }

    private let handle: pthread_t
    private let isJoined = Atomic<Bool>(false)

    /// Starts the thread.
    ///
    /// - Parameter name: shown by `top -H`; only its first 15 bytes are used.
    /// - Throws: 10018 if the system cannot create another thread.
    package init(name: String, _ run: @escaping @Sendable () -> Void) throws(ApusError) {
        // SAFETY: the box is released exactly once: by the new thread, or here if none was started.
        let box = Unmanaged.passRetained(Body(name: name, run: run))
        var handle = pthread_t()
        let result = pthread_create(
            &handle, nil,
            { argument in
                guard let argument else { return nil }
                // SAFETY: the argument is the box passed below.
                let body = Unmanaged<Body>.fromOpaque(argument).takeRetainedValue()
                apus_thread_name(body.name)
                body.run()
                return nil
            }, box.toOpaque())
        guard result == 0 else {
            box.release()
            throw ApusError(.internalFailure, "the system cannot create a thread (errno \(result))")
        }
        self.handle = handle
    }

    /// Waits for the thread's end.
    package func join() {
        guard isJoined.compareExchange(expected: false, desired: true, ordering: .relaxed).exchanged else { return }
        pthread_join(handle, nil)
    }

    deinit {
        if isJoined.compareExchange(expected: false, desired: true, ordering: .relaxed).exchanged {
            pthread_detach(handle)
        }
    }
}

extension MonotonicTime {
    /// Sleeps until this time, in slices, so that a stop request is noticed within ``sleepSlice``.
    ///
    /// - Returns: false if `isStopped` returned true before the time.
    package func sleep(unless isStopped: () -> Bool) -> Bool {
        while true {
            if isStopped() { return false }
            let now = MonotonicTime.now()
            guard now < self else { return true }
            let next = min(self, now + Self.sleepSlice)
            var time = timespec(
                tv_sec: Int(next.nanoseconds / 1_000_000_000), tv_nsec: Int(next.nanoseconds % 1_000_000_000))
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nil)
        }
    }

    /// The longest sleep between two checks of the stop request.
    package static let sleepSlice = Duration.milliseconds(50)
}

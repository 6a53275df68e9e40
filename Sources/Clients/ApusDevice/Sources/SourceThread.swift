import ApusClient
import ApusCore
import ApusThreads
import Synchronization

/// The thread of one source or capture: starts it once, stops it, and reports its end.
///
/// Concurrency model: ``start(name:onEnd:run:)`` and ``stop()`` from any thread.
final class SourceThread: Sendable {
    private let thread = Mutex<OSThread?>(nil)
    private let isStarted = Atomic<Bool>(false)
    private let isStopRequested = Atomic<Bool>(false)
    private let interrupt = Mutex<LibAVInterrupt?>(nil)

    var isStopped: Bool { isStopRequested.load(ordering: .acquiring) }

    func stop() {
        isStopRequested.store(true, ordering: .releasing)
        interrupt.withLock { $0?.stop() }
    }

    /// - Parameter onEnd: called once, at the end of `run`, with its error unless the thread was stopped.
    func start(
        name: String, onEnd: @escaping @Sendable (ApusError?) -> Void,
        run: @escaping @Sendable (LibAVInterrupt) throws(ApusError) -> Void
    ) {
        guard isStarted.compareExchange(expected: false, desired: true, ordering: .relaxed).exchanged else { return }
        do {
            let created = try LibAVInterrupt()
            interrupt.withLock { $0 = created }
            if isStopped { created.stop() }
            let started = try OSThread(name: name) { [self] in
                do throws(ApusError) {
                    LibAV.prepare()
                    try run(created)
                    onEnd(nil)
                } catch {
                    onEnd(isStopped ? nil : error)
                }
            }
            thread.withLock { $0 = started }
        } catch {
            onEnd(error)
        }
    }
}

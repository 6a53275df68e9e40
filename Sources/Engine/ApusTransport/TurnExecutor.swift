import CApusThreads
import Synchronization

/// The executor of actors that run wherever their messages arrive: it has no thread, and one thread at a
/// time is inside.
///
/// Whoever has a message for one of its actors enters where nobody is inside and nothing waits, and runs
/// the handler in place: no task, no hop and no other thread. Whoever finds somebody inside leaves the
/// message, which then runs after all that came before it. So the order of one sender's messages holds,
/// whichever of the two ways each of them takes. Measured: docs/decisions/22.
///
/// Tasks of its actors come through ``enqueue(_:)`` as with every executor.
///
/// What waits is run by the event loop on which it came, or by the one given, in the turn in which that
/// loop runs its tasks. Handlers that are entered must be short: they hold the thread that they run on.
///
/// Concurrency model: the `Mutex` guards the phase and what waits; it is never held while something
/// runs. What runs has the executor to itself, which the phase `inside` says. `holder` names the
/// thread that is inside, so that `assumeIsolated` can tell.
package final class TurnExecutor: SerialExecutor, Sendable {
    private enum Phase {
        case idle
        /// Something waits, and a loop will run it.
        case scheduled
        /// A thread is inside.
        case inside
    }

    private enum Work: Sendable {
        case job(UnownedJob)
        case message(@Sendable () -> Void)
    }

    private struct State {
        var phase = Phase.idle
        var waiting: [Work] = []
    }

    private let loops: LoopExecutors
    /// For work that comes on other threads than event loops.
    private let home: LoopTaskExecutor
    private let state = Mutex(State())
    private let holder = Atomic<UInt>(0)

    init(loops: LoopExecutors, home: LoopTaskExecutor) {
        self.loops = loops
        self.home = home
    }

    // MARK: From any thread

    /// Enters where nobody is inside and nothing waits; ``leave()`` has to follow on the same thread,
    /// with no suspension between the two.
    package func enter() -> Bool {
        let isEntered = state.withLock { state in
            guard case .idle = state.phase else { return false }
            state.phase = .inside
            return true
        }
        if isEntered { holder.store(apus_thread_self(), ordering: .relaxed) }
        return isEntered
    }

    /// The end of what ``enter()`` began; what came meanwhile runs next.
    package func leave() {
        holder.store(0, ordering: .relaxed)
        let isMore = state.withLock { state in
            state.phase = state.waiting.isEmpty ? .idle : .scheduled
            return !state.waiting.isEmpty
        }
        if isMore { schedule() }
    }

    /// Runs the body inside: at once where nobody is inside and nothing waits, otherwise after all that came before
    /// it. It must not suspend.
    package func perform(_ body: @escaping @Sendable () -> Void) {
        guard enter() else { return later(body) }
        body()
        leave()
    }

    /// Runs the body inside, after all that came before it.
    package func later(_ body: @escaping @Sendable () -> Void) { add(.message(body)) }

    package func enqueue(_ job: consuming ExecutorJob) { add(.job(UnownedJob(job))) }

    private func add(_ work: Work) {
        let isFirst = state.withLock { state in
            state.waiting.append(work)
            guard case .idle = state.phase else { return false }
            state.phase = .scheduled
            return true
        }
        if isFirst { schedule() }
    }

    private func schedule() { (loops.current ?? home).add(.turn(self)) }

    // MARK: On a loop

    /// Runs what waits; what comes meanwhile waits for the next turn.
    func run() {
        var work: [Work] = []
        state.withLock { state in
            state.phase = .inside
            swap(&work, &state.waiting)
        }
        holder.store(apus_thread_self(), ordering: .relaxed)
        let executor = asUnownedSerialExecutor()
        for piece in work {
            switch piece {
            case .job(let job): job.runSynchronously(on: executor)
            case .message(let body): body()
            }
        }
        leave()
    }

    // MARK: SerialExecutor

    package func asUnownedSerialExecutor() -> UnownedSerialExecutor { UnownedSerialExecutor(ordinary: self) }

    package func checkIsolated() {
        precondition(isHeldHere, "the calling thread is not inside the executor")
    }

    package func isIsolatingCurrentContext() -> Bool? { isHeldHere }

    private var isHeldHere: Bool { holder.load(ordering: .relaxed) == apus_thread_self() }
}

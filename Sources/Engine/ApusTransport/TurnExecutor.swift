import CApusThreads
import Synchronization

/// The executor of actors that run on the thread on which their messages arrive. It has no thread of its own. One
/// thread at a time is inside.
///
/// A thread with a message for one of the actors enters if no thread is inside and no message waits. It then runs the
/// handler in place, without a task, a hop or another thread. Otherwise it queues the message, which runs after all
/// earlier ones. The messages of one sender therefore keep their order in both cases. Measured in docs/decisions/22.
///
/// The actors' tasks arrive through ``enqueue(_:)``, as with every executor.
///
/// Queued work runs on the event loop on which it arrived, or on the one given, in the turn in which that loop runs its
/// tasks. Handlers that are entered must be short, because they block the thread that they run on.
///
/// Concurrency model: the `Mutex` guards the phase and the queue. It is never held while work runs. In the phase
/// `inside` the running work has the executor to itself. `holder` names the thread that is inside, for
/// `assumeIsolated`.
package final class TurnExecutor: SerialExecutor, Sendable {
    private enum Phase {
        case idle
        /// Work is queued, and a loop will run it.
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
    /// For work that arrives on a thread that is not an event loop.
    private let home: LoopTaskExecutor
    private let state = Mutex(State())
    private let holder = Atomic<UInt>(0)

    init(loops: LoopExecutors, home: LoopTaskExecutor) {
        self.loops = loops
        self.home = home
    }

    // MARK: From any thread

    /// Enters if no thread is inside and nothing waits. ``leave()`` must follow on the same thread, without a
    /// suspension in between.
    package func enter() -> Bool {
        let isEntered = state.withLock { state in
            guard case .idle = state.phase else { return false }
            state.phase = .inside
            return true
        }
        if isEntered { holder.store(apus_thread_self(), ordering: .relaxed) }
        return isEntered
    }

    /// Ends what ``enter()`` began. Work that arrived in the meantime runs next.
    package func leave() {
        holder.store(0, ordering: .relaxed)
        let isMore = state.withLock { state in
            state.phase = state.waiting.isEmpty ? .idle : .scheduled
            return !state.waiting.isEmpty
        }
        if isMore { schedule() }
    }

    /// Runs the body inside: at once if no thread is inside and nothing waits, otherwise after all earlier work. It
    /// must not suspend.
    package func perform(_ body: @escaping @Sendable () -> Void) {
        guard enter() else { return later(body) }
        body()
        leave()
    }

    /// Runs the body inside, after all earlier work.
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

    /// Runs the queued work. Work that arrives in the meantime waits for the next turn.
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

import ApusCore
import Synchronization

/// When the node of a round is killed, and how many calls or dialogs are in their state until then.
///
/// Concurrency model: any thread. Continuations are resumed outside of the `Mutex`.
final class KillGate: Sendable {
    private struct State {
        var permits: Int
        var permitWaits: [CheckedContinuation<Void, Never>] = []
        var prepared = 0
        var finished = 0
        var kill: MonotonicTime?
        var killWaits: [CheckedContinuation<MonotonicTime, Never>] = []
    }

    private let state: Mutex<State>

    /// - Parameter permits: those that are brought into their state at once.
    init(permits: Int) { state = Mutex(State(permits: permits)) }

    /// Those that are in their state, or have failed before.
    var preparedCount: Int { state.withLock { $0.prepared } }

    /// Those that have ended, or have failed.
    var finishedCount: Int { state.withLock { $0.finished } }

    func finish() { state.withLock { $0.finished += 1 } }

    /// Waits for a permit to bring one into its state.
    func enter() async {
        await withCheckedContinuation { continuation in
            let isFree = state.withLock { state in
                guard state.permits == 0 else {
                    state.permits -= 1
                    return true
                }
                state.permitWaits.append(continuation)
                return false
            }
            if isFree { continuation.resume() }
        }
    }

    /// One is in its state, or has failed.
    func leave() {
        let next = state.withLock { state -> CheckedContinuation<Void, Never>? in
            state.prepared += 1
            guard state.permitWaits.isEmpty else { return state.permitWaits.removeFirst() }
            state.permits += 1
            return nil
        }
        next?.resume()
    }

    /// The node is killed at this time.
    func announce(_ kill: MonotonicTime) {
        let waits = state.withLock { state in
            state.kill = kill
            defer { state.killWaits = [] }
            return state.killWaits
        }
        for wait in waits { wait.resume(returning: kill) }
    }

    /// When the node is killed, or was; as soon as that is known.
    func kill() async -> MonotonicTime {
        await withCheckedContinuation { continuation in
            let known = state.withLock { state in
                if state.kill == nil { state.killWaits.append(continuation) }
                return state.kill
            }
            if let known { continuation.resume(returning: known) }
        }
    }

    /// Waits until some time after the kill, or before it.
    func wait(until offset: Duration) async throws(ApusError) {
        let left = await kill() + offset - .now()
        guard left > .zero else { return }
        guard (try? await Task.sleep(for: left)) != nil else { throw ApusError(.cancelled) }
    }
}

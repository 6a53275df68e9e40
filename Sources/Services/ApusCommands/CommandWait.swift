import ApusCore
import Synchronization

/// A request that waits for a status of a command.
///
/// Isolation: any thread, behind a `Mutex`.
final class CommandWait: Sendable {
    private struct State: Sendable {
        var entry: CommandEntry?
        var resume: CheckedContinuation<CommandEntry?, Never>?
        var until = MonotonicTime.zero

        mutating func take() -> CheckedContinuation<CommandEntry?, Never>? {
            defer { resume = nil }
            return resume
        }
    }

    private let wanted: CommandStatus
    private let state = Mutex(State())

    init(until wanted: CommandStatus) { self.wanted = wanted }

    func reached(_ entry: CommandEntry) {
        guard entry.hasReached(wanted) else { return }
        let resume = state.withLock { state in
            state.entry = entry
            return state.take()
        }
        resume?.resume(returning: entry)
    }

    /// Ends the wait whose time is over.
    func look(now: MonotonicTime) {
        state.withLock { now >= $0.until ? $0.take() : nil }?.resume(returning: nil)
    }

    /// Waits until the status is reached; nil if it was not in time, or the task was cancelled.
    func reached(within time: Duration) async -> CommandEntry? {
        await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let known = state.withLock { state -> CommandEntry?? in
                    if let entry = state.entry { return .some(entry) }
                    if Task.isCancelled { return .some(nil) }
                    (state.resume, state.until) = (continuation, .now() + time)
                    return nil
                }
                if let known { continuation.resume(returning: known) }
            }
        } onCancel: {
            state.withLock { $0.take() }?.resume(returning: nil)
        }
    }
}

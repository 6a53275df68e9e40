import Synchronization

/// Lets one task at a time go on, in the order in which they came.
///
/// Isolation: `Sendable`. ``release()`` is called once for each ``acquire()``.
package final class AsyncLock: Sendable {
    private struct State: Sendable {
        var isHeld = false
        var waiting: [CheckedContinuation<Void, Never>] = []
    }
    private let state = Mutex(State())

    package init() {}

    package func acquire() async {
        await withCheckedContinuation { continuation in
            let isFree = state.withLock { state in
                if state.isHeld { state.waiting.append(continuation) }
                defer { state.isHeld = true }
                return !state.isHeld
            }
            if isFree { continuation.resume() }
        }
    }

    package func release() {
        let next = state.withLock { state -> CheckedContinuation<Void, Never>? in
            guard state.waiting.isEmpty else { return state.waiting.removeFirst() }
            state.isHeld = false
            return nil
        }
        next?.resume()
    }
}

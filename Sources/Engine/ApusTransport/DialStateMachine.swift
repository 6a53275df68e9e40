package import ApusCore

/// Keeps one link to one peer connected: when to dial, how long to wait, what to report (D3, D4).
///
/// States: `idle` → `connecting` → `up` → (lost) → `connecting`, with `waiting` between failed dials, and `stopped`. A
/// link that was up for ``flapTime`` is dialled again at once when it is lost: a refused connection is the fastest
/// evidence that the process is dead. In all other cases the machine waits with a growing backoff, so a dead peer is
/// not dialled in a tight loop.
package struct DialStateMachine: Sendable {
    package enum Action: Sendable, Hashable {
        case connect
        case retry(after: Duration)
        case reportUp
        case reportLost
        case reportRefused
        /// Close the connection, established or not.
        case close
    }

    private enum State {
        case idle
        case connecting
        case up(since: MonotonicTime)
        case waiting
        case stopped
    }

    /// A link that was up for less time than this is dialled again only after a wait.
    package static let flapTime = Duration.milliseconds(100)

    private var backoff: Backoff
    private var state = State.idle

    package init(backoffMin: Duration, backoffMax: Duration) {
        backoff = Backoff(first: min(backoffMin, backoffMax), longest: backoffMax)
    }

    /// True after ``stopped()``.
    package var isStopped: Bool {
        if case .stopped = state { true } else { false }
    }

    package mutating func started() -> [Action] {
        guard case .idle = state else { return [] }
        state = .connecting
        return [.connect]
    }

    /// The handshake is complete.
    package mutating func established(at now: MonotonicTime) -> [Action] {
        guard case .connecting = state else { return [.close] }
        state = .up(since: now)
        return [.reportUp]
    }

    /// The dial or its handshake failed.
    ///
    /// - Parameters:
    ///   - refused: the address refused the connection, or another incarnation answered.
    ///   - jitter: from 0 up to 1.
    package mutating func dialFailed(refused: Bool, jitter: Double) -> [Action] {
        guard case .connecting = state else { return [] }
        state = .waiting
        let wait = Action.retry(after: nextBackoff(jitter: jitter))
        return refused ? [.reportRefused, wait] : [wait]
    }

    /// The established connection ended.
    package mutating func lost(at now: MonotonicTime, jitter: Double) -> [Action] {
        guard case .up(let since) = state else { return [] }
        if now - since >= Self.flapTime {
            backoff.reset()
            state = .connecting
            return [.reportLost, .connect]
        }
        state = .waiting
        return [.reportLost, .retry(after: nextBackoff(jitter: jitter))]
    }

    /// The wait is over.
    package mutating func waited() -> [Action] {
        guard case .waiting = state else { return [] }
        state = .connecting
        return [.connect]
    }

    /// The peer is to be dialled at another address. The present connection is abandoned.
    package mutating func rerouted() -> [Action] {
        backoff.reset()
        switch state {
        case .idle, .stopped, .connecting: return []
        case .up: return [.close]
        case .waiting:
            state = .connecting
            return [.connect]
        }
    }

    /// The peer is no longer needed. The machine reports nothing after this.
    package mutating func stopped() -> [Action] {
        if case .stopped = state { return [] }
        state = .stopped
        return [.close]
    }

    private mutating func nextBackoff(jitter: Double) -> Duration {
        backoff.next() * (0.5 + jitter / 2)
    }
}

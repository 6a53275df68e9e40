package import ApusCore

/// Keeps the heartbeat socket usable: it decides which errors are transient, which need a new socket, and when to try
/// again (D4).
///
/// A firewall's refusal (EPERM), full buffers (ENOBUFS) and a missing route do not concern the socket. The datagrams
/// are lost, as on any network, and the next ones are sent as before. After any other error the socket is unusable. A
/// new one is opened at once, then after `backoffMin`, doubled up to `backoffMax` until it succeeds.
///
/// If the socket is closed, or every datagram is refused for longer than `refusedMax`, peers receive nothing from this
/// node and will declare it dead. The shell reports this as a condition of the node.
///
/// Pure value: confined to its owner, which passes the time.
package struct SocketRepairStateMachine: Sendable {
    /// The wait after the first failed attempt to open a socket.
    package static let backoffMin = Duration.milliseconds(10)
    /// The longest wait between two attempts.
    package static let backoffMax = Duration.milliseconds(200)
    /// If all datagrams are refused for longer than this, the machine reports it.
    package static let refusedMax = Duration.milliseconds(100)

    package enum Action: Sendable, Equatable {
        /// Close the socket, if there is one, and open another. Answer with ``opened()`` or ``openFailed(_:now:)``.
        case reopen
        /// Peers receive nothing, because of the error with this number. Emitted once.
        case reportSilent(errno: Int32)
        /// Datagrams are sent again after ``reportSilent(errno:)``.
        case reportHeard
    }

    private enum State {
        case open
        case refused(since: MonotonicTime)
        case closed(nextAttempt: MonotonicTime, backoff: Backoff)
    }

    private var state = State.open
    private var isReported = false

    package init() {}

    /// The time for the next ``attempt(now:)``; nil while the socket is open.
    package var nextAttempt: MonotonicTime? {
        if case .closed(let time, _) = state { time } else { nil }
    }

    /// Datagrams were sent. `refused` of them failed with a transient error.
    package mutating func sent(_ count: Int, refused: Int, errno number: Int32, now: MonotonicTime) -> [Action] {
        guard count + refused > 0 else { return [] }
        switch (state, count) {
        case (.closed, _): return []
        case (.open, 0):
            state = .refused(since: now)
            return []
        case (.refused(let since), 0):
            guard now - since >= Self.refusedMax else { return [] }
            return reportSilent(number)
        case (.open, _), (.refused, _):
            state = .open
            return reportHeard()
        }
    }

    /// The socket failed with an error that is not transient.
    package mutating func broke(errno number: Int32, now: MonotonicTime) -> [Action] {
        if case .closed = state { return [] }
        state = .closed(nextAttempt: now, backoff: Backoff(first: Self.backoffMin, longest: Self.backoffMax))
        return reportSilent(number) + [.reopen]
    }

    /// Time has passed.
    package mutating func attempt(now: MonotonicTime) -> [Action] {
        guard let nextAttempt, nextAttempt <= now else { return [] }
        return [.reopen]
    }

    package mutating func opened() -> [Action] {
        state = .open
        return reportHeard()
    }

    package mutating func openFailed(errno number: Int32, now: MonotonicTime) -> [Action] {
        guard case .closed(_, var backoff) = state else { return [] }
        let nextAttempt = now + backoff.next()
        state = .closed(nextAttempt: nextAttempt, backoff: backoff)
        return reportSilent(number)
    }

    private mutating func reportSilent(_ number: Int32) -> [Action] {
        if isReported { return [] }
        isReported = true
        return [.reportSilent(errno: number)]
    }

    private mutating func reportHeard() -> [Action] {
        guard isReported else { return [] }
        isReported = false
        return [.reportHeard]
    }
}

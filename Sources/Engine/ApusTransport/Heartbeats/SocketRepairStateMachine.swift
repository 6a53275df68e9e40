package import ApusCore

/// Keeps the heartbeat socket usable: which errors pass, which need a new socket, and when to try (D4).
///
/// A firewall's refusal (EPERM), full buffers (ENOBUFS) or a missing route say nothing about the socket: the datagrams
/// are lost, as on any network, and the next ones are sent as before. Any other error means that the socket is of no
/// use any more. A new one is opened at once, then after `backoffMin`, doubled up to `backoffMax` until it succeeds.
///
/// While the socket is closed, or every datagram of `refusedMax` and longer was refused, peers hear nothing of this
/// node and will declare it dead; the shell says so as a condition of the node.
///
/// Pure: confined to whoever owns it; the caller passes the time.
package struct SocketRepairStateMachine: Sendable {
    /// The wait after the first failed attempt to open a socket.
    package static let backoffMin = Duration.milliseconds(10)
    /// The longest wait between two attempts.
    package static let backoffMax = Duration.milliseconds(200)
    /// Refusals of all datagrams are reported when they last longer.
    package static let refusedMax = Duration.milliseconds(100)

    package enum Action: Sendable, Equatable {
        /// Close the socket where there is one and open another; answer with ``opened()`` or ``openFailed(_:now:)``.
        case reopen
        /// Peers hear nothing, for the error with this number; given once.
        case reportSilent(errno: Int32)
        /// Datagrams leave again after ``reportSilent(errno:)``.
        case reportHeard
    }

    private enum State {
        case open
        case refused(since: MonotonicTime)
        case closed(nextAttempt: MonotonicTime, backoff: Duration)
    }

    private var state = State.open
    private var isReported = false

    package init() {}

    /// When ``attempt(now:)`` is wanted; nil while the socket is open.
    package var nextAttempt: MonotonicTime? {
        if case .closed(let time, _) = state { time } else { nil }
    }

    /// Datagrams were sent, and some of them perhaps refused with an error that passes.
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

    /// The socket gave an error that does not pass.
    package mutating func broke(errno number: Int32, now: MonotonicTime) -> [Action] {
        if case .closed = state { return [] }
        state = .closed(nextAttempt: now, backoff: Self.backoffMin)
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
        guard case .closed(_, let backoff) = state else { return [] }
        state = .closed(nextAttempt: now + backoff, backoff: min(backoff * 2, Self.backoffMax))
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

package import ApusCore

/// Which sentences a node asks its language model about (VA, docs/voice.md).
///
/// **Share.** At most ``runningMax`` requests wait for the model, of one account at most half of them.
///
/// **Failures.** After ``failuresMax`` failures in a row the model is not asked for ``pauseTime``. The first request
/// after the pause that fails begins the next one, and a request that is answered ends the row. If all failures of the
/// row are those of one account, the pause is for that account only: its sentences may be what the model fails at.
///
/// Pure value.
package struct GuestStateMachine: Sendable {
    /// Whether a sentence is asked about.
    package enum Admission: Sendable, Hashable {
        case ask
        /// The node, or the account, has no free place.
        case full
        /// The model has failed too often.
        case paused
    }

    /// How a request has ended.
    package enum End: Sendable, Hashable {
        case answered, failed
        /// The client's time was over before the model's was, or the node stops. This says nothing about the model.
        case abandoned
    }

    package static let failuresMax = 5
    package static let pauseTime = Duration.seconds(10)

    private let runningMax: Int
    private var running: [AccountID: Int] = [:]
    private var failureCount = 0
    /// Of the row; only the first two.
    private var failedAccounts: Set<AccountID> = []
    private var pauseEnd = MonotonicTime.zero

    package init(runningMax: Int) { self.runningMax = runningMax }

    /// The requests that wait for the model.
    package var runningCount: Int { running.values.reduce(0, +) }

    /// Takes a place for a request. ``ended(of:_:at:)`` gives it back after ``Admission/ask``.
    package mutating func admit(_ account: AccountID, at now: MonotonicTime) -> Admission {
        guard !isPaused(account, at: now) else { return .paused }
        guard runningCount < runningMax, running[account, default: 0] < max(1, runningMax / 2) else { return .full }
        running[account, default: 0] += 1
        return .ask
    }

    package mutating func ended(of account: AccountID, _ end: End, at now: MonotonicTime) {
        guard let count = running[account] else {
            preconditionFailure("a request of \(account) has ended that was not admitted")
        }
        running[account] = count > 1 ? count - 1 : nil
        switch end {
        case .abandoned: break
        case .answered:
            failureCount = 0
            failedAccounts = []
        case .failed:
            failureCount = min(failureCount + 1, Self.failuresMax)
            if failedAccounts.count < 2 { failedAccounts.insert(account) }
            if failureCount == Self.failuresMax { pauseEnd = now + Self.pauseTime }
        }
    }

    private func isPaused(_ account: AccountID, at now: MonotonicTime) -> Bool {
        guard failureCount == Self.failuresMax, now < pauseEnd else { return false }
        return failedAccounts.count > 1 || failedAccounts.contains(account)
    }
}

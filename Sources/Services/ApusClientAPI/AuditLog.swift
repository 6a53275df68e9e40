package import ApusCore
package import ApusSessions
import CoreMetrics
package import Logging
import Synchronization

/// Who has made a change.
package struct AuditActor: Sendable, Hashable {
    /// The access id: an operator's, an app's, or that of a customer's key.
    package var access: String
    package var account: String
    /// As tokens have it.
    package var role: String

    package init(access: String, account: String, role: String) {
        (self.access, self.account, self.role) = (access, account, role)
    }

    package init(_ session: Session) {
        self.init(access: session.access.rawValue, account: session.account.rawValue, role: session.role.rawValue)
    }

    /// An operator, or an integrator's server.
    fileprivate var isPrivileged: Bool {
        [Session.Role.admin.rawValue, Session.Role.customer.rawValue].contains(role)
    }
}

/// What was changed, and by whom: a log line of each request that changes something (D13), with the actor, the target
/// and the result.
///
/// A change by an operator or a customer's key always has its line, and so has one that may have been made: its request
/// was cancelled, or had no answer. What clients can cause as often as they like is
/// limited for each account and for all together: changes by apps and devices (``changesMax``), and refusals
/// (``refusalsMax``). No refusal takes the line of a change.
///
/// Isolation: any thread; a `Mutex` guards the limits.
package final class AuditLog: Sendable {
    /// Changes by the apps and devices of one account that have a line in a minute, and at once.
    package static let changesMax = 60
    /// Refusals of one account that have a line in a minute, and at once.
    package static let refusalsMax = 10
    /// All accounts together have as many lines as this number of accounts.
    package static let accountsOfAll = 30
    /// Accounts that are counted at once.
    private static let accountsMax = 4096

    /// After these errors it is unknown whether a change was made: its node may have carried it out without answering.
    private static let uncertain: Set<ErrorCode> = [
        .cancelled, .deadlineExceeded, .linkLost, .answerTimedOut, .storageFailed,
    ]

    private struct Limit {
        private var each: RateLimiter<String>
        private var all: RateLimiter<Bool>

        init(perMinute count: Int) {
            each = RateLimiter(count, per: .seconds(60), burst: count, keysMax: AuditLog.accountsMax)
            let sum = count * AuditLog.accountsOfAll
            all = RateLimiter(sum, per: .seconds(60), burst: sum)
        }

        mutating func take(_ account: String, at now: MonotonicTime) -> Bool {
            each.take(account, at: now) && all.take(true, at: now)
        }
    }

    private struct Limits {
        var changes = Limit(perMinute: AuditLog.changesMax)
        var refusals = Limit(perMinute: AuditLog.refusalsMax)
        /// Lines that were left out since the last one.
        var leftOut = 0

        /// Nil: leave the line out. Otherwise the number of those that were left out before it.
        mutating func take(_ actor: AuditActor, isRefusal: Bool, at now: MonotonicTime) -> Int? {
            let isTaken =
                if isRefusal {
                    refusals.take(actor.account, at: now)
                } else {
                    actor.isPrivileged || changes.take(actor.account, at: now)
                }
            guard isTaken else {
                leftOut += 1
                return nil
            }
            defer { leftOut = 0 }
            return leftOut
        }
    }

    private let log: Logger
    private let limits = Mutex(Limits())
    private let actions = Counter(label: "apus_api_audited_total")
    private let leftOut = Counter(label: "apus_api_audit_left_out_total")

    /// - Parameter log: gets the metadata `audit` = the request's name on each line.
    package init(_ log: Logger) { self.log = log }

    /// Notes a request that was carried out, or has failed with an error.
    ///
    /// - Parameter target: what the request is about; empty for none.
    package func note(
        _ request: String, target: @autoclosure () -> String, by actor: AuditActor, _ error: ApusError?,
        now: MonotonicTime = .now()
    ) {
        actions.increment()
        let isUncertain = error.map { Self.uncertain.contains($0.code) } ?? false
        let before = limits.withLock { $0.take(actor, isRefusal: error != nil && !isUncertain, at: now) }
        guard let before else { return leftOut.increment() }
        var facts: Logger.Metadata = [
            "audit": "\(request)", LogKey.access: "\(actor.access)", LogKey.account: "\(actor.account)",
            LogKey.role: "\(actor.role)",
        ]
        let target = target()
        if !target.isEmpty { facts[LogKey.target] = "\(target)" }
        if before > 0 { facts[LogKey.leftOut] = "\(before)" }
        if let error { facts.merge(Logger.facts(of: error)) { $1 } }
        let sentence: Logger.Message =
            if isUncertain {
                "Whether a change was carried out is not known"
            } else if error == nil {
                "A change was carried out"
            } else {
                "A change was refused"
            }
        log.notice(sentence, metadata: facts)
    }
}

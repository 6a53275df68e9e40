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
/// A change by an operator or a customer's key always has its line. What clients can cause as often as they like is
/// limited: refusals, and changes by apps and devices have ``perMinuteMax`` lines in a minute for each account, and
/// ``perMinuteOfAllMax`` together.
///
/// Isolation: any thread; a `Mutex` guards the limits.
package final class AuditLog: Sendable {
    /// Limited lines of one account in a minute, and at once.
    package static let perMinuteMax = 10
    /// Limited lines of all accounts in a minute, and at once.
    package static let perMinuteOfAllMax = 300
    /// Accounts that are counted at once.
    private static let accountsMax = 4096

    private struct Limits {
        var each = RateLimiter<String>(
            AuditLog.perMinuteMax, per: .seconds(60), burst: AuditLog.perMinuteMax, keysMax: AuditLog.accountsMax)
        var all = RateLimiter<Bool>(
            AuditLog.perMinuteOfAllMax, per: .seconds(60), burst: AuditLog.perMinuteOfAllMax)
        /// Lines that were left out since the last one.
        var leftOut = 0

        /// Nil: leave the line out. Otherwise the number of those that were left out before it.
        mutating func take(_ account: String, isLimited: Bool, at now: MonotonicTime) -> Int? {
            guard !isLimited || (each.take(account, at: now) && all.take(true, at: now)) else {
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
        let isLimited = error != nil || !actor.isPrivileged
        let before = limits.withLock { $0.take(actor.account, isLimited: isLimited, at: now) }
        guard let before else { return leftOut.increment() }
        var facts: Logger.Metadata = [
            "audit": "\(request)", LogKey.access: "\(actor.access)", LogKey.account: "\(actor.account)",
            LogKey.role: "\(actor.role)",
        ]
        let target = target()
        if !target.isEmpty { facts[LogKey.target] = "\(target)" }
        if before > 0 { facts[LogKey.leftOut] = "\(before)" }
        if let error { facts.merge(Logger.facts(of: error)) { $1 } }
        log.notice(error == nil ? "A change was carried out" : "A change was refused", metadata: facts)
    }
}

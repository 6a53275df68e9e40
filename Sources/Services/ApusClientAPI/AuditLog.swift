package import ApusContract
package import ApusCore
package import ApusSessions
import CoreMetrics
package import Logging

/// What operators did: a log line of each action, whether it was carried out or not, with who asked (D13).
///
/// Isolation: any thread.
package struct AuditLog: Sendable {
    private let log: Logger
    private let actions = Counter(label: "apus_api_audited_total")

    /// - Parameter log: gets the metadata `audit` = the request's name on each line.
    package init(_ log: Logger) { self.log = log }

    package func note(_ info: ClientRequestInfo, _ session: Session, _ error: ApusError?) {
        actions.increment()
        var facts: Logger.Metadata = [
            "audit": "\(info.name)", LogKey.access: "\(session.access)", LogKey.account: "\(session.account)",
        ]
        if let error { facts.merge(Logger.facts(of: error)) { $1 } }
        log.notice(
            error == nil ? "An operator's request was carried out" : "An operator's request failed", metadata: facts)
    }
}

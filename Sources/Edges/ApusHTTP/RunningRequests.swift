import ApusCore
import ApusSessions
import CoreMetrics
import Synchronization

/// The requests over REST that are carried out. Each keeps a connection, and requests may wait for a minute.
///
/// Clients have three quarters of the listener's connections, of which an account may have at most eight ninths of what
/// the others leave (decision 14). Operators have an eighth of their own. The rest is for connections that wait for
/// their client, and for `/healthz`, `/metrics`, `/v1/status` and `/v1/admin`.
///
/// Isolation: any thread.
final class RunningRequests: Sendable {
    private struct State {
        var clients: AccountShares
        var operators = 0
    }

    private let operatorsMax: Int
    private let state: Mutex<State>
    private let running = Gauge(label: "apus_http_requests_running")
    private let refused = Counter(label: "apus_http_requests_refused_total")

    init(connectionsMax: Int) {
        operatorsMax = max(1, connectionsMax / 8)
        state = Mutex(State(clients: AccountShares(capacity: max(1, connectionsMax * 3 / 4))))
    }

    /// Counts a request until ``giveBack(_:)``.
    ///
    /// - Throws: 10007 beyond the share of the account, or of the operators.
    func take(_ session: Session) throws(ApusError) {
        let isTaken = state.withLock { state in
            let isTaken =
                if session.role == .admin {
                    state.operators < operatorsMax
                } else {
                    state.clients.take(1, for: session.account)
                }
            if isTaken, session.role == .admin { state.operators += 1 }
            running.record(state.clients.used + state.operators)
            return isTaken
        }
        guard isTaken else {
            refused.increment()
            throw ApusError(.overloaded, "too many requests of the account are in progress at this node")
        }
    }

    /// The request has ended.
    func giveBack(_ session: Session) {
        state.withLock { state in
            if session.role == .admin {
                state.operators -= 1
            } else {
                state.clients.change(by: -1, of: session.account)
            }
            running.record(state.clients.used + state.operators)
        }
    }
}

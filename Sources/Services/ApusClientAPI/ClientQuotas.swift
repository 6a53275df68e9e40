package import ApusContract
package import ApusCore
import CoreMetrics
import Synchronization

/// How often the clients of each account may ask, at this node: all requests together, and each kind of request. A
/// burst is two seconds' worth.
///
/// Isolation: any thread.
package final class ClientQuotas: Sendable {
    private struct Key: Hashable, Sendable {
        let account: AccountID
        let request: UInt16
    }

    private struct State {
        var all: RateLimiter<AccountID>
        var each: RateLimiter<Key>
    }

    private let state: Mutex<State>
    private let refused = Counter(label: "apus_api_quota_refused_total")

    package init(_ configuration: ClientAPIConfiguration) {
        let (all, each) = (configuration.requestsPerSecond, configuration.requestsPerSecondEach)
        state = Mutex(
            State(
                all: RateLimiter(all, per: .seconds(1), burst: 2 * all),
                each: RateLimiter(each, per: .seconds(1), burst: 2 * each, keysMax: 262_144)))
    }

    /// Throws 10007 where the account asks too often.
    package func take(
        _ info: ClientRequestInfo, of account: AccountID, now: MonotonicTime = .now()
    ) throws(ApusError) {
        let isWithin = state.withLock { state in
            state.each.take(Key(account: account, request: info.number), at: now) && state.all.take(account, at: now)
        }
        guard isWithin else {
            refused.increment()
            throw ApusError(.overloaded, "the account asks too often")
        }
    }
}

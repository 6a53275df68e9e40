import ApusCore
import CoreMetrics
import Synchronization

/// The files that a node sends to clients at once. Each keeps a connection and a buffer.
///
/// An account may have at most eight ninths of what the others leave (decision 14), and a bound of its own.
///
/// Isolation: any thread. A `Mutex` guards the counts.
final class DownloadPlaces: Sendable {
    private let accountMax: Int
    private let shares: Mutex<AccountShares>
    private let running = Gauge(label: "apus_http_downloads")
    private let refused = Counter(label: "apus_http_downloads_refused_total")
    private let sent = Counter(label: "apus_http_download_bytes_total")
    private let failed = Counter(label: "apus_http_downloads_failed_total")

    init(countMax: Int, accountMax: Int) {
        self.accountMax = accountMax
        shares = Mutex(AccountShares(capacity: countMax))
    }

    /// A place, which is given back when the lease is released.
    ///
    /// - Throws: 10007 beyond a bound.
    func take(_ account: AccountID) throws(ApusError) -> DownloadLease {
        let isTaken = shares.withLock { shares in
            guard shares.held(by: account) < accountMax, shares.take(1, for: account) else { return false }
            running.record(shares.used)
            return true
        }
        guard isTaken else {
            refused.increment()
            throw ApusError(.overloaded, "too many files of the account are being sent by this node")
        }
        return DownloadLease(self, account)
    }

    fileprivate func giveBack(_ account: AccountID) {
        shares.withLock { shares in
            shares.change(by: -1, of: account)
            running.record(shares.used)
        }
    }

    fileprivate func count(_ byteCount: Int) { sent.increment(by: Int64(byteCount)) }
    fileprivate func countFailure() { failed.increment() }
}

/// A place of ``DownloadPlaces``. It is given back with its last reference, so also if the answer is never sent.
///
/// Isolation: immutable.
final class DownloadLease: Sendable {
    private let places: DownloadPlaces
    private let account: AccountID

    fileprivate init(_ places: DownloadPlaces, _ account: AccountID) { (self.places, self.account) = (places, account) }

    deinit { places.giveBack(account) }

    func sent(_ byteCount: Int) { places.count(byteCount) }
    func failed() { places.countFailure() }
}

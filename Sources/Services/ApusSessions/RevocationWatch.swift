package import ApusCore
package import ApusStorage
import CoreMetrics
package import Logging
import Synchronization

/// The revocations that this node has read: at its start, and then several times a second. A revocation therefore takes
/// effect at every node within a second, and after every restart (IV-A6). So do the lost rights to devices (IV-B10).
/// If the records cannot be read, the last list stays in effect.
///
/// Isolation: any thread.
package final class RevocationWatch: Sendable {
    let records: SessionRecords
    private let log: Logger
    private struct State {
        var list = RevocationList()
        var mark: RevocationMark?
        var withdrawn = WithdrawalList()
        /// The number of the newest change of rights that was read.
        var number: UInt64 = 0
        /// Rights that were lost since the last ``takeLost()``.
        var lost: [DeviceWithdrawal] = []
        /// The number of times that a change is still to be reported.
        var unreported = 0
    }
    private let state = Mutex(State())
    /// The number of revocations in effect.
    private let kept = Gauge(label: "apus_sessions_revocations")
    /// The number of sessions that were ended, and of sign-ins that were refused, because their token was revoked.
    let refused = Counter(label: "apus_sessions_revoked_total")

    package init(records: any RecordStore, log: Logger) {
        self.records = SessionRecords(records)
        self.log = log
    }

    package var list: RevocationList { state.withLock { $0.list } }

    /// Throws 12001 if the session's token was revoked.
    package func check(_ session: Session) throws(ApusError) {
        guard list.revokes(session) else { return }
        refused.increment()
        throw ApusError(.tokenInvalid, "the token was revoked")
    }

    /// Notes that a client uses a token for one use. Throws 12001 if another client has used it, 10021 if the records
    /// cannot be written.
    func use(_ token: TokenMark, instance: UInt64, wallSeconds: Int64) async throws(ApusError) {
        try await records.use(token, instance: instance, wallSeconds: wallSeconds)
    }

    /// Reads the revocations, first before the first client connects. Returns true if they have changed. Throws 10021
    /// if the records cannot be read.
    @discardableResult
    package func load(wallSeconds: Int64) async throws(ApusError) -> Bool {
        let mark = state.withLock { $0.mark }
        let isChanged = try await loadWithdrawals(wallSeconds: wallSeconds)
        guard let read = try await records.revocations(since: mark, wallSeconds: wallSeconds) else { return isChanged }
        let list = RevocationList(read.records)
        state.withLock { ($0.list, $0.mark, $0.unreported) = (list, read.mark, 2) }
        kept.record(list.count)
        return true
    }

    /// Reads the rights that were lost since the last time.
    private func loadWithdrawals(wallSeconds: Int64) async throws(ApusError) -> Bool {
        let number = state.withLock { $0.number }
        guard let read = try await records.withdrawals(after: number) else { return false }
        state.withLock { state in
            state.withdrawn.add(read.lost)
            state.withdrawn.removeExpired(wallSeconds: wallSeconds)
            state.lost += read.lost
            state.number = read.number
        }
        return true
    }

    /// True if the account lost a right to the device lately. It may have received another since.
    func hasLost(_ account: AccountID, _ device: DeviceID) -> Bool {
        state.withLock { $0.withdrawn.contains(account, device) }
    }

    /// The rights that were lost since the last call.
    func takeLost() -> [DeviceWithdrawal] {
        state.withLock { state in
            defer { state.lost = [] }
            return state.lost
        }
    }

    /// Polls until the task is cancelled. After a change it calls `changed`, and again until `changed` has returned
    /// true twice: a session that was being opened during the first call may have been missed by it.
    func watch(
        every interval: Duration, wallSeconds: @Sendable () -> Int64, changed: @Sendable () async -> Bool
    ) async {
        var isFailing = false
        while (try? await Task.sleep(for: interval)) != nil {
            do throws(ApusError) {
                if try await load(wallSeconds: wallSeconds()) { state.withLock { $0.unreported = 2 } }
                isFailing = false
            } catch {
                if !isFailing { log.error("The revocations cannot be read", metadata: Logger.facts(of: error)) }
                isFailing = true
            }
            let unreported = state.withLock { $0.unreported }
            // A change that was read meanwhile counts again.
            if unreported > 0, await changed() {
                state.withLock { if $0.unreported == unreported { $0.unreported -= 1 } }
            }
        }
    }
}

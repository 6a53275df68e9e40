package import ApusCore
package import ApusStorage
import CoreMetrics
package import Logging
import Synchronization

/// The revocations that this node has read: at its start, and then several times a second. A revocation therefore takes
/// effect at every node within a second, and after every restart (IV-A6).
/// If the records cannot be read, the last list stays in effect.
///
/// Isolation: any thread.
package final class RevocationWatch: Sendable {
    private let records: SessionRecords
    private let log: Logger
    private struct State {
        var list = RevocationList()
        var mark: RevocationMark?
        /// Rights that were lost since the sessions were last looked at.
        var lost: [DeviceWithdrawal] = []
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

    /// Reads the revocations, first before the first client connects. Returns true if they have changed. Throws 10021
    /// if the records cannot be read.
    @discardableResult
    package func load(wallSeconds: Int64) async throws(ApusError) -> Bool {
        let mark = state.withLock { $0.mark }
        guard let read = try await records.revocations(since: mark, wallSeconds: wallSeconds) else { return false }
        let list = RevocationList(read.records, withdrawals: read.withdrawals)
        state.withLock { state in
            state.lost += list.newWithdrawals(since: state.list)
            (state.list, state.mark) = (list, read.mark)
        }
        kept.record(list.count)
        return true
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
        var untold = 0
        var isFailing = false
        while (try? await Task.sleep(for: interval)) != nil {
            do throws(ApusError) {
                if try await load(wallSeconds: wallSeconds()) { untold = 2 }
                isFailing = false
            } catch {
                if !isFailing { log.error("The revocations cannot be read", metadata: Logger.facts(of: error)) }
                isFailing = true
            }
            if untold > 0, await changed() { untold -= 1 }
        }
    }
}

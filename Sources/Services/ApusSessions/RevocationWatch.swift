package import ApusCore
package import ApusStorage
import CoreMetrics
package import Logging
import Synchronization

/// What is revoked, as this node knows it: read from the shared records at its start, and looked at again several times
/// a second, so that a revocation acts at every node within a second and after every restart (IV-A6).
///
/// Where the records cannot be read, what was known stays.
///
/// Isolation: any thread.
package final class RevocationWatch: Sendable {
    private let records: SessionRecords
    private let log: Logger
    private let state = Mutex<(list: RevocationList, mark: RevocationMark?)>((RevocationList(), nil))
    /// Revocations that hold now.
    private let kept = Gauge(label: "apus_sessions_revocations")
    /// Sessions that were ended, and sign-ins that were refused, since their token was revoked.
    let refused = Counter(label: "apus_sessions_revoked_total")

    package init(records: any RecordStore, log: Logger) {
        self.records = SessionRecords(records)
        self.log = log
    }

    package var list: RevocationList { state.withLock { $0.list } }

    /// Throws 12001 where the session's token was revoked.
    package func check(_ session: Session) throws(ApusError) {
        guard list.revokes(session) else { return }
        refused.increment()
        throw ApusError(.tokenInvalid, "the token was revoked")
    }

    /// Reads what is revoked; true where that has changed. Throws 10021 where the records cannot be read.
    @discardableResult
    package func load(wallSeconds: Int64) async throws(ApusError) -> Bool {
        let mark = state.withLock { $0.mark }
        guard let read = try await records.revocations(since: mark, wallSeconds: wallSeconds) else { return false }
        let list = RevocationList(read.records)
        state.withLock { $0 = (list, read.mark) }
        kept.record(list.count)
        return true
    }

    /// Looks again and again, until the task is cancelled; calls `changed` when something else is revoked than before,
    /// and again until it answered true twice: a session that was being opened at that moment may have come after it
    /// looked.
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
                if !isFailing { log.error("What is revoked cannot be read", metadata: Logger.facts(of: error)) }
                isFailing = true
            }
            if untold > 0, await changed() { untold -= 1 }
        }
    }
}

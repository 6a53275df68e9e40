import ApusCluster
import ApusCore
import CoreMetrics
import Logging
import Synchronization

/// Writes down which clients of identities are newest, so that a superseded ticket opens nothing after the newer client
/// left, after its owner died, and after the whole cluster was started anew (IV-A5, docs/decisions/13).
///
/// A sign-in does not wait for the disk: what changed is written a little later, many identities in one commit.
/// What is not written yet is known here. A node that dies at that moment forgets what its last moments brought.
///
/// Concurrency model: any thread; the table sits behind a `Mutex`, and one task of ``SessionService/run()`` writes.
final class IdentityMemory: Sendable {
    private struct State {
        var pending: [String: IdentityRecord] = [:]
        var isWriting = false
    }

    /// How long changes are gathered before they are written.
    private static let delay = Duration.milliseconds(50)
    private static let retryDelay = Duration.seconds(1)

    private let records: SessionRecords
    private let pendingMax: Int
    private let log: Logger
    private let state = Mutex(State())
    /// Identities whose newest client is to be written down.
    private let waiting = Gauge(label: "apus_sessions_unwritten")
    /// Those that were left out, since too many waited.
    private let leftOut = Counter(label: "apus_sessions_unwritten_left_out_total")

    init(records: SessionRecords, pendingMax: Int, log: Logger) {
        self.records = records
        self.pendingMax = pendingMax
        self.log = log
    }

    /// What is known of an identity's clients. Throws 10021 where the store cannot be read.
    func memory(of identity: String) async throws(ApusError) -> PresenceStateMachine.Memory? {
        let pending = state.withLock { $0.pending[identity] }
        let found: IdentityRecord? = if let pending { pending } else { try await records.identity(identity) }
        return found.map { PresenceStateMachine.Memory($0) }
    }

    /// Notes what is to be written. True where ``write(wallSeconds:)`` is to be called.
    func remember(_ record: IdentityRecord) -> Bool {
        state.withLock { state in
            guard state.pending[record.identity] != nil || state.pending.count < pendingMax else {
                leftOut.increment()
                return false
            }
            state.pending[record.identity] = record
            defer { state.isWriting = true }
            return !state.isWriting
        }
    }

    /// Writes until nothing is left to write, or the task is cancelled.
    func write(wallSeconds: @Sendable () -> Int64) async {
        var delay = Self.delay
        while (try? await Task.sleep(for: delay)) != nil {
            let batch = state.withLock { state -> [IdentityRecord] in
                waiting.record(state.pending.count)
                if state.pending.isEmpty { state.isWriting = false }
                return Array(state.pending.values)
            }
            guard !batch.isEmpty else { return }
            do throws(ApusError) {
                try await records.save(batch, wallSeconds: wallSeconds())
                state.withLock { state in
                    for record in batch where state.pending[record.identity] == record {
                        state.pending[record.identity] = nil
                    }
                }
                delay = Self.delay
            } catch {
                log.warning(
                    "What is to be remembered of identities cannot be written", metadata: Logger.facts(of: error))
                delay = Self.retryDelay
            }
        }
    }
}

extension PresenceStateMachine.Memory {
    init(_ record: IdentityRecord) {
        self.init(
            newest: SessionOrder(epoch: record.epoch, sequence: record.sequence), instance: record.instance,
            superseded: record.superseded)
    }
}

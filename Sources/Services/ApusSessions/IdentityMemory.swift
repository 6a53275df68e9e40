import ApusCluster
import ApusCore
import CoreMetrics
import Logging
import Synchronization

/// Writes the newest clients of identities to the store. A superseded ticket therefore opens nothing after the newer
/// client left, after its owner died, and after a restart of the whole cluster (IV-A5, docs/decisions/13).
/// A sign-in does not wait for the disk: changes are written a little later, many identities in one commit. Unwritten
/// changes are read from here. A node that dies loses the changes that it has not written yet.
/// Concurrency model: any thread. A `Mutex` guards the table, and one task of ``SessionService/run()`` writes.
final class IdentityMemory: Sendable {
    private struct State {
        var pending: [String: IdentityRecord] = [:]
        var isWriting = false
    }

    /// How long changes are collected before they are written.
    private static let delay = Duration.milliseconds(50)
    private static let retryDelay = Duration.seconds(1)

    private let records: SessionRecords
    private let pendingMax: Int
    private let log: Logger
    private let state = Mutex(State())
    /// The number of identities with unwritten changes.
    private let waiting = Gauge(label: "apus_sessions_unwritten")
    /// The number of changes that were dropped because too many were unwritten.
    private let leftOut = Counter(label: "apus_sessions_unwritten_left_out_total")

    init(records: SessionRecords, pendingMax: Int, log: Logger) {
        self.records = records
        self.pendingMax = pendingMax
        self.log = log
    }

    /// The memory of an identity's clients. Throws 10021 if the store cannot be read.
    func memory(of identity: String) async throws(ApusError) -> PresenceStateMachine.Memory? {
        let pending = state.withLock { $0.pending[identity] }
        let found: IdentityRecord? = if let pending { pending } else { try await records.identity(identity) }
        return found.map { PresenceStateMachine.Memory($0) }
    }

    /// Queues a record. Returns true if ``write(wallSeconds:)`` must be called.
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

    /// Writes until there are no unwritten changes, or the task is cancelled.
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
                    "The records of identities cannot be written", metadata: Logger.facts(of: error))
                delay = Self.retryDelay
            }
        }
    }
}

extension PresenceStateMachine.Memory {
    init(_ record: IdentityRecord) {
        self.init(
            newest: SessionOrder(epoch: record.epoch, sequence: record.sequence), instance: record.instance,
            superseded: record.superseded, seenSeconds: record.seen)
    }
}

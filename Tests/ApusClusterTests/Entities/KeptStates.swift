import ApusCluster
import ApusCore
import ApusWire
import Synchronization

/// Where the states of a test's entities outlive their nodes: as the standbys of a cluster, or its records, do. An
/// older epoch than one that was seen for an entity is refused.
final class KeptStates: EntityStates {
    private struct Kept {
        var epoch: Epoch
        var snapshot: EntitySnapshot<ProbeReported>
    }

    private struct State {
        var kept: [EntityAddress: Kept] = [:]
        var isHeld = false
        var held: [@Sendable () -> Void] = []
        var writeCount = 0
        var error: (outcome: KeepOutcome, address: EntityAddress)?
        var reminders: [EntityAddress: [Reminder]] = [:]
    }

    private let state = Mutex(State())

    var writeCount: Int { state.withLock { $0.writeCount } }
    var heldCount: Int { state.withLock { $0.held.count } }
    /// Those of all states, in the order of their times.
    var reminders: [Reminder] {
        state.withLock { $0.reminders.values.flatMap(\.self) }.sorted {
            ReminderStateMachine.Cursor($0) < ReminderStateMachine.Cursor($1)
        }
    }

    /// Confirmations wait from now on.
    func hold() { state.withLock { $0.isHeld = true } }

    func release() {
        let held = state.withLock { state in
            state.isHeld = false
            defer { state.held = [] }
            return state.held
        }
        for confirm in held { confirm() }
    }

    /// The entity's next write ends so, and is not made.
    func fail(_ address: EntityAddress, _ outcome: KeepOutcome) { state.withLock { $0.error = (outcome, address) } }

    func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<ProbeReported>?, ApusError>) -> Void
    ) { completion(.success(state.withLock { $0.kept[address]?.snapshot })) }

    func keep(
        _ snapshot: EntitySnapshot<ProbeReported>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void
    ) {
        let outcome = state.withLock { state -> KeepOutcome? in
            state.writeCount += 1
            if let error = state.error, error.address == address {
                state.error = nil
                return error.outcome
            }
            let kept = state.kept[address]
            guard kept.map({ $0.epoch <= epoch }) ?? true, (kept?.snapshot.version ?? 0) == snapshot.version else {
                return .lost(ApusError(.moved))
            }
            var new = snapshot
            new.version += 1
            state.kept[address] = Kept(epoch: epoch, snapshot: new)
            state.reminders[address] = snapshot.reminders
            let version = new.version
            guard state.isHeld else { return .confirmed(version) }
            state.held.append { completion(.confirmed(version)) }
            return nil
        }
        if let outcome { completion(outcome) }
    }
}

extension KeptStates: ReminderSource {
    func dueReminders(
        after cursor: ReminderStateMachine.Cursor?, upTo: Int64, limit: Int
    ) async throws(ApusError) -> (reminders: [Reminder], isLast: Bool) {
        let rest = reminders.filter { reminder in
            reminder.due <= upTo && (cursor.map { ReminderStateMachine.Cursor(reminder) > $0 } ?? true)
        }
        return (Array(rest.prefix(limit)), rest.count <= limit)
    }
}

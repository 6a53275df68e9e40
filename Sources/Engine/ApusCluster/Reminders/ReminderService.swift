package import ApusCore
import CoreMetrics
package import Logging
import Synchronization

/// Reads the reminders of the shards that this node owns.
///
/// Isolation: may be called from any task.
package protocol ReminderSource: Sendable {
    /// The next reminders in the order of their times and ids, after the cursor and up to the given time, inclusive.
    ///
    /// - Parameter limit: the most reminders in the page.
    /// - Returns: the page, and whether there are no more up to the time.
    /// - Throws: 10021 if they cannot be read.
    func dueReminders(
        after cursor: ReminderStateMachine.Cursor?, upTo: Int64, limit: Int
    ) async throws(ApusError) -> (reminders: [Reminder], isLast: Bool)
}

/// Delivers the reminders of this node's shards to their entities: carries out the actions of ``ReminderStateMachine``
/// (D15).
///
/// A reminder is delivered within 100 ms of its time, or of the moment at which this node gained its shard. A reminder
/// that was set by a step with an unknown outcome is delivered when the records are read again: within 600 ms if no
/// page of other reminders comes first. Its entity carries it out once, since its id is the request id.
///
/// Concurrency model: a `Mutex` guards the machine, and is held for one event. The actions are carried out outside of
/// it.
package final class ReminderService: Sendable {
    private struct State {
        var machine: ReminderStateMachine
        var isUsed = false
        var owned = OwnedShards()
    }

    private struct Meters: Sendable {
        /// Reminders that entities have carried out.
        let delivered = Counter(label: "apus_reminders_delivered_total")
        /// Deliveries that failed and are tried again.
        let failed = Counter(label: "apus_reminders_failed_total")
        let readFailed = Counter(label: "apus_reminder_reads_failed_total")
        /// Reminders that are held because they are due soon. Each durability has a service, and a series, of its own.
        let held: Gauge

        init(_ durability: EntityDurability) {
            held = Gauge(label: "apus_reminders_held", dimensions: [("durability", "\(durability)")])
        }
    }

    private static let tickInterval = Duration.milliseconds(100)
    /// The size of a page, in reminders.
    private static let pageCountMax = 512

    private let source: any ReminderSource
    private let registry: EntityRegistry
    private let logger: Logger
    private let meters: Meters
    private let state: Mutex<State>

    /// - Parameters:
    ///   - registry: delivers to the entities of this node.
    ///   - durability: of the entities whose reminders these are; a label of the metrics.
    package init(
        configuration: ReminderStateMachine.Configuration = .init(), source: any ReminderSource,
        registry: EntityRegistry, durability: EntityDurability = .replicated, logger: Logger
    ) {
        meters = Meters(durability)
        (self.source, self.registry, self.logger) = (source, registry, logger)
        state = Mutex(State(machine: ReminderStateMachine(configuration: configuration)))
    }

    /// The first kind that can have reminders is registered. From now on the reminders of this node's shards are
    /// delivered. Before, nothing is read, and a map change has no cost here.
    package func use() {
        let isFirst = state.withLock { state in
            defer { state.isUsed = true }
            return !state.isUsed
        }
        guard isFirst else { return }
        registry.view.observe { [weak self] _, map in self?.mapChanged(map) }
        mapChanged(registry.view.map)
    }

    /// Entities of this node have set, cancelled or carried out reminders, and their states include that.
    package func noted(_ changes: [ReminderChange]) {
        for change in changes {
            switch change {
            case .set(let reminder): handle(.set(reminder))
            case .cancel(let entity, let name): handle(.cancelled(entity, name: name))
            case .delivered(let reminder): handle(.delivered(reminder))
            }
        }
    }

    /// Delivers due reminders until it is cancelled.
    package func run() async {
        while (try? await Task.sleep(for: Self.tickInterval)) != nil {
            handle(.tick)
            meters.held.record(Double(state.withLock { $0.machine.heldCount }))
        }
    }

    private func mapChanged(_ map: ClusterMap) {
        let owned = OwnedShards(of: registry.view.local, in: map)
        let (lost, gained) = state.withLock { state in
            defer { state.owned = owned }
            return owned.turnover(since: state.owned)
        }
        if !lost.isEmpty { handle(.lost(lost)) }
        if !gained.isEmpty { handle(.gained(gained)) }
    }

    private func handle(_ input: ReminderStateMachine.Input) {
        let now = registry.view.clock.wallMilliseconds()
        for action in state.withLock({ $0.machine.handle(input, now: now) }) {
            switch action {
            case .read(let cursor, let upTo): read(after: cursor, upTo: upTo)
            case .deliver(let reminder): deliver(reminder)
            }
        }
    }

    /// One page is requested at a time, so that the order is kept.
    private func read(after cursor: ReminderStateMachine.Cursor?, upTo: Int64) {
        Task {
            do throws(ApusError) {
                let page = try await source.dueReminders(after: cursor, upTo: upTo, limit: Self.pageCountMax)
                handle(.read(page.reminders, isLast: page.isLast))
            } catch {
                meters.readFailed.increment()
                logger.warning("Reminders cannot be read", metadata: Logger.facts(of: error))
                handle(.readFailed)
            }
        }
    }

    private func deliver(_ reminder: Reminder) {
        registry.remind(reminder) { error in
            if let error {
                self.meters.failed.increment()
                self.logger.debug("A reminder was not delivered", metadata: Logger.facts(of: error))
                self.handle(.deliveryFailed(reminder.id))
            } else {
                self.meters.delivered.increment()
                self.handle(.delivered(reminder))
            }
        }
    }
}

package import ApusCore
import ApusStorage
import CoreMetrics
package import Logging
import Synchronization

/// Delivers what the entities of a kind add to their outboxes.
///
/// Isolation: may be called from any task, for one entry of an entity at a time.
package protocol OutboxReceiver: Sendable {
    /// Delivers an entry. It is called again, possibly at another node, until it does not throw. An entry that can
    /// never be delivered must not throw, since the later ones of its entity wait for it.
    func deliver(_ entry: OutboxEntry) async throws(ApusError)
}

/// Delivers the outbox entries of this node's shards: carries out the actions of ``OutboxStateMachine`` (D15).
///
/// An entry is delivered once its change is durable. After the death of a node, the next owner of the shard delivers
/// what is left as soon as it has read the records.
///
/// Concurrency model: a `Mutex` guards the machine, and is held for one event. The actions are carried out outside of
/// it.
package final class OutboxService: Sendable {
    private struct State {
        var machine: OutboxStateMachine
        var receivers: [EntityKind: any OutboxReceiver] = [:]
        var owned = OwnedShards()
        var isUsed: Bool { !receivers.isEmpty }
    }

    private struct Meters: Sendable {
        let delivered = Counter(label: "apus_outbox_delivered_total")
        /// Deliveries that failed and are repeated.
        let failed = Counter(label: "apus_outbox_failed_total")
        let refused = Counter(label: "apus_outbox_refused_total")
        let readFailed = Counter(label: "apus_outbox_reads_failed_total")
        let held = Gauge(label: "apus_outbox_held")
    }

    private static let tickInterval = Duration.milliseconds(100)
    /// The size of a page, in entries.
    private static let pageCountMax = 64

    private let shards: RecordedShards
    private let records: OutboxRecords
    private let view: ClusterView
    private let logger: Logger
    private let meters = Meters()
    private let state: Mutex<State>

    package init(
        configuration: OutboxStateMachine.Configuration = .init(), _ shards: RecordedShards, registry: EntityRegistry,
        logger: Logger
    ) {
        (self.shards, view, self.logger) = (shards, registry.view, logger)
        records = OutboxRecords(shards.store)
        state = Mutex(State(machine: OutboxStateMachine(configuration: configuration)))
    }

    /// A kind of recorded entity has entries. Before the first one nothing is read, and a map change has no cost here.
    package func use(_ kind: EntityKind, _ receiver: any OutboxReceiver) {
        let isFirst = state.withLock { state in
            defer { state.receivers[kind] = receiver }
            return !state.isUsed
        }
        guard isFirst else { return }
        shards.observeClaims { [weak self] in self?.handle(.claimed($0)) }
        view.observe { [weak self] _, map in self?.mapChanged(map) }
        mapChanged(view.map)
    }

    /// True if a change of the entity must be refused, because too many entries wait. Counts the refusal.
    func refuses(_ entity: EntityAddress, unstored: Int) -> Bool {
        guard state.withLock({ $0.machine.isFull(entity, unstored: unstored) }) else { return false }
        meters.refused.increment()
        return true
    }

    /// An entity of this node has stored these entries.
    func stored(_ entries: [OutboxEntry]) { handle(.stored(entries)) }

    /// A step of the entity was not confirmed. It may store entries.
    func unconfirmed(_ entity: EntityAddress) { handle(.unconfirmed(entity)) }

    /// The entity was loaded, and has not handled a message yet.
    func loaded(_ entity: EntityAddress) { handle(.loaded(entity)) }

    /// Delivers entries until it is cancelled.
    package func run() async {
        while (try? await Task.sleep(for: Self.tickInterval)) != nil {
            guard state.withLock({ $0.isUsed }) else { continue }
            handle(.tick)
            meters.held.record(Double(state.withLock { $0.machine.heldCount }))
        }
    }

    private func mapChanged(_ map: ClusterMap) {
        let owned = OwnedShards(of: view.local, in: map)
        let changes = state.withLock { state in
            defer { state.owned = owned }
            return owned.differences(from: state.owned)
        }
        // A shard that comes back under another epoch had another owner meanwhile.
        let (lost, gained) = (changes.filter { $0.old != nil }, changes.filter { $0.new != nil })
        if !lost.isEmpty { handle(.lost(lost.map(\.shard))) }
        if !gained.isEmpty { handle(.gained(gained.map(\.shard))) }
    }

    private func handle(_ input: OutboxStateMachine.Input) {
        for action in state.withLock({ $0.machine.handle(input, now: .now()) }) {
            switch action {
            case .read(let cursor): read(after: cursor)
            case .deliver(let entry): deliver(entry)
            case .remove(let ids): remove(ids)
            }
        }
    }

    /// One page is requested at a time.
    private func read(after cursor: OutboxEntry.ID?) {
        Task {
            do throws(ApusError) {
                guard mayDeliver else { return handle(.readFailed) }
                let page = try await records.page(after: cursor, limit: Self.pageCountMax)
                // Those of a kind of a later release are delivered by its nodes.
                let kinds = state.withLock { Set($0.receivers.keys) }
                handle(.read(page.entries.filter { kinds.contains($0.entity.kind) }, next: page.next))
            } catch {
                meters.readFailed.increment()
                logger.warning("Outboxes cannot be read", metadata: Logger.facts(of: error))
                handle(.readFailed)
            }
        }
    }

    /// False if the node has no majority. It may have lost its shards to others then, which deliver their entries.
    private var mayDeliver: Bool { view.permission.isGranted(now: .now()) }

    /// One entry of an entity is delivered at a time.
    private func deliver(_ entry: OutboxEntry) {
        let receiver = state.withLock { $0.receivers[entry.entity.kind] }
        Task {
            do throws(ApusError) {
                guard mayDeliver else { return handle(.deliveryFailed(entry.id)) }
                try await receiver?.deliver(entry)
                meters.delivered.increment()
                handle(.delivered(entry.id))
            } catch {
                meters.failed.increment()
                logger.debug("An entry of an outbox was not delivered", metadata: Logger.facts(of: error))
                handle(.deliveryFailed(entry.id))
            }
        }
    }

    private func remove(_ ids: [OutboxEntry.ID]) {
        let map = view.map
        let removal = OutboxRemoval(ids) { [shards] in shards.fence(map[$0].epoch) }
        shards.store.commit(removal.steps) { [self] outcomes in
            for input in removal.inputs(outcomes) { handle(input) }
        }
    }
}

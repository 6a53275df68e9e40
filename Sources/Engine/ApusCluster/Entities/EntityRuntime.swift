import ApusCore
package import ApusStorage
package import Logging

/// The registration of services' kinds of entities: the registry, the storage of the states of each durability, and the
/// delivery of reminders (D15).
///
/// ```swift
/// runtime.register(Visits.definition)                      // none or replicated
/// runtime.register(Locks.definition, in: Locks.collection) // recorded
/// ```
///
/// Isolation: immutable; its parts are thread-safe.
package final class EntityRuntime: Sendable {
    package let registry: EntityRegistry
    /// Consulted by planned moves.
    package let replicated: ReplicatedShards
    private let recorded: RecordedShards
    private let replicatedReminders: ReminderService
    private let recordedReminders: ReminderService
    private let outbox: OutboxService

    /// - Parameter replicas: of this node. It must observe the view before the registry does.
    package init(registry: EntityRegistry, replicas: ReplicaService, records: any RecordStore, logger: Logger) {
        self.registry = registry
        replicated = ReplicatedShards(replicas: replicas, view: registry.view, logger: logger)
        recorded = RecordedShards(store: records, local: registry.view.local)
        // All reminders of replicated entities are in memory already.
        var configuration = ReminderStateMachine.Configuration()
        configuration.loadedCountMax = 1_000_000
        replicatedReminders = ReminderService(
            configuration: configuration, source: replicated, registry: registry, logger: logger)
        recordedReminders = ReminderService(
            configuration: .records, source: ReminderRecords(records), registry: registry, durability: .recorded,
            logger: logger)
        outbox = OutboxService(recorded, registry: registry, logger: logger)
    }

    /// Adds a kind whose durability is `none` or `replicated`. Call before the first message arrives.
    ///
    /// - Precondition: the kind has no host yet.
    package func register<Content: EntityContent>(_ definition: EntityDefinition<Content>) {
        switch definition.durability {
        case .none: registry.register(definition, states: UnkeptStates())
        case .replicated:
            replicated.use()
            replicatedReminders.use()
            registry.register(
                definition, states: ReplicatedStates(replicated, memory: definition.memory),
                reminded: replicatedReminders.noted)
        case .recorded: preconditionFailure("\(definition.name) is recorded and needs a collection")
        }
    }

    /// Adds a kind whose durability is `recorded`. Call before the first message arrives.
    ///
    /// - Parameters:
    ///   - collection: one of those that the store was opened with.
    ///   - receiver: delivers what the entities add to their outboxes; nil if they add nothing.
    /// - Precondition: the kind has no host yet, and the collection belongs to this kind.
    package func register<Content: EntityContentMessage>(
        _ definition: EntityDefinition<Content>, in collection: EntityCollection<Content>,
        outbox receiver: (any OutboxReceiver)? = nil
    ) {
        precondition(definition.durability == .recorded, "\(definition.name) is not recorded")
        precondition(definition.kind == collection.kind, "\(collection.name) belongs to another kind")
        recordedReminders.use()
        if let receiver { outbox.use(definition.kind, receiver) }
        registry.register(
            definition, states: RecordedStates(recorded, collection, memory: definition.memory),
            reminded: recordedReminders.noted, outbox: receiver == nil ? nil : outbox)
    }

    /// The outbox of a kind whose entities write their records themselves. Call before the first message arrives.
    ///
    /// - Parameter receiver: delivers what the entities add.
    package func outbox(of kind: EntityKind, to receiver: any OutboxReceiver) -> OwnedOutbox {
        outbox.use(kind, receiver)
        return OwnedOutbox(recorded, outbox)
    }

    /// Delivers reminders and outbox entries until it is cancelled.
    package func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await self.replicatedReminders.run() }
            group.addTask { await self.recordedReminders.run() }
            group.addTask { await self.outbox.run() }
        }
    }
}

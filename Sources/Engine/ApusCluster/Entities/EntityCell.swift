import ApusCore
import ApusTransport
import DequeModule
import NIOCore
import SwiftProtobuf
import Synchronization

/// What all entities of a kind share.
///
/// Isolation: immutable. It is an object because weak references are expensive to copy.
final class EntityKindContext<Content: EntityContent>: Sendable {
    let definition: EntityDefinition<Content>
    let states: any EntityStates<Content>
    weak let registry: EntityRegistry?
    /// Called when reminders were set, cancelled or delivered, once that is part of the entity's state.
    let reminded: @Sendable ([ReminderChange]) -> Void
    /// Delivers the entries of the entities; nil if the kind has none.
    let outbox: OutboxService?
    /// The cluster's clock, Unix milliseconds.
    let wallMilliseconds: @Sendable () -> Int64
    /// Whether the node may answer; nil if the kind has no kept state.
    let permission: AnswerPermission?

    init(
        definition: EntityDefinition<Content>, states: any EntityStates<Content>, registry: EntityRegistry?,
        reminded: @escaping @Sendable ([ReminderChange]) -> Void, outbox: OutboxService?,
        wallMilliseconds: @escaping @Sendable () -> Int64
    ) {
        (self.definition, self.states, self.outbox) = (definition, states, outbox)
        self.registry = registry
        permission = definition.durability == .none ? nil : registry?.view.permission
        (self.reminded, self.wallMilliseconds) = (reminded, wallMilliseconds)
    }
}

/// An entity with durability (D15): carries out the actions of ``EntityStateMachine``.
///
/// Isolation: an actor on the entity's own executor. Messages are handled where they arrive.
package actor EntityCell<Content: EntityContent> {
    private typealias Machine = EntityStateMachine<Content, EntityWork<Content>, EntityEnding>

    private let executor: TurnExecutor
    package nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

    private let address: EntityAddress
    private let epoch: Epoch
    private let kind: EntityKindContext<Content>
    private var machine: Machine
    /// The version of the state that was read or written last.
    private var version: UInt64 = 0
    private var heldAnswers = HeldAnswers<Content>()

    init(_ context: EntityContext, _ kind: EntityKindContext<Content>) {
        executor = context.executor
        (address, epoch) = (context.address, context.epoch)
        self.kind = kind
        var configuration = Machine.Configuration(
            isKept: kind.definition.durability != .none, isSame: { $0.isExactly($1) })
        configuration.callCountMax = kind.definition.callCountMax
        configuration.memory = kind.definition.memory
        machine = Machine(initial: Content(), configuration: configuration)
    }

    // MARK: Messages

    func take(_ work: EntityWork<Content>) {
        if let error = refusal() { return work.refuse(error) }
        perform(machine.came(Machine.Request(call: work, id: work.id)))
    }

    private func perform(_ actions: [Machine.Action]) {
        var waiting = Deque(actions)
        while let action = waiting.popFirst() {
            switch action {
            case .load: load()
            case .run(let request, let content): run(request.call, content, &waiting)
            case .commit(let state, let earlier): keep(state, earlier)
            case .finish(let ending):
                if !ending.entries.isEmpty { kind.outbox?.stored(ending.entries) }
                answer(.ending(ending))
            case .repeatAnswer(let work, let bytes): answer(.repetition(work, bytes))
            case .refuse(let work, let error): work.refuse(error)
            case .fail(let ending, let error): ending.refuse(error)
            case .leaveOpen(let ending, let error):
                if !ending.reminders.isEmpty { kind.reminded(ending.reminders) }
                if !ending.entries.isEmpty { kind.outbox?.stored(ending.entries) }
                ending.refuse(error)
            case .leave: leaveHost()
            }
        }
    }

    private func run(_ work: EntityWork<Content>, _ content: Content, _ waiting: inout Deque<Machine.Action>) {
        let scope = makeScope(work)
        switch work.body {
        case .change where kind.outbox?.refuses(address, unstored: machine.unstoredCount) ?? false:
            let error = ApusError(.overloaded, "messages of the entity wait for their delivery")
            let ending = EntityEnding(work, send: { work.refuse(error) })
            waiting += machine.ended(Machine.Result(content: nil, ending: ending))
        case .change(let body):
            var (content, scope) = (content, scope)
            let outcome = body(&content, &scope)
            waiting += machine.ended(result(outcome, content, scope, work))
        case .read(let body):
            let outcome = body(content, scope)
            waiting += machine.ended(result(outcome, nil, scope, work))
        }
    }

    private func result(
        _ outcome: EntityWork<Content>.Outcome, _ content: Content?, _ scope: EntityScope, _ work: EntityWork<Content>
    ) -> Machine.Result {
        guard !outcome.isFailure else {
            return Machine.Result(content: nil, ending: EntityEnding(work, send: outcome.send))
        }
        precondition(scope.entries.isEmpty || kind.outbox != nil, "\(kind.definition.name) has no outbox")
        return Machine.Result(
            content: content, answer: scope.isAnswerKept ? outcome.answer : nil, reminders: scope.reminderChanges,
            entries: scope.entries, mayBeLost: scope.mayBeLost, ending: EntityEnding(work, send: outcome.send, scope))
    }

    private func makeScope(_ work: EntityWork<Content>) -> EntityScope {
        EntityScope(
            address: address, epoch: epoch, call: work.call, wallMilliseconds: kind.wallMilliseconds(),
            reminders: machine.state.reminders,
            makeID: {
                var generator = SystemRandomNumberGenerator()
                return RequestID(using: &generator)
            })
    }

    // MARK: The permission to answer

    /// The error of a new message if the node may not answer for longer than a moment, or too many answers wait.
    private func refusal() -> ApusError? {
        guard let permission = kind.permission, !permission.isGranted(now: .now()) else { return nil }
        if permission.refuses(now: .now()) { return HeldAnswers<Content>.noMajority }
        guard heldAnswers.count + machine.callCount < kind.definition.callCountMax else {
            return ApusError(.overloaded, "the entity is overloaded")
        }
        return nil
    }

    /// Sends an answer, or holds it while the node may not answer: another node may own the shard.
    private func answer(_ ready: HeldAnswers<Content>.Answer) {
        guard let permission = kind.permission, !heldAnswers.isEmpty || !permission.isGranted(now: .now()) else {
            return deliver(ready)
        }
        guard !machine.isOver else { return ready.refuse(HeldAnswers<Content>.shardLost) }
        permission.countHeld()
        let isFirst = heldAnswers.isEmpty
        heldAnswers.append(ready)
        // It may have been handled for longer than the others wait.
        if permission.refuses(now: .now()) { heldAnswers.refuseCallers() }
        if isFirst, !heldAnswers.isEmpty { awaitPermission(permission) }
    }

    private func awaitPermission(_ permission: AnswerPermission) {
        permission.wait { [executor, self] in
            executor.perform { self.assumeIsolated { $0.permissionChanged() } }
        }
        if permission.isGranted(now: .now()) { permissionChanged() }
    }

    private func permissionChanged() {
        guard let permission = kind.permission, !heldAnswers.isEmpty else { return }
        while permission.isGranted(now: .now()), let ready = heldAnswers.popFirst() { deliver(ready) }
        guard !heldAnswers.isEmpty else { return }
        if permission.refuses(now: .now()) { heldAnswers.refuseCallers() }
        if !heldAnswers.isEmpty { awaitPermission(permission) }
    }

    private func deliver(_ ready: HeldAnswers<Content>.Answer) {
        switch ready {
        case .ending(let ending): finish(ending)
        case .repetition(let work, let answer): work.repeatAnswer(answer)
        case .effects(let ending): finish(ending, hasCaller: false)
        }
    }

    /// The change is confirmed. Sends its answer and its messages to others.
    private func finish(_ ending: EntityEnding, hasCaller: Bool = true) {
        if !ending.reminders.isEmpty { kind.reminded(ending.reminders) }
        if hasCaller { ending.send() }
        guard let registry = kind.registry else { return }
        // Messages of an entity that was released are dropped.
        if !ending.tellings.isEmpty, registry.owns(address.shard, epoch) {
            for (index, tell) in ending.tellings.enumerated() {
                tell.send(registry, makeCall(ending.call, index: UInt64(index)))
            }
        }
        if ending.isDone { registry.passivate(address) }
    }

    private func makeCall(_ cause: EntityCall, index: UInt64) -> EntityCall {
        var call = EntityCall()
        call.identity = cause.identity
        call.request = cause.request?.derived(.max - index)
        call.sender = EntityHeader(kind: address.kind, shard: address.shard, epoch: epoch, key: address.key)
        return call
    }

    // MARK: State

    private func load() {
        kind.states.load(address, epoch: epoch) { [executor, self] result in
            executor.perform { self.assumeIsolated { $0.loaded(result) } }
        }
    }

    private func loaded(_ result: Result<EntitySnapshot<Content>?, ApusError>) {
        do throws(ApusError) {
            let kept = try result.get()
            kind.outbox?.loaded(address)
            guard let kept else { return perform(machine.loaded(nil)) }
            version = kept.version
            let state = Machine.State(content: kept.content, memory: kept.memory, reminders: kept.reminders)
            perform(machine.loaded(state, isConfirmed: kept.isConfirmed))
        } catch {
            perform(machine.loadFailed(error))
        }
    }

    private func keep(_ state: Machine.State, _ earlier: [Reminder]) {
        var snapshot = EntitySnapshot(
            content: state.content, memory: state.memory, reminders: state.reminders, version: version)
        snapshot.entries = state.entries
        kind.states.keep(snapshot, of: address, epoch: epoch, earlier: earlier) { [executor, self] outcome in
            executor.perform { self.assumeIsolated { $0.kept(outcome) } }
        }
    }

    private func kept(_ outcome: KeepOutcome) {
        switch outcome {
        case .confirmed(let version):
            self.version = version
            perform(machine.committed(.confirmed))
        case .unconfirmed(let error): perform(machine.committed(.unconfirmed(error)))
        case .lost(let error):
            // Refused steps are certainly not made.
            if ![.overloaded, .frameTooLarge].contains(error.code) { kind.outbox?.unconfirmed(address) }
            perform(machine.committed(.lost(error)))
        }
    }

    // MARK: Release

    /// The entity was released, or its shard left.
    func leave() { perform(machine.leave()) }

    private func leaveHost() {
        heldAnswers.refuseAll()
        kind.registry?.abandon(address, self)
    }
}

extension EntityRegistry {
    /// Adds a kind of entity whose state outlives its activations (D15). Call before the first message arrives.
    ///
    /// - Parameters:
    ///   - states: stores the kind's states, as durably as its durability requires.
    ///   - reminded: called when reminders were set, cancelled or delivered, once that is durable; must not block.
    ///   - outbox: delivers what entities add to their outboxes; nil if the kind's entities add nothing.
    /// - Precondition: the kind has no host yet.
    package func register<Content: EntityContent>(
        _ definition: EntityDefinition<Content>, states: any EntityStates<Content>,
        reminded: @escaping @Sendable ([ReminderChange]) -> Void = { _ in }, outbox: OutboxService? = nil
    ) {
        let kind = EntityKindContext(
            definition: definition, states: states, registry: self, reminded: reminded, outbox: outbox,
            wallMilliseconds: { [view] in view.clock.wallMilliseconds() })
        var options = EntityOptions<EntityCell<Content>>(
            make: { EntityCell($0, kind) }, passivateAfter: definition.passivateAfter)
        options.mailboxCountMax = definition.callCountMax
        options.deactivated = { await $0.leave() }
        register(definition.kind, options: options) { handlers in
            for registration in definition.registrations { registration(&handlers) }
        }
    }
}

extension EntityRegistry: EntitySender {
    func send<Content: EntityContent, M: EntityMessage>(
        _ message: M, to entity: EntityAddress, of content: Content.Type, _ call: EntityCall
    ) {
        // If the target cannot be reached, the message is lost: a tell has no guarantee.
        try? ref(EntityCell<Content>.self, entity).tell(message, call: call)
    }

    func send<M: NodeMessage>(_ message: M, to node: NodeName) { tell(node, message) }
}

import ApusCore
import ApusTracing
import ApusTransport
import ApusWire
import NIOCore
import Synchronization

/// The result of a message at a host.
enum OnReceived {
    case handled
    case methodUnknown
    case moved
    case overloaded
}

/// All entities of one kind on this node, by shard. The cost of a moved shard or a new map is proportional to what
/// moves, not to the number of entities.
///
/// Concurrency model: one `Mutex` guards the shards' epochs and the activations. An entity is therefore created only
/// under the epoch under which its message was admitted, and is removed together with its shard. The lock is held for
/// look-ups, for the creation of an actor, and for the work of one shard. It is never held for a handler.
///
/// Only the handlers know the actors' type: a host with a type parameter would look up types at run time for each
/// message.
final class EntityHost: Sendable {
    typealias Activation = EntityActivation

    /// The entities of one shard.
    private struct Table {
        let tenure: ShardTenure
        var activations: [String: Activation] = [:]
    }

    private struct State {
        var routes: ShardRoutes
        var heldShards: Set<ShardID> = []
        /// By shard; nil if a shard has no entity here.
        var tables = [Table?](repeating: nil, count: ShardID.count)
        var activationCount = 0
        var sweep: UInt64 = 0

        func isHeld(_ shard: ShardID) -> Bool { !heldShards.isEmpty && heldShards.contains(shard) }

        func activation(_ key: String, _ shard: ShardID) -> Activation? {
            tables[Int(shard.rawValue)]?.activations[key]
        }

        mutating func remove(_ activation: Activation) -> Bool {
            let index = Int(activation.tenure.shard.rawValue)
            guard tables[index]?.activations[activation.key] === activation else { return false }
            tables[index]?.activations[activation.key] = nil
            activationCount -= 1
            return true
        }
    }

    enum Admission {
        case admitted(Activation)
        /// The shard is not at this node under this epoch, or is being handed over.
        case moved
        case overloaded
    }

    let kind: EntityKind
    let options: HostOptions
    /// A short list. Each method's handler is at the same index of another list.
    private let methods: [UInt16]
    private let handlers: [EntityHandler]
    /// True if some handlers run in place.
    private let entersExecutors: Bool
    private let budget: EntityBudget
    private let makeExecutor: @Sendable () -> TurnExecutor
    private let state: Mutex<State>

    init<Entity: Actor>(
        kind: EntityKind, options: EntityOptions<Entity>, handlers: EntityHandlers<Entity>, routes: ShardRoutes,
        budget: EntityBudget, makeExecutor: @escaping @Sendable () -> TurnExecutor
    ) {
        self.kind = kind
        self.options = HostOptions(options)
        methods = handlers.byMethod.keys.sorted()
        self.handlers = methods.compactMap { handlers.byMethod[$0] }
        entersExecutors = self.handlers.contains { $0.isInPlace }
        self.budget = budget
        self.makeExecutor = makeExecutor
        state = Mutex(State(routes: routes))
    }

    /// True if the host's actors are of this type.
    func holds<Entity: Actor>(_ type: Entity.Type) -> Bool { options.entity == ObjectIdentifier(type) }

    // MARK: Messages

    func handler(of method: UInt16) -> EntityHandler? {
        methods.firstIndex(of: method).map { handlers[$0] }
    }

    func received(
        _ request: InboundRequest, header: EntityHeader, call: EntityCall, payload: ByteBuffer
    ) -> OnReceived {
        guard let handler = handler(of: request.method) else { return .methodUnknown }
        switch admit(header.key, header.shard, header.epoch) {
        case .moved: return .moved
        case .overloaded: return .overloaded
        case .admitted(let activation):
            run(handler.run, request, call, payload, activation)
            return .handled
        }
    }

    private func run(
        _ handler: EntityHandler.Run, _ request: InboundRequest, _ call: EntityCall, _ payload: ByteBuffer,
        _ activation: Activation
    ) {
        switch handler {
        case .inTask(let body):
            let isRunning = request.run {
                let outcome = await body(activation.actor, payload)
                return self.finish(activation) ? outcome : .failure(CallFailure(Self.leftUnderWay))
            }
            if !isRunning { _ = finish(activation) }
        case .inPlace(let body):
            let executor = activation.executor
            if executor.enter() {
                handle(request, payload, activation, body)
                executor.leave()
            } else {
                executor.later { self.handle(request, payload, activation, body) }
            }
        case .deferred(let body):
            activation.executor.perform {
                body(activation.actor, payload, call) { result in
                    _ = self.finish(activation)
                    Self.answer(request, result)
                }
            }
        }
    }

    private static func answer(_ request: InboundRequest, _ result: Result<EncodedMessage, ApusError>) {
        switch result {
        case .success(let bytes): request.reply(byteCount: bytes.count) { bytes.write(into: &$0) }
        case .failure(let error): request.fail(error)
        }
    }

    /// The error of a message that may have been carried out. Its sender repeats it only if that is harmless.
    static var leftUnderWay: ApusError {
        ApusError(.linkLost, "the shard left this node while the message was handled")
    }

    /// Handles a message in place. Called inside the entity's executor.
    private func handle(
        _ request: InboundRequest, _ payload: ByteBuffer, _ activation: Activation,
        _ body: EntityHandler.InPlace
    ) {
        guard let span = request.span else { return carryOut(request, payload, activation, body) }
        // Tasks that the handler creates inherit the trace.
        TraceContext.within(span.trace) { carryOut(request, payload, activation, body) }
    }

    private func carryOut(
        _ request: InboundRequest, _ payload: ByteBuffer, _ activation: Activation,
        _ body: EntityHandler.InPlace
    ) {
        var isFinished = false
        let error = body(activation.actor, payload, request.wantsReply) { bytes in
            isFinished = true
            guard finish(activation) else { return request.fail(Self.leftUnderWay) }
            request.reply(byteCount: bytes.count) { bytes.write(into: &$0) }
        }
        guard !isFinished else { return }
        guard finish(activation) else { return request.fail(Self.leftUnderWay) }
        if let error { request.fail(error) }
    }

    /// Admits a message and counts it. Creates the entity if it does not exist.
    func admit(_ key: String, _ shard: ShardID, _ epoch: Epoch) -> Admission {
        state.withLock { state in
            guard state.routes.isLocal(shard, epoch: epoch), !state.isHeld(shard) else { return .moved }
            let activation: Activation
            if let existing = state.activation(key, shard) {
                activation = existing
            } else {
                guard budget.take() else { return .overloaded }
                activation = makeActivation(key, shard, epoch, &state)
            }
            guard activation.runningCount.load(ordering: .relaxed) < options.mailboxCountMax else { return .overloaded }
            activation.runningCount.add(1, ordering: .relaxed)
            activation.isLeaving.store(false, ordering: .relaxed)
            activation.lastSweep.store(state.sweep, ordering: .relaxed)
            return .admitted(activation)
        }
    }

    /// A message's handler ended.
    ///
    /// - Returns: false if the entity was released in the meantime because its shard left.
    func finish(_ activation: Activation) -> Bool {
        // Read before the release that the handler itself may have requested: its answer is still sent.
        let isActive = activation.isActive
        let running = activation.runningCount.subtract(1, ordering: .acquiringAndReleasing).newValue
        if running == 0, activation.isLeaving.load(ordering: .relaxed) { removeIfIdle(activation) }
        return isActive
    }

    /// Checks that the actor's executor is the entity's. Handlers that run in place depend on it.
    private static func check(_ actor: any Actor, _ executor: TurnExecutor) {
        guard executor.enter() else { return }
        actor.preconditionIsolated("an actor whose handlers do not suspend must run on its entity's executor")
        executor.leave()
    }

    private func makeActivation(_ key: String, _ shard: ShardID, _ epoch: Epoch, _ state: inout State) -> Activation {
        let index = Int(shard.rawValue)
        let tenure: ShardTenure
        if let known = state.tables[index]?.tenure {
            tenure = known
        } else {
            tenure = ShardTenure(shard: shard, epoch: epoch)
            state.tables[index] = Table(tenure: tenure)
        }
        let executor = makeExecutor()
        let context = EntityContext(
            address: EntityAddress(kind: kind, key: key, shard: shard), epoch: epoch, executor: executor)
        let actor = options.make(context)
        if entersExecutors { Self.check(actor, executor) }
        let activation = Activation(key: key, actor: actor, executor: executor, tenure: tenure)
        state.tables[index]?.activations[key] = activation
        state.activationCount += 1
        return activation
    }

    // MARK: Activation and release

    var activationCount: Int { state.withLock { $0.activationCount } }

    /// The entity requests its release. It is released only if no other message is in progress, and none arrives before
    /// the requesting one has ended.
    func passivate(_ key: String, _ shard: ShardID) {
        guard let activation = state.withLock({ $0.activation(key, shard) }) else { return }
        let running = activation.runningCount.load(ordering: .acquiring)
        guard running <= 1 else { return }
        activation.isLeaving.store(true, ordering: .relaxed)
        if running == 0 { removeIfIdle(activation) }
    }

    /// Notes whether an entity is idle. An idle entity is released as soon as it handles no message. A message that
    /// arrives withdraws this, so an entity calls it at the end of each message.
    ///
    /// - Parameter actor: has no effect if the entity has another one by now.
    func setIdle(_ isIdle: Bool, _ key: String, _ shard: ShardID, _ actor: AnyObject) {
        let removed = state.withLock { state -> Activation? in
            guard let activation = state.activation(key, shard), activation.actor === actor else { return nil }
            activation.isLeaving.store(isIdle, ordering: .sequentiallyConsistent)
            guard isIdle, activation.isIdle, state.remove(activation) else { return nil }
            return activation
        }
        if let removed { release([removed]) }
    }

    /// The next message creates another actor, whatever this one still does.
    func abandon(_ key: String, _ shard: ShardID, _ actor: AnyObject) {
        let removed = state.withLock { state -> Activation? in
            guard let activation = state.activation(key, shard), activation.actor === actor,
                state.remove(activation)
            else { return nil }
            return activation
        }
        if let removed { release([removed]) }
    }

    /// Delivers a reminder to an entity of this node. The completion is called once, with the result.
    func remind(_ reminder: Reminder, epoch: Epoch, _ completion: @escaping @Sendable (ApusError?) -> Void) {
        guard let handler = handler(of: EntityReminded.method)?.typed as? TypedHandler<EntityReminded>,
            case .deferred(let body) = handler.run
        else { return completion(ApusError(.methodUnknown, "this kind of entity takes no reminders")) }
        switch admit(reminder.entity.key, reminder.entity.shard, epoch) {
        case .moved: completion(ApusError(.moved))
        case .overloaded: completion(ApusError(.overloaded))
        case .admitted(let activation):
            var call = EntityCall()
            call.request = reminder.id
            activation.executor.later { [call] in
                body(activation.actor, EntityReminded(reminder), call) { result in
                    _ = self.finish(activation)
                    if case .failure(let error) = result { completion(error) } else { completion(nil) }
                }
            }
        }
    }

    private func removeIfIdle(_ activation: Activation) {
        let isRemoved = state.withLock { state in
            guard activation.isLeaving.load(ordering: .relaxed), activation.isIdle else { return false }
            return state.remove(activation)
        }
        if isRemoved { release([activation]) }
    }

    func sweep() {
        guard options.passivateAfter != nil else { return }
        let sweep = state.withLock { state in
            state.sweep += 1
            return state.sweep
        }
        // One shard at a time, so that no call waits for all of them.
        for index in 0..<ShardID.count {
            let idle = state.withLock { state -> [Activation] in
                guard let activations = state.tables[index]?.activations.values else { return [] }
                let idle = activations.filter { $0.isIdle && $0.lastSweep.load(ordering: .relaxed) + 4 < sweep }
                return idle.filter { state.remove($0) }
            }
            release(idle)
        }
    }

    /// An entity counts as idle after four sweeps.
    var sweepInterval: Duration? { options.passivateAfter.map { $0 / 4 } }

    func routesChanged(_ routes: ShardRoutes) {
        let ended = state.withLock { state -> [Table] in
            let changed = routes.changes(since: state.routes)
            state.routes = routes
            var ended: [Table] = []
            for shard in changed {
                let index = Int(shard.rawValue)
                if let table = state.tables[index], !routes.isLocal(shard, epoch: table.tenure.epoch) {
                    table.tenure.end()
                    state.tables[index] = nil
                    state.activationCount -= table.activations.count
                    ended.append(table)
                }
                if !state.heldShards.isEmpty, !routes.isLocal(shard) { state.heldShards.remove(shard) }
            }
            return ended
        }
        if !ended.isEmpty {
            budget.giveBack(ended.reduce(0) { $0 + $1.activations.count })
            // Not in this call: a shard may have a hundred thousand entities, and the caller applies a map.
            budget.runLater {
                for table in ended { await self.deactivate(table.activations.values.map(\.actor)) }
            }
        }
    }

    /// Releases entities that were removed, one at a time.
    private func release(_ activations: [Activation]) {
        guard !activations.isEmpty else { return }
        for activation in activations { activation.release() }
        budget.giveBack(activations.count)
        guard options.deactivated != nil else { return }
        budget.runLater { await self.deactivate(activations.map(\.actor)) }
    }

    private func deactivate(_ actors: [any Actor]) async {
        guard let deactivated = options.deactivated else { return }
        for actor in actors { await deactivated(actor) }
    }

    // MARK: Hand-over

    func hold(_ shard: ShardID) { state.withLock { _ = $0.heldShards.insert(shard) } }

    func release(_ shard: ShardID) { state.withLock { _ = $0.heldShards.remove(shard) } }

    /// True if no message to the shard's entities is handled.
    func isQuiet(_ shard: ShardID) -> Bool {
        let activations = state.withLock { $0.tables[Int(shard.rawValue)]?.activations ?? [:] }
        return activations.values.allSatisfy(\.isIdle)
    }
}

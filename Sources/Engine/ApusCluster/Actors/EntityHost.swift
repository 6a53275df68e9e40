import ApusCore
import ApusTransport
import ApusWire
import NIOCore
import Synchronization

/// A live entity. Counters are atomics: a message's end needs no lock.
final class EntityActivation<Entity: Actor>: Sendable {
    let actor: Entity
    let shard: ShardID
    let epoch: Epoch
    let runningCount = Atomic<Int>(0)
    /// False from the moment that the entity was let go; what it answers after that counts for nothing.
    let isActive = Atomic<Bool>(true)
    let isLeaving = Atomic<Bool>(false)
    let lastSweep = Atomic<UInt64>(0)

    init(actor: Entity, shard: ShardID, epoch: Epoch) {
        self.actor = actor
        self.shard = shard
        self.epoch = epoch
    }
}

/// All entities of one kind on this node.
///
/// Concurrency model: the shards' epochs and the activations stand behind one `Mutex`, so that an
/// entity is only ever made under the epoch under which its message was let in, and is gone when its
/// shard is. The lock is held for look-ups and for making an actor, never for a handler.
final class EntityHost<Entity: Actor>: AnyEntityHost {
    typealias Activation = EntityActivation<Entity>

    private struct State {
        var routes: ShardRoutes
        var heldShards: Set<ShardID> = []
        var activations: [String: Activation] = [:]
        var seeds: [String: EntitySeed] = [:]
        var sweep: UInt64 = 0
    }

    enum Admission {
        case admitted(Activation)
        /// The shard is not here under this epoch, or is being handed over.
        case moved
        case overloaded
    }

    /// Seeds that wait for their shard; a hand-over of more is refused.
    private static var seedCountMax: Int { 65_536 }

    let kind: EntityKind
    let handlers: [UInt16: EntityHandler<Entity>]
    let options: EntityOptions<Entity>
    private let budget: EntityBudget
    private let state: Mutex<State>

    init(
        kind: EntityKind, options: EntityOptions<Entity>, handlers: EntityHandlers<Entity>, routes: ShardRoutes,
        budget: EntityBudget
    ) {
        self.kind = kind
        self.options = options
        self.handlers = handlers.byMethod
        self.budget = budget
        state = Mutex(State(routes: routes))
    }

    // MARK: Messages

    func received(_ request: InboundRequest, header: EntityHeader, payload: ByteBuffer) -> OnReceived {
        guard let handler = handlers[request.method] else { return .methodUnknown }
        switch admit(header.key, header.shard, header.epoch) {
        case .moved: return .moved
        case .overloaded: return .overloaded
        case .admitted(let activation):
            request.run {
                let outcome = await handler.invoke(activation.actor, payload)
                return self.finish(activation, key: header.key) ? outcome : .failure(CallFailure(ApusError(.moved)))
            }
            return .handled
        }
    }

    /// Lets a message in and counts it; the entity is made where it does not exist.
    func admit(_ key: String, _ shard: ShardID, _ epoch: Epoch) -> Admission {
        state.withLock { state in
            guard state.routes.isLocal(shard, epoch: epoch), !state.heldShards.contains(shard) else { return .moved }
            let activation: Activation
            if let existing = state.activations[key] {
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
    /// - Returns: false where the entity was let go meanwhile, because its shard left.
    func finish(_ activation: Activation, key: String) -> Bool {
        let running = activation.runningCount.subtract(1, ordering: .acquiringAndReleasing).newValue
        if running == 0, activation.isLeaving.load(ordering: .relaxed) { removeIfIdle(key, activation) }
        return activation.isActive.load(ordering: .acquiring)
    }

    private func makeActivation(_ key: String, _ shard: ShardID, _ epoch: Epoch, _ state: inout State) -> Activation {
        let seed = state.seeds.removeValue(forKey: key)
        let context = EntityContext(
            address: EntityAddress(kind: kind, key: key, shard: shard), epoch: epoch,
            state: seed?.successorEpoch == epoch ? seed?.state : nil)
        let activation = Activation(actor: options.make(context), shard: shard, epoch: epoch)
        state.activations[key] = activation
        return activation
    }

    // MARK: Life

    var activationCount: Int { state.withLock { $0.activations.count } }

    /// The entity wants to be let go. Honoured where no other message is under way, and none comes
    /// before the one that asks has ended.
    func passivate(_ key: String) {
        let activation = state.withLock { $0.activations[key] }
        guard let activation else { return }
        let running = activation.runningCount.load(ordering: .acquiring)
        guard running <= 1 else { return }
        activation.isLeaving.store(true, ordering: .relaxed)
        if running == 0 { removeIfIdle(key, activation) }
    }

    private func removeIfIdle(_ key: String, _ activation: Activation) {
        let isRemoved = state.withLock { state in
            guard state.activations[key] === activation, activation.isLeaving.load(ordering: .relaxed),
                activation.runningCount.load(ordering: .acquiring) == 0
            else { return false }
            state.activations[key] = nil
            return true
        }
        if isRemoved { letGo([activation]) }
    }

    func sweep() {
        guard options.passivateAfter != nil else { return }
        let idle = state.withLock { state -> [Activation] in
            state.sweep += 1
            let idle = state.activations.filter { _, activation in
                activation.runningCount.load(ordering: .acquiring) == 0
                    && activation.lastSweep.load(ordering: .relaxed) + 4 < state.sweep
            }
            for key in idle.keys { state.activations[key] = nil }
            return Array(idle.values)
        }
        letGo(idle)
    }

    /// Four sweeps pass before an entity counts as idle.
    var sweepInterval: Duration? { options.passivateAfter.map { $0 / 4 } }

    func routesChanged(_ routes: ShardRoutes) {
        let (gone, seeded) = state.withLock { state -> ([Activation], Bool) in
            state.routes = routes
            let gone = state.activations.filter { !routes.isLocal($0.value.shard, epoch: $0.value.epoch) }
            for key in gone.keys { state.activations[key] = nil }
            state.heldShards = state.heldShards.filter { routes.isLocal($0) }
            state.seeds = state.seeds.filter { $0.value.successorEpoch >= routes.epoch(of: $0.value.shard) }
            return (Array(gone.values), !state.seeds.isEmpty)
        }
        letGo(gone)
        if seeded { activateSeeds() }
    }

    private func letGo(_ activations: [Activation]) {
        for activation in activations {
            activation.isActive.store(false, ordering: .releasing)
            budget.giveBack()
            guard let deactivated = options.deactivated else { continue }
            budget.runLater { await deactivated(activation.actor) }
        }
    }

    // MARK: Hand-over

    func hold(_ shard: ShardID) { state.withLock { _ = $0.heldShards.insert(shard) } }

    func release(_ shard: ShardID) { state.withLock { _ = $0.heldShards.remove(shard) } }

    func isQuiet(_ shard: ShardID) -> Bool {
        state.withLock { state in
            state.activations.values.allSatisfy {
                $0.shard != shard || $0.runningCount.load(ordering: .acquiring) == 0
            }
        }
    }

    func capture(_ shard: ShardID) async -> [(key: String, state: ByteBuffer)] {
        guard let capture = options.capture else { return [] }
        let activations = state.withLock { $0.activations.filter { $0.value.shard == shard } }
        var captured: [(String, ByteBuffer)] = []
        for (key, activation) in activations.sorted(by: { $0.key < $1.key }) {
            if let state = await capture(activation.actor) { captured.append((key, state)) }
        }
        return captured
    }

    func seed(_ key: String, _ seed: EntitySeed) -> Bool {
        state.withLock { state in
            guard state.seeds.count < Self.seedCountMax, state.routes.epoch(of: seed.shard) < seed.successorEpoch else {
                return false
            }
            state.seeds[key] = seed
            return true
        }
    }

    /// Entities that came with a state live on at once, not only with their next message.
    private func activateSeeds() {
        state.withLock { state in
            let ready = state.seeds.filter { state.routes.isLocal($0.value.shard, epoch: $0.value.successorEpoch) }
            for (key, seed) in ready.sorted(by: { $0.key < $1.key }) where state.activations[key] == nil {
                guard budget.take() else { return }
                _ = makeActivation(key, seed.shard, seed.successorEpoch, &state)
            }
        }
    }
}

package import ApusCore
import ApusTracing
package import ApusTransport
import ApusWire
package import Logging
import NIOCore
import Synchronization

/// The route of a call.
enum CallRoute: Sendable {
    case local(Epoch)
    /// With the owner's slot in the map.
    case remote(PeerRoute, slot: Int, Epoch)
    /// The shard has no owner, or there is no link to it.
    case nowhere
}

/// The entities of this node. They are plain actors, created when their first message arrives, under the epoch of their
/// shard. They are released when they are idle or their shard leaves (D1, D5).
///
/// A message is refused before it is decoded if its kind or method is unknown (10004), or its shard is not at this node
/// under its epoch (10009, with the owner and epoch in this node's map). Handlers start in the order of arrival. The
/// order per sender and receiver holds up to the handler's first hop to its actor, which is a queue. A handler that
/// does not suspend runs in place, on the thread on which its message arrives (docs/decisions/22).
///
/// Concurrency model: all kinds are registered before the first message; after that the hosts do not change. The routes
/// are replaced as a whole with every map.
package final class EntityRegistry: Sendable {
    /// Limits of the registry.
    package struct Configuration: Sendable {
        /// Active entities on this node. A message that needs one more is refused with 10007. It has no key.
        package var entityCountMax = 200_000
        /// The longest wait between two attempts of a call whose shard is moving.
        package var retryDelayMax = Duration.milliseconds(50)
        package init() {}
    }

    private struct State {
        var hosts: [EntityHost] = []
        /// The same hosts, indexed by kind.
        var hostsByKind = [EntityHost?](repeating: nil, count: 256)
        var routes: ShardRoutes
        /// Routes to the owners, by the map's slots. Cleared with every map, and singly when a route fails.
        var peers: [PeerRoute?] = []
    }

    /// In a structure: a closure that is itself the value of a `Mutex` is wrapped once more at each access, so calls
    /// became slower without end.
    private struct OwnMessages {
        var take: (@Sendable (any NodeMessage) -> Void)?
    }

    let configuration: Configuration
    let transport: Transport
    let view: ClusterView
    let onMoved: @Sendable (ShardID, Epoch) -> Void
    private let logger: Logger
    private let budget: EntityBudget
    private let state: Mutex<State>
    /// Takes messages to this node itself that come from its own entities.
    private let ownMessages = Mutex(OwnMessages())

    /// - Parameter onMoved: called if another node knows a newer epoch of this shard: the map must be refreshed.
    package init(
        configuration: Configuration = Configuration(), view: ClusterView, transport: Transport, logger: Logger,
        onMoved: @escaping @Sendable (ShardID, Epoch) -> Void = { _, _ in }
    ) {
        self.configuration = configuration
        self.view = view
        self.transport = transport
        self.logger = logger
        self.onMoved = onMoved
        budget = EntityBudget(countMax: configuration.entityCountMax)
        state = Mutex(State(routes: ShardRoutes(view.map, local: view.local)))
        view.observe { [weak self] _, map in self?.mapChanged(map) }
        mapChanged(view.map)
    }

    /// Adds a kind of entity. Call before the first message arrives.
    ///
    /// - Precondition: the kind has no host yet.
    package func register<Entity: Actor>(
        _ kind: EntityKind, options: EntityOptions<Entity>, _ build: (inout EntityHandlers<Entity>) -> Void
    ) {
        var handlers = EntityHandlers<Entity>()
        build(&handlers)
        state.withLock { state in
            let index = Int(kind.rawValue)
            precondition(state.hostsByKind[index] == nil, "the entity kind \(kind) is registered twice")
            let host = EntityHost(
                kind: kind, options: options, handlers: handlers, routes: state.routes, budget: budget,
                makeExecutor: { [transport] in transport.makeTurnExecutor() })
            state.hosts.append(host)
            state.hostsByKind[index] = host
        }
    }

    /// As ``register(_:options:_:)`` for entities without further options.
    package func register<Entity: Actor>(
        _ kind: EntityKind, make: @escaping @Sendable (EntityContext) -> Entity, passivateAfter: Duration? = nil,
        _ build: (inout EntityHandlers<Entity>) -> Void
    ) {
        register(kind, options: EntityOptions(make: make, passivateAfter: passivateAfter), build)
    }

    /// The number of active entities of all kinds.
    package var entityCount: Int { hosts.reduce(0) { $0 + $1.activationCount } }

    /// Releases idle entities, and runs the end of released ones, until it is cancelled.
    package func run() async {
        let shortest = hosts.compactMap(\.sweepInterval).min()
        await withDiscardingTaskGroup { group in
            group.addTask { await self.budget.run() }
            guard let shortest else { return }
            group.addTask {
                while (try? await Task.sleep(for: shortest)) != nil {
                    for host in self.hosts { host.sweep() }
                }
            }
        }
    }

    /// The entity has nothing left to do. It is released if no other message waits for it. The entity may call this
    /// itself, in a handler.
    package func passivate(_ address: EntityAddress) { host(address.kind)?.passivate(address.key, address.shard) }

    /// Notes whether an entity is idle: it has nothing left to do. An idle entity is released as soon as it handles no
    /// message. A message that arrives first withdraws this. May be called at any time, in the actor's order.
    ///
    /// - Parameter actor: has no effect if the entity has another one by now.
    package func setIdle(_ isIdle: Bool, _ address: EntityAddress, _ actor: AnyObject) {
        host(address.kind)?.setIdle(isIdle, address.key, address.shard, actor)
    }

    /// Stops the use of one activation of an entity.
    func abandon(_ address: EntityAddress, _ actor: AnyObject) {
        host(address.kind)?.abandon(address.key, address.shard, actor)
    }

    /// True if this node's map names it as the shard's owner under exactly this epoch.
    package func owns(_ shard: ShardID, _ epoch: Epoch) -> Bool {
        state.withLock { $0.routes.isLocal(shard, epoch: epoch) }
    }

    /// Delivers a reminder to its entity if that is on this node. The completion is called once, on any thread: with
    /// nil once the entity has accepted it durably, with 10009 if its shard is not at this node, or with the entity's
    /// error.
    package func remind(_ reminder: Reminder, _ completion: @escaping @Sendable (ApusError?) -> Void) {
        let shard = reminder.entity.shard
        guard case .local(let epoch) = route(shard), let host = host(reminder.entity.kind) else {
            return completion(ApusError(.moved))
        }
        host.remind(reminder, epoch: epoch, completion)
    }

    // MARK: Messages

    /// Gives what takes messages to this node itself that come from its own entities.
    func setOwnMessages(_ take: @escaping @Sendable (any NodeMessage) -> Void) {
        ownMessages.withLock { $0.take = take }
    }

    /// Sends a node a message without an answer. It is lost if there is no link to the node.
    func tell(_ node: NodeName, _ message: some NodeMessage) {
        guard node != view.local.name else {
            ownMessages.withLock { $0.take }?(message)
            return
        }
        try? transport.tell(node, message)
    }

    /// Handles a request of another node with a method of 0x0100 or above. Called on the connection's event loop.
    package func received(_ request: InboundRequest) {
        var payload = request.payload
        let read = RawReader.take(from: &payload) { reader -> (EntityHeader, EntityCall)? in
            guard let header = EntityHeader(from: &reader),
                let call = EntityCall(from: &reader, node: request.peer)
            else { return nil }
            return (header, call)
        }
        guard let (header, call) = read else {
            return request.fail(ApusError(.malformed, "the message has no entity header"))
        }
        guard let host = host(header.kind) else {
            return request.fail(ApusError(.methodUnknown, "the entity kind \(header.kind) is unknown at this node"))
        }
        if let error = refusal(of: call.sender) { return request.fail(error) }
        switch host.received(request, header: header, call: call, payload: payload) {
        case .handled: break
        case .methodUnknown: request.fail(ApusError(.methodUnknown))
        case .overloaded: request.fail(ApusError(.overloaded, "the entity or the node is overloaded"))
        case .moved: refuse(request, header.shard)
        }
    }

    /// The refusal of a message of a former owner: 10013 if a later epoch of the sending entity's shard is known.
    func refusal(of sender: EntityHeader?) -> ApusError? {
        guard let sender else { return nil }
        let isStale = state.withLock { state in sender.isStale { state.routes.epoch(of: $0) } }
        return isStale ? ApusError(.staleEpoch, "another node owns the shard of the sending entity") : nil
    }

    private func refuse(_ request: InboundRequest, _ shard: ShardID) {
        switch route(shard) {
        case .local(let epoch): request.fail(ApusError(.moved), epoch: epoch, owner: view.local.name)
        case .remote(let owner, _, let epoch): request.fail(ApusError(.moved), epoch: epoch, owner: owner)
        case .nobody(let epoch): request.fail(ApusError(.moved), epoch: epoch)
        }
    }

    // MARK: Routes

    func route(_ shard: ShardID) -> ShardRoutes.Route { state.withLock { $0.routes.route(shard) } }

    /// The route of a call to the shard.
    func callRoute(_ shard: ShardID) -> CallRoute {
        let known = state.withLock { state -> CallRoute? in
            let (slot, epoch) = (state.routes.slot(of: shard), state.routes.epoch(of: shard))
            if state.routes.isLocal(shard) { return .local(epoch) }
            guard slot < state.peers.count, let peer = state.peers[slot] else { return nil }
            return .remote(peer, slot: slot, epoch)
        }
        return known ?? findRoute(shard)
    }

    /// Asks the node that owns a shard, over the lane of the shard's entities.
    ///
    /// - Throws: the error of the handler, and as ``Transport/ask(_:method:payload:timeout:)``.
    package func askOwner<M: NodeMessage>(
        of shard: ShardID, _ message: M, timeout: Duration
    ) async throws(ApusError) -> OwnerAnswer<M.Reply> {
        guard case .remote(let peer, let slot, _) = callRoute(shard) else { return .isHere }
        let payload = try message.encoded().buffer
        let sent = peer.request(
            lane: Int(shard.rawValue), method: M.method, byteCount: payload.readableBytes, deadline: .now() + timeout,
            trace: transport.tracer == nil ? nil : TraceContext.current
        ) { $0.writeImmutableBuffer(payload) }
        switch await sent.outcome() {
        case .reply(let reply): return .reply(try M.readReply(reply))
        case .failure(let failure):
            // The peer may have a new link.
            if failure.error.code == .noRoute || failure.error.code == .linkLost { forgetPeer(slot: slot) }
            switch failure.error.code {
            case .linkLost, .noRoute, .moved, .shuttingDown, .methodUnknown: return .isLost
            default: throw failure.error
            }
        }
    }

    private func findRoute(_ shard: ShardID) -> CallRoute {
        switch route(shard) {
        case .local(let epoch): return .local(epoch)
        case .nobody: return .nowhere
        case .remote(let owner, let slot, let epoch):
            guard let found = transport.route(to: owner) else { return .nowhere }
            state.withLock { state in
                // A newer map may have assigned the shard to another node in the meantime.
                guard case .remote(owner, slot, _) = state.routes.route(shard) else { return }
                while state.peers.count <= slot { state.peers.append(nil) }
                state.peers[slot] = found
            }
            return .remote(found, slot: slot, epoch)
        }
    }

    /// The route to this member failed. The next call looks it up again.
    func forgetPeer(slot: Int) {
        state.withLock { if slot < $0.peers.count { $0.peers[slot] = nil } }
    }

    private func mapChanged(_ map: ClusterMap) {
        let routes = ShardRoutes(map, local: view.local)
        let hosts = state.withLock { state -> [EntityHost] in
            guard routes.revision >= state.routes.revision else { return [] }
            state.routes = routes
            state.peers = []
            return state.hosts
        }
        for host in hosts { host.routesChanged(routes) }
    }

    private var hosts: [EntityHost] { state.withLock { $0.hosts } }

    func host(_ kind: EntityKind) -> EntityHost? {
        state.withLock { $0.hostsByKind[Int(kind.rawValue)] }
    }

    // MARK: Hand-over (D5)

    /// How long calls in progress may take before their shard is handed over. Shorter than
    /// ``HandoverStateMachine/Configuration/holdTimeout``.
    package static let quietTimeout = Duration.milliseconds(200)

    /// Holds the shard: calls to its entities wait at their callers from now on.
    package func hold(_ shard: ShardID) { for host in hosts { host.hold(shard) } }

    /// As ``hold(_:)``, and waits until the calls in progress have ended.
    ///
    /// - Throws: 10005 if they do not end within ``quietTimeout``. The shard is still held.
    package func holdUntilQuiet(_ shard: ShardID) async throws(ApusError) {
        hold(shard)
        let deadline = MonotonicTime.now() + Self.quietTimeout
        while !hosts.allSatisfy({ $0.isQuiet(shard) }) {
            guard MonotonicTime.now() < deadline, (try? await Task.sleep(for: .milliseconds(1))) != nil else {
                throw ApusError(.deadlineExceeded, "the calls of a shard that is being handed over did not end")
            }
        }
    }

    /// The hand-over was abandoned. The shard's entities continue at this node.
    package func release(_ shard: ShardID) { for host in hosts { host.release(shard) } }
}

/// The answer of the node that owns a shard.
package enum OwnerAnswer<Reply: Sendable>: Sendable {
    case reply(Reply)
    /// This node is the owner, or there is none.
    case isHere
    /// The owner has gone, or is another one now, or its release does not know the message. It may have carried the
    /// message out.
    case isLost
}

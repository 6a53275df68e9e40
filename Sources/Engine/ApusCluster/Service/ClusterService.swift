package import ApusCore
package import ApusStorage
import ApusTransport
import ApusWire
import CoreMetrics
package import Logging
import NIOCore
import ServiceLifecycle
import Synchronization

/// A node's part in the cluster: it joins, watches its peers, decides on deaths, moves shards, and keeps the node's
/// ``ClusterView`` current (D4, D5).
///
/// ``MembershipStateMachine`` decides on the heartbeat thread. ``OwnershipStateMachine`` and ``HandoverStateMachine``
/// decide on a second dedicated thread. This type carries out their actions. The order of use:
///
/// 1. ``open(_:store:hooks:logger:)`` reads the map and proposes this start's incarnation, ``identity``.
/// 2. The caller starts a ``Transport`` under that identity. It passes the transport's events to
///    ``received(_:)-(TransportEvent)``, and the methods ``ClusterMethod/all`` to ``received(_:)-(InboundRequest)``.
/// 3. ``join(over:addresses:bind:)`` waits until the node may join, opens the heartbeat socket and makes the node a
///    member. The node already listens then.
/// 4. ``run()`` keeps the node in the cluster until the service group stops. Then the node hands over its shards and
///    leaves.
///
/// When another node has declared this incarnation dead, ``ClusterHooks/fenced`` is called. The process must start
/// again, under a new incarnation.
///
/// Concurrency model: the machines and all bookkeeping are confined to ``thread``'s loop. Operations that wait (for the
/// store, peers or hooks) are child tasks of ``run()``: at most one for the store, one that watches it, and two for
/// each shard that moves.
package final class ClusterService: Service {
    struct State: Sendable {
        var ownership: OwnershipStateMachine
        var handover: HandoverStateMachine
        var links: (any ClusterLinks)?
        var waiters: [OwnershipStateMachine.ProposalID: Waiter] = [:]
        var lastProposal: OwnershipStateMachine.ProposalID = 0
        /// The time of the open request for the store's revision; nil if there is none.
        var pollingSince: MonotonicTime?
        var nextPoll: MonotonicTime = .zero
        var nextHandoverTick: MonotonicTime = .zero
        var nextRenewal: MonotonicTime = .zero
        var isRenewing = false
        /// The earliest time of the next proposal of this node's ``WatchRule``.
        var nextRule: MonotonicTime = .zero
        /// The next tick; nil before the service runs and after its end.
        var nextTick: (task: Scheduled<Void>, time: MonotonicTime)?
        var isRunning = false
        /// True from the beginning of ``ClusterService/leave()`` on.
        var isLeaving = false
        /// When the condition that another process has this node's name ends; nil if there is none.
        var duplicateUntil: MonotonicTime?
        /// The helpers of the peers whose paths are cut.
        var helpers: [NodeID: NodeID] = [:]
    }

    /// Receives the result of a proposal.
    enum Waiter: Sendable {
        case caller(CheckedContinuation<OwnershipStateMachine.Outcome, Never>)
        case moves([ShardMove], ShardRole)
        /// The heartbeat thread, which confirms the map under this number.
        case confirmation(UInt64)
    }

    /// Work that waits, done by the tasks of ``run()``.
    enum Job: Sendable {
        case read
        case compareAndSwap(expected: UInt64, ClusterMap)
        case pollRevision
        case renewLease
        case readLeases
        case awaitReplica(ShardMove)
        case hold(ShardMove)
    }

    /// This incarnation of this node.
    package let identity: NodeID
    /// Distinguishes this process from another one that proposes the same incarnation.
    let process = UInt64.random(in: 1...UInt64.max)
    /// The newest map at this node.
    package let view: ClusterView
    let configuration: ClusterConfiguration
    let store: any OwnershipStore
    let hooks: ClusterHooks
    let logger: Logger
    let metrics = ClusterMetrics()
    let thread = DedicatedLoop()
    let state: NIOLoopBoundBox<State>
    let heartbeats = Mutex<HeartbeatThread<MembershipDriver>?>(nil)
    let seal: Mutex<HeartbeatSeal>
    let jobs: WorkQueue<Job>

    /// Reads the map and proposes an incarnation for this start.
    ///
    /// - Throws: The store's errors, 10011 for the map of another cluster, 10022 for a key that is too short.
    package static func open(
        _ configuration: ClusterConfiguration, store: any OwnershipStore, hooks: ClusterHooks, logger: Logger
    ) async throws(ApusError) -> ClusterService {
        let seal = try HeartbeatSeal(keys: configuration.keys)
        let map = try await readMap(store, cluster: configuration.cluster)
        return ClusterService(configuration, map: map, store: store, hooks: hooks, seal: seal, logger: logger)
    }

    private init(
        _ configuration: ClusterConfiguration, map: ClusterMap, store: any OwnershipStore, hooks: ClusterHooks,
        seal: HeartbeatSeal, logger: Logger
    ) {
        self.configuration = configuration
        self.store = store
        self.hooks = hooks
        self.seal = Mutex(seal)
        identity = map.nextIncarnation(of: configuration.node)
        view = ClusterView(local: identity, map: map)
        var logger = logger
        logger[metadataKey: LogKey.node] = "\(identity)"
        self.logger = logger
        let state = State(
            ownership: OwnershipStateMachine(map: map, configuration: configuration.ownership),
            handover: HandoverStateMachine(local: identity, configuration: configuration.handover))
        self.state = .makeBoxSendingValue(state, eventLoop: thread.loop)
        // One job of the store, one poll, and per shard at most one wait that was abandoned and one that was not.
        let bound = 16 + 4 * configuration.handover.movingCountMax * HandoverStateMachine.unusedFactor
        jobs = WorkQueue(countMax: bound)
    }

    static func readMap(_ store: any OwnershipStore, cluster: ClusterID) async throws(ApusError) -> ClusterMap {
        guard let value = try await store.read() else { return ClusterMap(cluster: cluster) }
        return try ClusterMap(decoding: value.bytes, revision: value.revision, cluster: cluster)
    }

    // MARK: Joining

    /// Opens the heartbeat socket at the transport's port number, and makes this node a member.
    ///
    /// - Parameters:
    ///   - addresses: The node's addresses for others. Their listeners are open already.
    ///   - bind: The address of the heartbeat socket; by default the transport's address for others.
    /// - Throws: 10019 if the heartbeats' port is in use, 10025 if another process took this incarnation: start again;
    ///   10012 if the store cannot be changed; 10007 if the map has no slot for another name.
    package func join(
        over links: any ClusterLinks, addresses: NodeAddresses, bind: HostPort? = nil
    ) async throws(ApusError) {
        try await awaitMember(over: links, address: addresses.transport)
        try await startHeartbeats(at: bind ?? addresses.transport)
        hooks.joining(process)
        let decision = OwnershipDecision.join(
            identity, addresses: addresses, weight: configuration.weight,
            watchRule: configuration.membership.watchRule, process: process)
        let map = view.map
        var machine = OwnershipStateMachine(map: map, configuration: configuration.ownership)
        machine.wallMilliseconds = UInt64(clamping: view.clock.wallMilliseconds())
        var actions = machine.handle(.propose(0, decision), now: .now())
        while true {
            // The machine has one open request to the store at a time, and completes in the end.
            var request: OwnershipStateMachine.Action?
            for action in actions {
                switch action {
                case .read, .compareAndSwap: request = action
                case .settled(_, .failed(let error)): throw error
                case .settled(_, .decided(let map)):
                    logger.notice(
                        "This node joined the cluster",
                        metadata: [LogKey.cluster: "\(map.cluster)", LogKey.revision: "\(map.revision)"])
                    // From now on another process of this name finds that this one is alive.
                    try? await store.renewLease(of: identity, for: configuration.leaseDuration)
                    return await joined(machine, map: map, links: links)
                case .adopt, .announce, .fenced, .storeChanged, .readLeases, .standingChanged: break
                }
            }
            guard let request else {
                try? await Task.sleep(for: configuration.ownership.retryDelay)
                if Task.isCancelled { throw ApusError(.cancelled) }
                actions = machine.handle(.tick, now: .now())
                continue
            }
            let answer = await perform(request)
            actions = machine.handle(answer, now: .now())
        }
    }

    private func startHeartbeats(at address: HostPort) async throws(ApusError) {
        let machine = MembershipStateMachine(
            local: identity, configuration: configuration.membership, host: LocalProcess.current().host)
        view.permission.begin(refusalDelay: configuration.membership.refusalDelay, now: .now())
        let driver = MembershipDriver(machine: machine, permission: view.permission) { [weak self] finding in
            self?.found(finding)
        }
        let heartbeats = try HeartbeatThread(
            configuration: HeartbeatConfiguration(bind: address), identity: identity,
            cluster: configuration.cluster, seal: seal.withLock { $0 }, driver: driver, condition: hooks.condition,
            logger: logger)
        do {
            _ = try await heartbeats.start()
        } catch {
            await heartbeats.stop()
            throw error
        }
        self.heartbeats.withLock { $0 = heartbeats }
    }

    private func joined(_ machine: OwnershipStateMachine, map: ClusterMap, links: any ClusterLinks) async {
        // The loop runs until `run()` ends, which is later.
        try? await thread.loop.submit {
            self.state.value.ownership = machine
            self.state.value.links = links
            self.adopted(map)
            self.announce(revision: map.revision)
        }.get()
    }

    /// Carries out a request to the store. The answer is the machine's next input.
    func perform(_ request: OwnershipStateMachine.Action) async -> OwnershipStateMachine.Input {
        do throws(ApusError) {
            switch request {
            case .read:
                return .read(try await Self.readMap(store, cluster: configuration.cluster))
            case .compareAndSwap(let expected, let map):
                if let revision = try await store.compareAndSwap(expected: expected, value: map.encoded()) {
                    return .swapWon(revision: revision)
                }
                metrics.swapsLost.increment()
                return .swapLost
            case .adopt, .announce, .settled, .storeChanged, .fenced, .readLeases, .standingChanged:
                return .tick
            }
        } catch {
            metrics.storeFailures.increment()
            logger.debug("The ownership store failed", metadata: Logger.facts(of: error))
            return .storeFailed(error)
        }
    }

    // MARK: Running

    /// Keeps the node in the cluster until the task is cancelled or the service group stops gracefully. On a graceful
    /// stop, with ``ClusterConfiguration/leavesOnShutdown``, it first hands over its shards and leaves. The service
    /// cannot be run again.
    package func run() async throws {
        thread.loop.execute { self.tick() }
        await withTaskExecutorPreference(thread.executor) {
            await withDiscardingTaskGroup { group in
                thread.loop.execute { self.state.value.isRunning = true }
                group.addTask {
                    // Cancelled: the group ends without leaving, as after a crash.
                    guard (try? await gracefulShutdown()) != nil else { return self.jobs.finish() }
                    if self.configuration.leavesOnShutdown { await self.leave() }
                    self.jobs.finish()
                }
                group.addTask { await self.watchStore() }
                await jobs.run(whenFinished: .cancels) { await self.run($0) }
                group.cancelAll()
            }
        }
        await stop()
    }

    private func stop() async {
        let waiters = try? await thread.loop.submit { () -> [Waiter] in
            self.state.value.isRunning = false
            self.stopTicking()
            defer { self.state.value.waiters = [:] }
            return Array(self.state.value.waiters.values)
        }.get()
        for case .caller(let continuation) in waiters ?? [] {
            continuation.resume(returning: .failed(ApusError(.shuttingDown)))
        }
        let heartbeats = heartbeats.withLock { heartbeats in
            defer { heartbeats = nil }
            return heartbeats
        }
        await heartbeats?.stop()
    }

    /// Makes a decision about the map. Returns when the map includes it.
    ///
    /// - Throws: 10017 if the service does not run, 21025 for the end of a drain while this node leaves, and the errors
    ///   of ``OwnershipStateMachine``.
    @discardableResult
    package func propose(_ decision: OwnershipDecision) async throws(ApusError) -> ClusterMap {
        let outcome = await withCheckedContinuation {
            (continuation: CheckedContinuation<OwnershipStateMachine.Outcome, Never>) in
            thread.loop.execute {
                guard self.state.value.isRunning else {
                    return continuation.resume(returning: .failed(ApusError(.shuttingDown)))
                }
                // The node's own drain, which follows, would otherwise be ended by this.
                if case .undrain = decision, self.state.value.isLeaving {
                    let reason = "the node stops; it gets shards again when it is started"
                    return continuation.resume(returning: .failed(ApusError(.unavailable, reason)))
                }
                self.propose(decision, waiter: .caller(continuation))
            }
        }
        switch outcome {
        case .decided(let map): return map
        case .failed(let error): throw error
        }
    }
}

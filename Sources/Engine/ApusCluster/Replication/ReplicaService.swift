package import ApusCore
package import ApusTransport
import ApusWire
import CoreMetrics
package import Logging
package import NIOCore
import Synchronization

/// Replicates the changes of this node's shards to their standbys, and holds this node's copies of others' shards
/// (D18).
///
/// **Use by an entity runtime.** A key is an entity's kind and key. A state is everything that outlives the entity's
/// activation, including its stored answers, so an answer is never separated from its change.
/// - *A shard is gained* with a map that names this node its owner: call ``promote(_:epoch:)`` once, before anything of
///   the shard is served. It reports whether acknowledged changes may be missing; the runtime logs that and continues
///   with the states that exist. From then on the states are read here: ``state(of:in:epoch:)`` when an entity is
///   activated, ``page(of:epoch:from:countMax:)`` for those that must run without a message.
/// - *A change*: when a handler ends, call ``change(_:epoch:_:_:then:)`` in the order of the changes, on the entity's
///   thread. Send the handler's answer from the completion. A refusal (10002, 10007) undoes the handler's work: the
///   activation is dropped and created again from the state that is here. After 10013 the shard is no longer at this
///   node: drop all its activations. After 10005 the outcome is unknown. The caller receives the error; a repetition
///   with the same request id finds the answer if the change was made.
/// - *Removal*: a change to nil. A passivated entity is not removed: its state stays here.
/// - *A planned hand-over*: ``setCandidate(_:_:)``; ``caughtUp(_:epoch:_:within:)``; the map names the candidate
///   standby; the shard's entities are held; ``finish(_:epoch:to:)``; the map names it owner. To abandon the move, call
///   ``setCandidate(_:_:)`` with nil, but only when it is certain that the map does not name the candidate.
/// - *A shard is lost*, by a planned move or because this node was declared dead: the map closes it here. Waiting
///   callers receive 10013. The states remain as a copy if the map names this node its standby. The runtime drops its
///   activations.
///
/// **Messages.** Everything for one node is sent in one message for each control lane, as a tell. A shard's changes
/// therefore use the lane, and the event loop, of its calls. At the limit of messages in flight, changes gather.
/// Answers are tells too. What is lost with a link is sent again, after ``ReplicaConfiguration/resendAfter`` or when
/// the link is up again.
///
/// **Deaths.** If a standby is silent, callers wait until the map names another one and its copy is complete. No caller
/// waits longer than ``ReplicaConfiguration/confirmTimeout``. The number of waiting changes is limited; a further one
/// is refused with 10007.
///
/// **Alone.** If the map names no standby (one node, or no other is up), a change is confirmed at once, and this node's
/// death loses it: "replicated" then means no more than that the change is in this process. A counter and a gauge show
/// it, and ``isAlone(_:)`` reports it for a shard. State that must survive this belongs in a record.
///
/// **Partitions.** With fewer than four nodes, an owner and its standby that are cut off together confirm each other's
/// changes until they see the map that declares them dead. What they acknowledge in the meantime is lost. The owner
/// that the other nodes name had no copy, so its promotion reports that changes may be missing. From four nodes on the
/// second standby must confirm too, and becomes the owner.
///
/// Concurrency model: any thread. One `Mutex` guards the machines and the waiting callers. It is held for one event of
/// a machine. Messages are encoded and sent outside of it, by one thread at a time, in the order of their batches.
/// Completions are called outside of it too, on the thread on which the event arrived. They must not block.
package final class ReplicaService: Sendable {
    /// Called once with the result of a wait; nil if the change is confirmed. Errors: 10013 if the shard was lost or
    /// another node has seen a later epoch; 10005 if no confirmation came in time; 10017 after ``stop()``. After an
    /// error the change may or may not survive.
    package typealias Completion = @Sendable (ApusError?) -> Void

    /// The states with which a shard's new owner starts.
    package struct Promotion: Sendable, Equatable {
        /// The number of entities with a state.
        package var entityCount: Int
        /// True if no acknowledged change is missing. False if this node had no complete copy under the epoch before:
        /// then changes may be missing.
        package var isComplete: Bool
    }

    private struct State {
        var owner: ReplicaOwnerStateMachine
        var standby: ReplicaStandbyStateMachine
        var links: (any ClusterLinks)?
        /// By shard.
        var waiters: [ReplicaWaiters<Completion>]
        var waiterCount = 0
        /// Callers that wait for a target to catch up; a few, one for each move.
        var catchUps: [ReplicaCatchUp<Completion>] = []
        var nextExpiry = MonotonicTime.zero
        /// Answers that could not be sent yet.
        var unsent: [(peer: NodeName, lane: Int, answers: ByteBuffer)] = []
        var isPumping = false
        var isTickScheduled = false
        var isStopped = false
        /// The counts that the metrics show.
        var shown = ReplicaOwnerStateMachine.Counts()
        var shownOverloaded: UInt64 = 0
        var shownStray: UInt64 = 0
        /// The gauges that need a scan of all shards are updated with the next tick at or after this time.
        var isSurveyWanted = true
        var nextSurvey = MonotonicTime.zero

        /// False if another thread is sending. It checks again before it ends.
        mutating func beginPumping() -> Bool {
            defer { isPumping = true }
            return !isPumping
        }

        var isTickWanted: Bool {
            owner.isWaitingForTime || waiterCount > 0 || !catchUps.isEmpty || !unsent.isEmpty || isSurveyWanted
                || owner.counts != shown
        }
    }

    /// The calls to make after the lock is released.
    private struct Calls: Sendable {
        var completions: [(completion: Completion, error: ApusError?)] = []
        var superseded: [(shard: ShardID, epoch: Epoch)] = []
    }

    /// The rounds of sending that a thread makes before it leaves the rest to the event loop.
    private static let roundsMax = 64
    private static let tickInterval = TimeAmount.milliseconds(10)
    private static let expiryInterval = Duration.milliseconds(100)
    private static let surveyInterval = Duration.seconds(1)
    /// Answers that wait for a link. A further one is dropped, and its message comes again.
    private static let unsentCountMax = 256

    package let configuration: ReplicaConfiguration
    private let view: ClusterView
    private let loop: any EventLoop
    private let onMoved: @Sendable (ShardID, Epoch) -> Void
    private let logger: Logger
    private let metrics = ReplicaMetrics()
    private let state: Mutex<State>

    /// - Parameters:
    ///   - loop: runs the timer.
    ///   - onMoved: called if another node knows a newer epoch of this shard: the map must be refreshed.
    package init(
        configuration: ReplicaConfiguration = ReplicaConfiguration(), view: ClusterView, loop: any EventLoop,
        logger: Logger, onMoved: @escaping @Sendable (ShardID, Epoch) -> Void = { _, _ in }
    ) {
        self.configuration = configuration
        self.view = view
        self.loop = loop
        self.logger = logger
        self.onMoved = onMoved
        let map = view.map
        state = Mutex(
            State(
                owner: ReplicaOwnerStateMachine(local: view.local, map: map, configuration: configuration),
                standby: ReplicaStandbyStateMachine(local: view.local, map: map, configuration: configuration),
                waiters: Array(repeating: ReplicaWaiters(), count: ShardID.count)))
        view.observe { [weak self] _, map in self?.mapChanged(map) }
        mapChanged(view.map)
    }

    /// Sets the links, which are created after this service. Nothing is sent before.
    package func connect(_ links: any ClusterLinks) {
        state.withLock { $0.links = links }
        pump()
    }

    /// Waiting callers receive 10017, and nothing is sent any more.
    package func stop() {
        let calls = state.withLock { state in
            state.isStopped = true
            var calls = Calls()
            for index in state.waiters.indices {
                Self.fail(ShardID(UInt16(index)), ApusError(.shuttingDown), &state, &calls)
            }
            for wait in state.catchUps { calls.completions.append((wait.completion, ApusError(.shuttingDown))) }
            state.catchUps = []
            return calls
        }
        run(calls)
    }

    // MARK: Owner

    /// Takes over a shard that this node owns under the epoch, with the states of its copy. Returns a value once for
    /// each epoch; nil afterwards, and if the newest map names another owner or epoch.
    ///
    /// Call it for every gained shard, even if no entity of it is expected. Until then nothing is sent to the shard's
    /// standby, and its earlier copy does not change.
    package func promote(_ shard: ShardID, epoch: Epoch) -> Promotion? {
        let promotion = perform { state, calls -> Promotion? in
            guard state.owner.canOpen(shard, epoch: epoch),
                let taken = state.standby.promote(shard, epoch: epoch)
            else { return nil }
            let promotion = Promotion(entityCount: taken.table.count, isComplete: taken.isComplete)
            let effects = state.owner.open(shard, epoch: epoch, table: taken.table)
            Self.settle(effects, &state, &calls)
            state.isSurveyWanted = true
            return promotion
        }
        guard let promotion else { return nil }
        metrics.promotions.increment()
        if !promotion.isComplete { metrics.promotionsIncomplete.increment() }
        return promotion
    }

    /// Sets or removes an entity's state. Synchronous. Changes of a shard have the order of these calls.
    ///
    /// - Parameters:
    ///   - state: stored as given, so it must not be a slice of a larger buffer; nil removes the entity.
    ///   - completion: as in ``whenConfirmed(_:_:)``; may be called before this returns.
    /// - Throws: 10013 if the shard is not open here under the epoch, 10002 for a state over
    ///   ``ReplicaConfiguration/stateByteCountMax``, 10007 if another limit is reached. The change is then not made.
    @discardableResult
    package func change(
        _ shard: ShardID, epoch: Epoch, _ key: ReplicaKey, _ state: ByteBuffer?, then completion: Completion? = nil
    ) throws(ApusError) -> ReplicaPosition {
        let record = ReplicaRecord(key, state)
        let result = perform { state, calls -> Result<UInt64, ApusError> in
            guard !state.isStopped else { return .failure(ApusError(.shuttingDown)) }
            var effects = ReplicaOwnerStateMachine.Effects()
            do throws(ApusError) {
                let number = try state.owner.change(shard, epoch: epoch, record, &effects)
                if let completion { self.add(completion, shard, number, &state, &calls) }
                Self.settle(effects, &state, &calls)
                return .success(number)
            } catch {
                return .failure(error)
            }
        }
        return ReplicaPosition(shard: shard, epoch: epoch, number: try result.get())
    }

    /// Calls the completion once every node that must have the change has it. Errors as ``Completion``.
    package func whenConfirmed(_ position: ReplicaPosition, _ completion: @escaping Completion) {
        perform { state, calls in
            guard state.owner.position(of: position.shard, epoch: position.epoch) != nil else {
                return calls.completions.append((completion, ApusError(.staleEpoch)))
            }
            guard !state.isStopped else { return calls.completions.append((completion, ApusError(.shuttingDown))) }
            self.add(completion, position.shard, position.number, &state, &calls)
        }
    }

    /// Returns once every node that must have the change has it.
    ///
    /// - Throws: as ``Completion``. A cancelled task continues to wait.
    package func confirmed(_ position: ReplicaPosition) async throws(ApusError) {
        let error = await withCheckedContinuation { (continuation: CheckedContinuation<ApusError?, Never>) in
            whenConfirmed(position) { continuation.resume(returning: $0) }
        }
        if let error { throw error }
    }

    /// The number of callers that wait for a confirmation, or for a target to catch up.
    package var waitingCallerCount: Int { state.withLock { $0.waiterCount + $0.catchUps.count } }

    /// True if the shard's changes are confirmed without another node, because the map names no standby; false if the
    /// shard is not open here.
    package func isAlone(_ shard: ShardID) -> Bool { state.withLock { $0.owner.isAlone(shard) } }

    /// The number of shards of this node with states whose changes it acknowledges without a standby.
    package var aloneCount: Int { state.withLock { $0.owner.survey().aloneCount } }

    // MARK: States

    /// Those of the shards of which this node has a copy with at least one entity. A copy that is not complete counts.
    package func shardsWithStates(among shards: [ShardID]) -> Set<ShardID> {
        state.withLock { state in Set(shards.filter(state.standby.hasStates)) }
    }

    /// An entity's newest state at this node, the shard's owner, and whether every change in it is confirmed; nil if it
    /// has none.
    ///
    /// - Throws: 10013 if the shard is not open here under the epoch, or another node has seen a later one.
    package func load(
        _ key: ReplicaKey, of shard: ShardID, epoch: Epoch
    ) throws(ApusError) -> (state: ByteBuffer, isConfirmed: Bool)? {
        try state.withLock { state in
            Result { () throws(ApusError) in try state.owner.load(key, of: shard, epoch: epoch) }
        }.get()
    }

    /// The number of a shard's entities with a state, and the bytes of their keys and states; nil if the shard is not
    /// open here.
    package func size(of shard: ShardID) -> (entityCount: Int, byteCount: Int)? {
        state.withLock { $0.owner.size(of: shard) }
    }

    /// Some of a shard's entities with their states, in a stable order, and the cursor of the next page; nil at the
    /// end.
    ///
    /// Entities may change between two pages. An entity that exists throughout is in exactly one page, with its state
    /// at that time.
    ///
    /// - Parameters:
    ///   - cursor: 0 for the first page, then the cursor that the previous page returned.
    ///   - countMax: the most entities in a page. The lock of this service is held while the page is read.
    /// - Throws: 10013 if the shard is not open here under the epoch.
    package func page(
        of shard: ShardID, epoch: Epoch, from cursor: Int = 0, countMax: Int = 256
    ) throws(ApusError) -> (records: [ReplicaRecord], next: Int?) {
        let page = state.withLock { $0.owner.page(of: shard, epoch: epoch, from: cursor, countMax: countMax) }
        guard let page else { throw ApusError(.staleEpoch) }
        return page
    }

    // MARK: Planned moves

    /// Sets or clears the node that is fed beside the standby.
    package func setCandidate(_ shard: ShardID, _ node: NodeID?) {
        perform { state, calls in
            let effects = state.owner.setCandidate(shard, node)
            Self.settle(effects, &state, &calls)
        }
    }

    /// True if the node, standby or candidate, has everything that was acknowledged, and nothing is acknowledged
    /// without it.
    package func isCaughtUp(_ shard: ShardID, _ node: NodeID) -> Bool {
        state.withLock { $0.owner.isCaughtUp(shard, node) }
    }

    /// Returns once the node ``isCaughtUp(_:_:)``.
    ///
    /// - Throws: 10010 if the node is not, or no longer, the shard's standby or candidate; 10013 if the shard is not
    ///   open under the epoch, or was lost; 10005 after the time; 10017 after ``stop()``. A cancelled task continues to
    ///   wait.
    package func caughtUp(
        _ shard: ShardID, epoch: Epoch, _ node: NodeID, within timeout: Duration
    ) async throws(ApusError) {
        let error = await withCheckedContinuation { (continuation: CheckedContinuation<ApusError?, Never>) in
            perform { state, calls in
                let completion: Completion = { continuation.resume(returning: $0) }
                guard !state.isStopped else { return calls.completions.append((completion, ApusError(.shuttingDown))) }
                let deadline = MonotonicTime.now() + timeout
                state.catchUps.append(
                    ReplicaCatchUp(shard: shard, epoch: epoch, node: node, deadline: deadline, completion: completion))
                Self.settleCatchUps(&state, &calls)
            }
        }
        if let error { throw error }
    }

    /// Returns once the node has every change made so far, so that it can become the owner. The caller must ensure that
    /// no further change is made.
    ///
    /// - Throws: as ``caughtUp(_:epoch:_:within:)``, where each of its two waits takes at most
    ///   ``ReplicaConfiguration/confirmTimeout``; 10010 if the node died or is no longer a target.
    package func finish(_ shard: ShardID, epoch: Epoch, to node: NodeID) async throws(ApusError) {
        try await caughtUp(shard, epoch: epoch, node, within: configuration.confirmTimeout)
        let last = state.withLock { $0.owner.position(of: shard, epoch: epoch) }
        guard let last else { throw ApusError(.staleEpoch) }
        try await confirmed(ReplicaPosition(shard: shard, epoch: epoch, number: last))
        let hasAll = state.withLock { state in
            state.owner.isCaughtUp(shard, node) && state.owner[shard]?.isConfirmed(last, by: node) == true
        }
        guard hasAll else { throw Self.notCaughtUp }
    }

    private static var notCaughtUp: ApusError { ApusError(.noRoute, "the node does not have the shard's changes") }

    // MARK: Events from outside

    private func mapChanged(_ map: ClusterMap) {
        perform { state, calls in
            state.standby.mapChanged(map)
            let effects = state.owner.mapChanged(map)
            Self.settle(effects, &state, &calls)
            state.isSurveyWanted = true
        }
    }

    /// Handles an event of the transport.
    package func received(_ event: TransportEvent) {
        guard case .linkUp(let peer, .control) = event else { return }
        perform { state, _ in state.owner.linkChanged(to: peer) }
        sendAnswers()
    }

    /// Handles a tell with one of the methods ``ClusterMethod/replication``. Called on the connection's event loop.
    package func received(_ request: InboundRequest) {
        guard !request.wantsReply else { return request.fail(ApusError(.methodUnknown)) }
        do throws(ApusError) {
            if request.method == ClusterMethod.replicate {
                answer(try ReplicaMessage(decoding: request.payload), from: request.peer)
            } else {
                let answers = try ReplicaAnswers(decoding: request.payload)
                perform { state, calls in
                    let effects = state.owner.answered(answers, by: request.peer, now: .now())
                    Self.settle(effects, &state, &calls)
                }
            }
        } catch {
            metrics.malformed.increment()
            logger.debug(
                "A replication message cannot be read",
                metadata: Logger.facts(of: error).merging([LogKey.peer: "\(request.peer)"]) { $1 })
        }
    }

    private func answer(_ message: ReplicaMessage, from peer: NodeID) {
        typealias Taken = (answers: ReplicaAnswers?, links: (any ClusterLinks)?, ahead: (ShardID, Epoch)?)
        let (answers, links, ahead) = state.withLock { state -> Taken in
            guard !state.isStopped else { return (nil, nil, nil) }
            let answers = state.standby.received(message, from: peer)
            return (answers, state.links, state.standby.takeAhead())
        }
        if let (shard, epoch) = ahead { onMoved(shard, epoch) }
        guard let answers else { return }
        send(answers.encoded(), to: peer.name, lane: lane(of: answers.number), over: links)
    }

    /// With the same number of lanes at both nodes, messages and answers use the same lane.
    private func lane(of messageNumber: UInt64) -> Int { Int(messageNumber % UInt64(configuration.laneCount)) }

    private func send(_ answers: ByteBuffer, to peer: NodeName, lane: Int, over links: (any ClusterLinks)?) {
        do throws(ApusError) {
            guard let links else { throw ApusError(.noRoute) }
            try links.tell(peer, lane: lane, method: ClusterMethod.replicated, payload: answers)
        } catch {
            // The link back may come up later than this one. The answer waits for it.
            state.withLock { if $0.unsent.count < Self.unsentCountMax { $0.unsent.append((peer, lane, answers)) } }
            pump()
        }
    }

    private func sendAnswers() {
        let (unsent, links) = state.withLock { state in
            defer { state.unsent = [] }
            return (state.unsent, state.links)
        }
        for (peer, lane, answers) in unsent where view.map.member(named: peer)?.state.isAlive == true {
            send(answers, to: peer, lane: lane, over: links)
        }
    }

    // MARK: Time

    private func tick() {
        let isStopped = perform { state, calls in
            state.isTickScheduled = false
            let now = MonotonicTime.now()
            state.owner.tick(now: now)
            self.showMeters(&state, now: now)
            guard now >= state.nextExpiry else { return state.isStopped }
            state.nextExpiry = now + Self.expiryInterval
            Self.settleCatchUps(&state, &calls, now: now)
            guard state.waiterCount > 0 else { return state.isStopped }
            for index in state.waiters.indices where !state.waiters[index].isEmpty {
                let expired = state.waiters[index].takeExpired(at: now)
                state.waiterCount -= expired.count
                self.metrics.timedOut.increment(by: Int64(expired.count))
                for completion in expired {
                    calls.completions.append(
                        (completion, ApusError(.deadlineExceeded, "the standby did not confirm a change in time")))
                }
            }
            return state.isStopped
        }
        if !isStopped { sendAnswers() }
    }

    private func showMeters(_ state: inout State, now: MonotonicTime) {
        state.isSurveyWanted = state.isSurveyWanted || state.owner.counts != state.shown
        metrics.add(state.owner.counts, since: state.shown)
        metrics.add(
            overloaded: state.standby.overloadedCount - state.shownOverloaded,
            stray: state.standby.strayCount - state.shownStray)
        state.shown = state.owner.counts
        state.shownOverloaded = state.standby.overloadedCount
        state.shownStray = state.standby.strayCount
        metrics.show(
            waiting: (state.owner.waitingCount, state.owner.waitingByteCount),
            entities: (state.owner.entityCount, state.owner.byteCount),
            copies: (state.standby.entityCount, state.standby.byteCount))
        guard now >= state.nextSurvey else { return }
        state.nextSurvey = now + Self.surveyInterval
        state.isSurveyWanted = false
        metrics.show(state.owner.survey())
    }

    // MARK: Consequences

    /// Runs an event under the lock, then carries out its consequences.
    private func perform<Value: Sendable>(_ event: (inout State, inout Calls) -> Value) -> Value {
        let (value, calls) = state.withLock { state in
            var calls = Calls()
            let value = event(&state, &calls)
            return (value, calls)
        }
        // Other nodes wait for the messages, so they are sent before callers here continue.
        pump()
        // Each caller may make a further change. All of these go into one message for each lane.
        let isGathering = calls.completions.count > 1 && state.withLock { $0.beginPumping() }
        run(calls)
        guard isGathering else { return value }
        state.withLock { $0.isPumping = false }
        pump()
        return value
    }

    private func run(_ calls: Calls) {
        for (completion, error) in calls.completions { completion(error) }
        for (shard, epoch) in calls.superseded { onMoved(shard, epoch) }
    }

    private func add(
        _ completion: @escaping Completion, _ shard: ShardID, _ number: UInt64, _ state: inout State,
        _ calls: inout Calls
    ) {
        if let acknowledged = state.owner.acknowledged(of: shard), number <= acknowledged {
            calls.completions.append((completion, nil))
        } else if state.owner.isSuperseded(shard) {
            calls.completions.append((completion, ApusError(.staleEpoch)))
        } else {
            state.waiters[Int(shard.rawValue)].add(
                completion, for: number, until: .now() + configuration.confirmTimeout)
            state.waiterCount += 1
        }
    }

    private static func settle(
        _ effects: ReplicaOwnerStateMachine.Effects, _ state: inout State, _ calls: inout Calls
    ) {
        for shard in effects.acknowledged {
            guard let acknowledged = state.owner.acknowledged(of: shard) else { continue }
            let done = state.waiters[Int(shard.rawValue)].take(upTo: acknowledged)
            state.waiterCount -= done.count
            for completion in done { calls.completions.append((completion, nil)) }
        }
        for (shard, epoch) in effects.superseded {
            fail(shard, ApusError(.staleEpoch), &state, &calls)
            calls.superseded.append((shard, epoch))
        }
        for closed in effects.closed {
            fail(closed.shard, ApusError(.staleEpoch), &state, &calls)
            state.standby.keep(closed.shard, table: closed.table, ownedUnder: closed.epoch)
        }
        settleCatchUps(&state, &calls)
    }

    /// Completes the callers that wait for a target. Time-outs are checked only if the time is given.
    private static func settleCatchUps(_ state: inout State, _ calls: inout Calls, now: MonotonicTime? = nil) {
        guard !state.catchUps.isEmpty else { return }
        let owner = state.owner
        state.catchUps.removeAll { wait in
            let error: ApusError?
            if owner[wait.shard]?.epoch != wait.epoch {
                error = ApusError(.staleEpoch)
            } else if !owner.isTarget(wait.shard, epoch: wait.epoch, wait.node) {
                error = notCaughtUp
            } else if owner.isCaughtUp(wait.shard, wait.node) {
                error = nil
            } else if let now, wait.deadline <= now {
                error = ApusError(.deadlineExceeded, "the node did not catch up in time")
            } else {
                return false
            }
            calls.completions.append((wait.completion, error))
            return true
        }
    }

    private static func fail(
        _ shard: ShardID, _ error: ApusError, _ state: inout State, _ calls: inout Calls
    ) {
        let failed = state.waiters[Int(shard.rawValue)].takeAll()
        state.waiterCount -= failed.count
        for completion in failed { calls.completions.append((completion, error)) }
    }

    /// Sends what can be sent, unless another thread is sending. That thread checks again before it ends.
    private func pump() {
        let startedAt = MonotonicTime.now()
        var rounds = 0
        while rounds < Self.roundsMax, let (messages, links) = nextMessages(isPumping: rounds > 0, startedAt) {
            rounds += 1
            for (target, message) in messages {
                do throws(ApusError) {
                    try links.tell(
                        target.name, lane: lane(of: message.number), method: ClusterMethod.replicate,
                        payload: message.encoded())
                } catch {
                    state.withLock { $0.owner.failed(message.number, to: target, now: .now()) }
                }
            }
        }
        guard rounds == Self.roundsMax else { return }
        // Other threads add changes all the time. This one has other work.
        state.withLock { $0.isPumping = false }
        loop.execute { [weak self] in self?.pump() }
    }

    private typealias Messages = [(target: NodeID, message: ReplicaMessage)]

    private func nextMessages(
        isPumping: Bool, _ startedAt: MonotonicTime
    ) -> (messages: Messages, links: any ClusterLinks)? {
        let (messages, links, isTickNew) = state.withLock { state -> (Messages, (any ClusterLinks)?, Bool) in
            guard isPumping || !state.isPumping else { return ([], nil, false) }
            let canSend = state.links != nil && !state.isStopped
            let messages = canSend ? state.owner.nextMessages(now: .now(), startedAt: startedAt) : []
            state.isPumping = !messages.isEmpty
            let isTickNew = !state.isTickScheduled && !state.isStopped && state.isTickWanted
            state.isTickScheduled = state.isTickScheduled || isTickNew
            return (messages, state.links, isTickNew)
        }
        if isTickNew { loop.scheduleTask(in: Self.tickInterval) { [weak self] in self?.tick() } }
        guard !messages.isEmpty, let links else { return nil }
        return (messages, links)
    }
}

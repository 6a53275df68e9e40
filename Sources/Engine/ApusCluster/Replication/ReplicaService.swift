package import ApusCore
package import ApusTransport
import ApusWire
import CoreMetrics
package import Logging
package import NIOCore
import Synchronization

/// Replicates the changes of this node's shards to their standbys, and keeps this node's copies of others' shards
/// (D18).
///
/// **How an entity runtime uses it.** A key is an entity's kind and key, a state all that outlives its activation, its
/// request memory included, so that an answer is never remembered apart from what it changed.
/// - *The shard comes*, by any map that names this node its owner: ``promote(_:epoch:)``, once, before anything of it
///   is served. It says whether acknowledged changes may be missing; the runtime logs that, and goes on with what is
///   there. From then on the states are read here: ``state(of:in:epoch:)`` when an entity is activated,
///   ``page(of:epoch:from:countMax:)`` for those that must run without being asked.
/// - *A change*: the handler ends; ``change(_:epoch:_:_:then:)`` in the order of the changes, on the entity's thread;
///   what the handler said leaves with the completion. A refusal (10002, 10007) undoes the handler's work: the
///   activation is dropped and made anew from the state that is here. After 10013 the shard is no longer this node's:
///   every activation of it is dropped. After 10005 nobody knows; the caller is told so, and a repetition with the
///   same request id finds the answer if the change was made.
/// - *Removal*: a change to nil. A passivated entity is not removed: its state stays here.
/// - *A planned hand-over*: ``setCandidate(_:_:)``; ``caughtUp(_:epoch:_:within:)``; the map names the candidate
///   standby; the shard's entities are held; ``finish(_:epoch:to:)``; the map names it owner. If the move is given
///   up: ``setCandidate(_:_:)`` with nil, but not before it is certain that the map does not name the candidate.
/// - *The shard leaves*, planned or after a death that was none: the map closes it here. Who waits is told 10013, and
///   the states stay as a copy where the map names this node its standby. The runtime drops its activations.
///
/// **Messages.** Everything for one node goes in one message for each control lane, a tell, so that a shard's changes
/// have the lane, and the event loop, of its calls; while as many as may be are under way, changes gather. Answers are
/// tells too. What is lost with a link is sent again, after ``ReplicaConfiguration/resendAfter`` or when the link is up
/// again.
///
/// **Deaths.** A standby that is silent makes waiters wait until the map names another one, then the new one's copy
/// is made. No one waits for longer than ``ReplicaConfiguration/confirmTimeout``, and no more changes wait than may:
/// the next is refused with 10007.
///
/// **Alone.** Where the map names no standby (one node, or nobody else is up) a change is confirmed at once, and this
/// node's death loses it: "replicated" says no more then than that the change is in this process. It is counted and
/// shown as a gauge, and ``isAlone(_:)`` says so for a shard. What must survive that is to be recorded.
///
/// **Partitions.** An owner and its standby that are cut off from the rest together confirm each other's changes
/// until they see the map that declares them dead. What they acknowledge meanwhile is lost; the owner that the others
/// name had no copy, so its promotion says that changes may be missing.
///
/// Concurrency model: any thread. The machines and those who wait stand behind one `Mutex`, which is held for one
/// event of a machine. Messages are encoded and sent outside of it, by one thread at a time, so that they leave in the
/// order of their batches. Completions are called outside of it too, on the thread that brought the news; they must
/// not block.
package final class ReplicaService: Sendable {
    /// Told once what became of a wait: nil if the change is confirmed. Errors: 10013 if the shard left or
    /// another node has seen a later epoch; 10005 if no confirmation came in time; 10017 after ``stop()``. After an
    /// error the change may or may not survive.
    package typealias Completion = @Sendable (ApusError?) -> Void

    /// What a shard's new owner begins with.
    package struct Promotion: Sendable, Equatable {
        /// Entities that have a state.
        package var entityCount: Int
        /// No acknowledged change is missing. False if this node had no complete copy under the epoch before: then
        /// some may be.
        package var isComplete: Bool
    }

    private struct CatchUp {
        var shard: ShardID
        var epoch: Epoch
        var node: NodeID
        var deadline: MonotonicTime
        var completion: Completion
    }

    private struct State {
        var owner: ReplicaOwnerStateMachine
        var standby: ReplicaStandbyStateMachine
        var links: (any ClusterLinks)?
        /// By shard.
        var waiters: [ReplicaWaiters<Completion>]
        var waiterCount = 0
        /// Who waits for a target to catch up; a few, one for each move.
        var catchUps: [CatchUp] = []
        var nextExpiry = MonotonicTime.zero
        /// Answers that could not be sent yet.
        var unsent: [(peer: NodeName, lane: Int, answers: ByteBuffer)] = []
        var isPumping = false
        var isTickScheduled = false
        var isStopped = false
        /// What the meters show.
        var shown = ReplicaOwnerStateMachine.Counts()
        var shownOverloaded: UInt64 = 0
        var shownStray: UInt64 = 0
        /// The gauges that need a look at every shard are shown again with the next tick at or after this time.
        var isSurveyWanted = true
        var nextSurvey = MonotonicTime.zero

        var isTickWanted: Bool {
            owner.isWaitingForTime || waiterCount > 0 || !catchUps.isEmpty || !unsent.isEmpty || isSurveyWanted
                || owner.counts != shown
        }
    }

    /// What is to be done after the lock was left.
    private struct Calls: Sendable {
        var completions: [(completion: Completion, error: ApusError?)] = []
        var superseded: [(shard: ShardID, epoch: Epoch)] = []
    }

    private static let tickInterval = TimeAmount.milliseconds(10)
    private static let expiryInterval = Duration.milliseconds(100)
    private static let surveyInterval = Duration.seconds(1)
    /// Answers that wait for a link; one more is left out, and its message comes again.
    private static let unsentCountMax = 256

    package let configuration: ReplicaConfiguration
    private let view: ClusterView
    private let loop: any EventLoop
    private let onMoved: @Sendable (ShardID, Epoch) -> Void
    private let logger: Logger
    private let metrics = ReplicaMetrics()
    private let state: Mutex<State>

    /// - Parameters:
    ///   - loop: where what waits for time is looked at.
    ///   - onMoved: another node knows a newer epoch of this shard: refresh the map.
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

    /// Gives the links, which are made after this; nothing is sent before.
    package func connect(_ links: any ClusterLinks) {
        state.withLock { $0.links = links }
        pump()
    }

    /// Those who wait are told 10017, and nothing is sent any more.
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

    /// Takes over a shard that this node owns under the epoch, with the states of its copy; once for each epoch, nil
    /// afterwards and where the newest map says otherwise.
    ///
    /// To be called for every shard that comes to this node, also if no entity of it is expected: until then nothing
    /// is sent to the shard's standby, whose copy of before stays what it is.
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

    /// An entity has a new state, or is removed. Synchronous; changes of a shard have the order of these calls.
    ///
    /// - Parameters:
    ///   - state: kept as it is given, so not a slice of something larger; nil removes the entity.
    ///   - completion: as with ``whenConfirmed(_:_:)``; may be called before this returns.
    /// - Throws: 10013 if the shard is not open here under the epoch, 10002 for a state over
    ///   ``ReplicaConfiguration/stateByteCountMax``, 10007 over another bound. Then the change is not made.
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

    /// Calls back once every node has the change that must have it. Errors as ``Completion``.
    package func whenConfirmed(_ position: ReplicaPosition, _ completion: @escaping Completion) {
        perform { state, calls in
            guard state.owner.position(of: position.shard, epoch: position.epoch) != nil else {
                return calls.completions.append((completion, ApusError(.staleEpoch)))
            }
            guard !state.isStopped else { return calls.completions.append((completion, ApusError(.shuttingDown))) }
            self.add(completion, position.shard, position.number, &state, &calls)
        }
    }

    /// Returns once every node has the change that must have it.
    ///
    /// - Throws: as ``Completion``. A cancelled task waits on.
    package func confirmed(_ position: ReplicaPosition) async throws(ApusError) {
        let error = await withCheckedContinuation { (continuation: CheckedContinuation<ApusError?, Never>) in
            whenConfirmed(position) { continuation.resume(returning: $0) }
        }
        if let error { throw error }
    }

    /// Callers that wait for a confirmation, or for a target to catch up.
    package var waitingCallerCount: Int { state.withLock { $0.waiterCount + $0.catchUps.count } }

    /// Changes of the shard are confirmed without any other node, since the map names no standby; false if the
    /// shard is not open here.
    package func isAlone(_ shard: ShardID) -> Bool { state.withLock { $0.owner.isAlone(shard) } }

    // MARK: States

    /// An entity's newest state at this node, the shard's owner, and whether every change in it is confirmed; nil if
    /// it has none.
    ///
    /// - Throws: 10013 if the shard is not open here under the epoch, or another node has seen a later.
    package func load(
        _ key: ReplicaKey, of shard: ShardID, epoch: Epoch
    ) throws(ApusError) -> (state: ByteBuffer, isConfirmed: Bool)? {
        try state.withLock { state in
            Result { () throws(ApusError) in try state.owner.load(key, of: shard, epoch: epoch) }
        }.get()
    }

    /// Entities of a shard that have a state, and the bytes of their keys and states; nil if it is not open here.
    package func size(of shard: ShardID) -> (entityCount: Int, byteCount: Int)? {
        state.withLock { $0.owner.size(of: shard) }
    }

    /// Some of a shard's entities with their states, in an order that lasts, and where to go on; nil at the end.
    ///
    /// Between two pages entities may change: one that exists all the while is in exactly one page, as it is then.
    ///
    /// - Parameters:
    ///   - cursor: 0 for the first page, then what the page before said.
    ///   - countMax: the most that a page holds; the lock of this service is held for so long.
    /// - Throws: 10013 if the shard is not open here under the epoch.
    package func page(
        of shard: ShardID, epoch: Epoch, from cursor: Int = 0, countMax: Int = 256
    ) throws(ApusError) -> (records: [ReplicaRecord], next: Int?) {
        let page = state.withLock { $0.owner.page(of: shard, epoch: epoch, from: cursor, countMax: countMax) }
        guard let page else { throw ApusError(.staleEpoch) }
        return page
    }

    // MARK: Planned moves

    /// The node is to be fed beside the standby, or none is any more.
    package func setCandidate(_ shard: ShardID, _ node: NodeID?) {
        perform { state, calls in
            let effects = state.owner.setCandidate(shard, node)
            Self.settle(effects, &state, &calls)
        }
    }

    /// The node, standby or candidate, has everything that was acknowledged, and nothing is acknowledged without it.
    package func isCaughtUp(_ shard: ShardID, _ node: NodeID) -> Bool {
        state.withLock { $0.owner.isCaughtUp(shard, node) }
    }

    /// Returns once the node ``isCaughtUp(_:_:)``.
    ///
    /// - Throws: 10010 if the node is not the shard's standby or candidate, or is none any more; 10013 if the
    ///   shard is not open under the epoch, or left; 10005 after the time; 10017 after ``stop()``. A cancelled task
    ///   waits on.
    package func caughtUp(
        _ shard: ShardID, epoch: Epoch, _ node: NodeID, within timeout: Duration
    ) async throws(ApusError) {
        let error = await withCheckedContinuation { (continuation: CheckedContinuation<ApusError?, Never>) in
            perform { state, calls in
                let completion: Completion = { continuation.resume(returning: $0) }
                guard !state.isStopped else { return calls.completions.append((completion, ApusError(.shuttingDown))) }
                let deadline = MonotonicTime.now() + timeout
                state.catchUps.append(
                    CatchUp(shard: shard, epoch: epoch, node: node, deadline: deadline, completion: completion))
                Self.settleCatchUps(&state, &calls)
            }
        }
        if let error { throw error }
    }

    /// Returns once the node has every change that was made until now, so that it can become the owner. The caller has
    /// seen to it that no further change is made.
    ///
    /// - Throws: as ``caughtUp(_:epoch:_:within:)``, each of its two waits being no longer than
    ///   ``ReplicaConfiguration/confirmTimeout``; 10010 if the node died or is no target any more.
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

    // MARK: From outside

    private func mapChanged(_ map: ClusterMap) {
        perform { state, calls in
            state.standby.mapChanged(map)
            let effects = state.owner.mapChanged(map)
            Self.settle(effects, &state, &calls)
            state.isSurveyWanted = true
        }
    }

    /// Takes an event of the transport.
    package func received(_ event: TransportEvent) {
        guard case .linkUp(let peer, .control) = event else { return }
        perform { state, _ in state.owner.linkChanged(to: peer) }
        sendAnswers()
    }

    /// Takes a tell with one of the methods ``ClusterMethod/replication``. On the connection's event loop.
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

    /// With as many lanes at both nodes, messages and answers have the same one.
    private func lane(of messageNumber: UInt64) -> Int { Int(messageNumber % UInt64(configuration.laneCount)) }

    private func send(_ answers: ByteBuffer, to peer: NodeName, lane: Int, over links: (any ClusterLinks)?) {
        do throws(ApusError) {
            guard let links else { throw ApusError(.noRoute) }
            try links.tell(peer, lane: lane, method: ClusterMethod.replicated, payload: answers)
        } catch {
            // The link back may come up later than the one here: the answer waits for it.
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

    // MARK: What follows

    /// Runs an event under the lock, then what follows from it.
    private func perform<Value: Sendable>(_ event: (inout State, inout Calls) -> Value) -> Value {
        let (value, calls) = state.withLock { state in
            var calls = Calls()
            let value = event(&state, &calls)
            return (value, calls)
        }
        // What others wait for leaves before what waits here goes on.
        pump()
        run(calls)
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

    /// Tells those who wait for a target what became of it; those whose time is over only where the time is given.
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

    /// Sends what can be sent, unless another thread does. That thread looks again before it ends.
    private func pump() {
        var isPumping = false
        while let (messages, links) = nextMessages(isPumping: isPumping) {
            isPumping = true
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
    }

    private typealias Messages = [(target: NodeID, message: ReplicaMessage)]

    private func nextMessages(isPumping: Bool) -> (messages: Messages, links: any ClusterLinks)? {
        let (messages, links, isTickNew) = state.withLock { state -> (Messages, (any ClusterLinks)?, Bool) in
            guard isPumping || !state.isPumping else { return ([], nil, false) }
            let canSend = state.links != nil && !state.isStopped
            let messages = canSend ? state.owner.nextMessages(now: .now()) : []
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

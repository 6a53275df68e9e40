import ApusCluster
import ApusCore
import ApusTransport
import ApusWire
import Logging
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

// The requests of a node's sessions to the owners of their identities, and the messages of identities that are active
// here to the edges.

extension SessionService {
    /// Sends requests to owners and processes alarms, until the node stops.
    /// It runs on one of the transport's event loops: on the shared pool each sign-in woke three threads.
    package func run() async throws {
        await withGracefulShutdownHandler {
            await withTaskExecutorPreference(transport.nextExecutor()) { await runWork() }
        } onGracefulShutdown: {
            self.workFeed.finish()
        }
    }

    private func runWork() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await self.watchRevocations() }
            for await piece in work {
                switch piece {
                case .tell(let action): group.addTask { await self.tellOwners(action) }
                case .lookAtClock(let time): group.addTask { await self.lookAtClock(at: time) }
                case .write(let memory): group.addTask { await memory.write { self.wallSeconds() } }
                }
            }
            group.cancelAll()
        }
    }

    /// Asks an owner, or waits, as the machine requires. The machine's next actions become further work.
    private func tellOwners(_ action: EdgeMachine.Action) async {
        switch action {
        case .ask(let question):
            let answer = await ask(question)
            if case .failed(let error) = answer, error.code == .deviceDisabled { noteDisabled(question.session) }
            let now = MonotonicTime.now()
            let actions = state.withLock { $0.edge.answered(question, answer, now: now) }
            logPause(answer, question, actions)
            perform(actions)
        case .wait(let wait):
            do { try await Task.sleep(for: wait.until - .now()) } catch {
                return  // The node is stopping; the other nodes detect that.
            }
            perform(state.withLock { $0.edge.retryDue(wait) })
        case .end, .confirm:
            perform([action])
        }
    }

    private func logPause(_ answer: EdgeAnswer, _ question: EdgeAsk, _ actions: [EdgeMachine.Action]) {
        guard case .failed(let error) = answer, case .wait = actions.last else { return }
        log.debug(
            "The owner of a session cannot be notified yet",
            metadata: Logger.facts(of: error).merging([LogKey.session: "\(question.session.id)"]) { $1 })
    }

    private func ask(_ question: EdgeAsk) async -> EdgeAnswer {
        let session = question.session
        switch question.content {
        case .register(let isAsleep):
            switch await register(session, isAsleep: isAsleep, again: true) {
            case .success(let order): return .registered(order)
            case .failure(let error): return .failed(error)
            }
        case .unregister: return EdgeAnswer(await unregister(session))
        case .forget(let device): return EdgeAnswer(await forget(device, at: place(of: session.id)))
        case .subscribe(let device):
            switch await subscribe(to: device, for: session) {
            case .success: return .done
            case .failure(let error): return .failed(error)
            }
        }
    }

    // MARK: - Messages to owners

    func place(of session: String) -> SessionPlace { SessionPlace(node: view.local, session: session) }

    func ask<M: EntityMessage>(
        _ kind: EntityKind, _ key: String, _ message: M
    ) async throws(ApusError) -> M.Reply {
        try await entities.ref(IdentityActor.self, EntityAddress(kind: kind, key: key))
            .ask(message, timeout: configuration.askTimeout)
    }

    /// The error of a message whose answer carries nothing else; nil if it was carried out.
    private func failure<M: EntityMessage>(_ kind: EntityKind, _ key: String, _ message: M) async -> ApusError? {
        do throws(ApusError) {
            _ = try await ask(kind, key, message)
            return nil
        } catch {
            return error
        }
    }

    /// The order that the owner assigned to the session's client. Fails with 12003 if a newer client is known.
    func register(
        _ session: Session, isAsleep: Bool, again: Bool
    ) async -> Result<SessionOrder, ApusError> {
        let message = SessionRegister.with {
            $0.place = place(of: session.id).message
            $0.account = session.account.rawValue
            $0.access = session.access.rawValue
            $0.sinceMs = session.sinceMilliseconds
            $0.asleep = isAsleep
            $0.again = again
            $0.instance = session.instance
            $0.issuedS = session.token.issuedAt
            if session.order != .none { $0.order = session.order.message }
        }
        do throws(ApusError) {
            let answer = try await ask(session.entityKind, session.entityKey, message)
            if answer.superseded { return .failure(ApusError(.kicked)) }
            return .success(answer.hasOrder ? SessionOrder(answer.order) : session.order)
        } catch {
            return .failure(error)
        }
    }

    private func unregister(_ session: Session) async -> ApusError? {
        let message = SessionUnregister.with {
            $0.place = place(of: session.id).message
            $0.resumable = true
        }
        return await failure(session.entityKind, session.entityKey, message)
    }

    /// Subscribes the session to the presence of the device.
    func subscribe(to device: DeviceID, for session: Session) async -> Result<Presence, ApusError> {
        let message = SessionInspect.with {
            $0.account = session.account.rawValue
            $0.subscribe = true
            $0.place = place(of: session.id).message
        }
        return await ask(device, message).map(\.presence)
    }

    func ask(_ device: DeviceID, _ message: SessionInspect) async -> Result<DeviceAccess, ApusError> {
        do throws(ApusError) {
            let answer = try await ask(.device, device.rawValue, message)
            let online = Presence.Online(rawValue: answer.online) ?? .offline
            return .success(
                DeviceAccess(presence: Presence(online: online, time: answer.time), dataSince: answer.dataSinceMs))
        } catch {
            return .failure(error)
        }
    }

    func forget(_ device: DeviceID, at place: SessionPlace) async -> ApusError? {
        await failure(.device, device.rawValue, SessionForget.with { $0.place = place.message })
    }

    func sleep(_ session: Session, _ isAsleep: Bool) async -> ApusError? {
        let message = SessionSleep.with {
            $0.place = place(of: session.id).message
            $0.asleep = isAsleep
        }
        return await failure(session.entityKind, session.entityKey, message)
    }

    // MARK: - Time and the map

    /// Requests a call of an identity at a time.
    func wake(_ actor: IdentityActor, at time: MonotonicTime) {
        setAlarm(state.withLock { $0.alarms.wake(actor, at: time) })
    }

    /// Arms an alarm.
    private func setAlarm(_ time: MonotonicTime?) {
        if let time { workFeed.yield(.lookAtClock(time)) }
    }

    /// Processes an alarm. An alarm that an earlier one has replaced does nothing.
    private func lookAtClock(at time: MonotonicTime) async {
        let wait = time - .now()
        if wait > .zero {
            do { try await Task.sleep(for: wait) } catch { return }
        }
        let now = MonotonicTime.now()
        let look = state.withLock { state in
            state.alarms.look(at: time, now: now)
                .map { (due: $0.due, lost: $0.lost, identities: $0.lost.isEmpty ? [] : state.identities) }
        }
        guard let look else { return }
        for actor in look.due { await actor.tick() }
        for node in look.lost {
            for identity in look.identities { await identity.actor?.nodeLost(node) }
        }
        setAlarm(state.withLock { $0.alarms.nextLook() })
    }

    /// Sends this node's facts to new owners, and notifies identities that are active here of dead nodes.
    func mapChanged(from old: ClusterMap, to new: ClusterMap) {
        perform(state.withLock { $0.edge.mapChanged { new[$0].epoch } })
        let lost = old.members.map(\.id).filter { old.isAlive($0) && !new.isAlive($0) }
        let now = MonotonicTime.now()
        setAlarm(state.withLock { $0.alarms.nodesLost(lost, now: now) })
    }

    // MARK: - From identities to edges

    func kick(_ place: SessionPlace, _ code: ErrorCode, by order: SessionOrder?, _ epoch: Epoch) {
        guard place.node != view.local else { return kicked(place.session, code, by: order, epoch: epoch) }
        tell(
            place.node,
            SessionKick.with {
                $0.session = place.session
                $0.epoch = epoch
                if let order { $0.order = order.message }
                if code != .kicked { $0.code = code.number }
            })
    }

    /// A lost message is repaired when the edge registers with the next owner, or asks again.
    private func tell(_ node: NodeID, _ message: some NodeMessage) {
        do throws(ApusError) {
            try transport.tell(node.name, message)
        } catch {
            log.debug(
                "An edge cannot be notified",
                metadata: Logger.facts(of: error).merging([LogKey.peer: "\(node)"]) { $1 })
        }
    }

    func push(_ device: String, _ presence: Presence, to places: [SessionPlace], _ epoch: Epoch) {
        guard let device = DeviceID(rawValue: device) else { return }
        var nodes: [NodeID] = []
        for place in places where !nodes.contains(place.node) { nodes.append(place.node) }
        for node in nodes {
            let sessions = places.filter { $0.node == node }.map(\.session)
            if node == view.local {
                presenceChanged(device, presence, sessions: sessions, epoch: epoch)
            } else {
                tell(
                    node,
                    SessionPresenceChanged.with {
                        $0.device = device.rawValue
                        $0.online = presence.online.rawValue
                        $0.time = presence.time
                        $0.sessions = sessions
                        $0.epoch = epoch
                    })
            }
        }
    }
}

extension EdgeAnswer {
    fileprivate init(_ error: ApusError?) { self = error.map { .failed($0) } ?? .done }
}

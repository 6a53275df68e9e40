package import ApusCluster
import ApusContract
package import ApusCore
package import ApusStorage
package import ApusTransport
import ApusWire
import CoreMetrics
import Foundation
package import Logging
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// A session that was opened, with what the client needs to resume it.
package struct OpenedSession: Sendable {
    package var session: Session
    package var ticket: [UInt8]
    package var ticketSeconds: UInt32
    /// The owner of its identity knows it as the newest (IV-A5); else ``ClientLink/confirmed()`` will say so.
    package var isConfirmed: Bool
}

/// The sessions of a node (D6): who is connected here, checked against tokens and tickets, and made known
/// to the owner of each identity's shard.
///
/// A fresh token waits for the owner, so that refusals are clear. A ticket does not: the session was
/// admitted before, the client may be fleeing from the very node that owns it, and the owner is told
/// as soon as there is one. ``EdgeSessionStateMachine`` decides; this runs what it says.
///
/// Concurrency model: the machine sits behind a `Mutex`; one task at a time asks the owners of one
/// session, in ``run()``'s group.
package final class SessionService: Service, Sendable {
    typealias EdgeMachine = EdgeSessionStateMachine<EdgeLink>

    /// A socket, as the machine compares it.
    struct EdgeLink: Sendable, Equatable {
        let socket: any ClientLink
        static func == (left: Self, right: Self) -> Bool { left.socket === right.socket }
    }

    struct State {
        var edge: EdgeMachine
        var alarms = IdentityAlarms<IdentityActor>()
        /// Identities that live here; the registry bounds and owns them.
        var identities: [WeakIdentity] = []
        private var sweepAt = 64

        init(_ configuration: SessionConfiguration) { edge = EdgeMachine(configuration: configuration.edge()) }

        mutating func keep(_ actor: IdentityActor) {
            if identities.count >= sweepAt {
                identities.removeAll { $0.actor == nil }
                sweepAt = max(64, identities.count * 2)
            }
            identities.append(WeakIdentity(actor: actor))
        }
    }

    struct WeakIdentity: Sendable { weak var actor: IdentityActor? }

    /// What ``run()`` does beside answering.
    enum Work: Sendable {
        /// The owner of a session's identity, or of a device, is to be told, now or after a pause.
        case tell(EdgeMachine.Action)
        /// Something is due then.
        case lookAtClock(MonotonicTime)
        /// Identities' newest clients are to be written down.
        case write(IdentityMemory)
    }

    package let configuration: SessionConfiguration
    package let view: ClusterView
    let entities: EntityRegistry
    let transport: Transport
    let verifier: TokenVerifier
    let sealer: TicketSealer
    package let revocations: RevocationWatch
    let log: Logger
    /// Nil where the node relays nothing.
    let relayIssuer: (any RelayIssuer)?
    let issues: Mutex<RateLimiter<String>>
    let state: Mutex<State>
    let work: AsyncStream<Work>
    let workFeed: AsyncStream<Work>.Continuation
    /// Sessions, and subscriptions, that were refused since there were too many.
    private let refused = Counter(label: "apus_sessions_refused_total")

    package init(
        configuration: SessionConfiguration, view: ClusterView, entities: EntityRegistry, transport: Transport,
        verifier: TokenVerifier, sealer: TicketSealer, revocations: RevocationWatch,
        relayIssuer: (any RelayIssuer)? = nil, log: Logger
    ) {
        self.configuration = configuration
        self.view = view
        self.entities = entities
        self.transport = transport
        self.verifier = verifier
        self.sealer = sealer
        self.revocations = revocations
        self.relayIssuer = relayIssuer
        let perMinute = configuration.relayCredentialsPerMinute
        issues = Mutex(RateLimiter(perMinute, per: .seconds(60), burst: perMinute))
        state = Mutex(State(configuration))
        self.log = log
        // Bounded by the sessions and identities: each is in here at most once.
        (work, workFeed) = AsyncStream.makeStream()
        view.observe { [weak self] old, new in self?.mapChanged(from: old, to: new) }
        let map = view.map
        mapChanged(from: map, to: map)
    }

    /// Makes this node able to own identities: devices and apps, and the messages of their owners.
    package func register(with dispatcher: NodeDispatcher, records: any RecordStore) {
        let records = SessionRecords(records, writer: view.local.description)
        let memory = IdentityMemory(records: records, pendingMax: configuration.unwrittenMax, log: log)
        let context = IdentityContext(
            configuration: configuration, records: records,
            kick: { [weak self] place, code, order, epoch in self?.kick(place, code, by: order, epoch) },
            push: { [weak self] device, presence, places, epoch in
                self?.push(device, presence, to: places, epoch)
            },
            isOwner: { [view] shard, epoch in
                let known = view.lookUp(shard)
                return known.owner?.id == view.local && known.epoch == epoch
            },
            wake: { [weak self] actor, time in self?.wake(actor, at: time) },
            isIdle: { [weak self] address in self?.entities.passivate(address) },
            remember: { [weak self] address, newest in self?.remember(address, newest, in: memory) },
            memory: { address throws(ApusError) in try await memory.memory(of: address.name) })
        for kind in [EntityKind.device, .app] {
            let options = EntityOptions<IdentityActor>(make: { [weak self, log] entity in
                let actor = IdentityActor(address: entity.address, epoch: entity.epoch, context: context, log: log)
                self?.state.withLock { $0.keep(actor) }
                return actor
            })
            entities.register(kind, options: options) { handlers in
                handlers.on(SessionRegister.self) { actor, message throws(ApusError) in
                    try await actor.register(message)
                }
                handlers.on(SessionUnregister.self) { actor, message throws(ApusError) in
                    try await actor.unregister(message)
                }
                handlers.on(SessionInspect.self) { actor, message throws(ApusError) in try await actor.inspect(message)
                }
                handlers.on(SessionForget.self) { actor, message throws(ApusError) in try await actor.forget(message) }
                handlers.on(SessionSleep.self) { actor, message throws(ApusError) in try await actor.sleep(message) }
            }
        }
        dispatcher.on(SessionKick.self) { [weak self] _, message in
            let code = message.code == 0 ? ErrorCode.kicked : ErrorCode(number: message.code)
            let order = message.hasOrder ? SessionOrder(message.order) : nil
            self?.kicked(message.session, code, by: order, epoch: message.epoch)
            return SessionForgotten()
        }
        dispatcher.on(SessionPresenceChanged.self) { [weak self] _, message in
            guard let self, let device = DeviceID(rawValue: message.device) else { return SessionForgotten() }
            let online = Presence.Online(rawValue: message.online) ?? .offline
            presenceChanged(
                device, Presence(online: online, time: message.time), sessions: message.sessions, epoch: message.epoch)
            return SessionForgotten()
        }
    }

    /// Remembered for as long as a ticket serves: one of a superseded client was made before, and is not renewed.
    private func remember(
        _ address: EntityAddress, _ newest: PresenceStateMachine.Memory, in memory: IdentityMemory
    ) {
        let record = IdentityRecord(
            identity: address.name, epoch: newest.newest.epoch, sequence: newest.newest.sequence,
            instance: newest.instance, superseded: newest.superseded,
            expires: wallSeconds() + configuration.ticketLifetime.components.seconds)
        if memory.remember(record) { workFeed.yield(.write(memory)) }
    }

    /// Runs what the machine said. What takes time is given to ``run()``.
    func perform(_ actions: [EdgeMachine.Action]) {
        for action in actions {
            switch action {
            case .end(let links, let error): for link in links { link.socket.end(error) }
            case .confirm(let links): for link in links { link.socket.confirmed() }
            case .ask, .wait: workFeed.yield(.tell(action))
            }
        }
    }

    /// Counts what was refused for a bound of the table.
    func noteRefusal(_ error: ApusError) { if error.code == .overloaded { refused.increment() } }

    // MARK: - For the edges

    /// Leave to watch, and presence. Fails with 8002, 8003, 12004, and 10007 where a bound is reached.
    package func inspect(
        _ device: DeviceID, for session: Session, subscribe: Bool
    ) async -> Result<Presence, ApusError> {
        guard session.role == .app else { return .failure(ApusError(.notAllowed, "only an app watches")) }
        guard session.allowedDevices?.contains(device) ?? true else {
            return .failure(ApusError(.notAllowed, "the token does not name this device"))
        }
        guard subscribe else { return await ask(device, for: session, subscribe: false) }
        switch state.withLock({ $0.edge.subscribing(session.id, device) }) {
        case .failure(let error):
            noteRefusal(error)
            return .failure(error)
        case .success(let number):
            let answer = await ask(device, for: session, subscribe: true)
            var error: ApusError?
            if case .failure(let failure) = answer { error = failure }
            perform(state.withLock { [error] in $0.edge.subscribed(session.id, device, number, error) })
            return answer
        }
    }

    /// The leave to watch a device that another node gave this session.
    package func isGranted(_ grant: [UInt8], _ session: Session, device: DeviceID) -> Bool {
        sealer.allows(grant, session, device: device, wallSeconds: wallSeconds())
    }

    /// A grant to watch that every node takes for ``SessionConfiguration/grantLifetime``, or until the session's token
    /// ends.
    package func grant(_ session: Session, device: DeviceID) -> [UInt8] {
        let expiresAt = wallSeconds() + configuration.grantLifetime.components.seconds
        return (try? sealer.sealGrant(session, device: device, expiresAt: expiresAt)) ?? []
    }

    /// A session no longer wants to hear of a device.
    package func forget(_ device: DeviceID, for session: Session) async {
        guard let number = state.withLock({ $0.edge.forgetting(session.id, device) }) else { return }
        let error = await forget(device, at: place(of: session.id))
        perform(state.withLock { $0.edge.forgotten(session.id, device, number, isDone: error == nil) })
    }

    /// The device sleeps or wakes. Fails where its owner cannot be told in time; it is told later then.
    package func setAsleep(_ session: Session, _ isAsleep: Bool) async -> Result<Void, ApusError> {
        guard session.device != nil else { return .failure(ApusError(.notAllowed)) }
        guard let number = state.withLock({ $0.edge.sleeping(session.id, isAsleep) }) else {
            return .failure(ApusError(.linkLost, "the session has ended"))
        }
        let error = await sleep(session, isAsleep)
        perform(state.withLock { $0.edge.slept(session.id, number, isDone: error == nil) })
        return error.map { .failure($0) } ?? .success(())
    }

    /// Sessions of this node, the oldest first, and whether there are more than `limit`.
    ///
    /// - Parameter account: only those of it; empty: of all.
    package func list(account: String, limit: Int) -> (sessions: [Session], hasMore: Bool) {
        state.withLock { $0.edge.list(account: account, limit: limit) }
    }

    /// This node has a session of this id with a socket.
    package func held(_ session: String) -> Bool {
        state.withLock { !($0.edge.held(session)?.links.isEmpty ?? true) }
    }

    /// The bearer of a token, as a session that lasts for one request. Throws 12001 and 12002.
    package func bearer(of token: String) throws(ApusError) -> Session {
        try Session(
            claims: try verifier.verify(token, wallSeconds: wallSeconds()), id: "-", sinceMilliseconds: 0)
    }

    /// Throws 12001 where the session's token is revoked, and 12002 where it has ended.
    package func checkBearer(_ session: Session) throws(ApusError) {
        guard session.token.expires > wallSeconds() - TokenVerifier.leewaySeconds else {
            throw ApusError(.tokenExpired)
        }
        try revocations.check(session)
    }

    // MARK: - From owners

    /// An owner says that a session here was superseded by a client of this order, or is to end with another code.
    package func kicked(
        _ session: String, _ code: ErrorCode = .kicked, by order: SessionOrder? = nil, epoch: Epoch = 0
    ) {
        perform(state.withLock { $0.edge.kicked(session, code, by: order, epoch: epoch) })
    }

    /// An owner says that a device's presence changed.
    package func presenceChanged(
        _ device: DeviceID, _ presence: Presence, sessions: [String], epoch: Epoch = 0
    ) {
        let links = state.withLock { $0.edge.presenceChanged(device, sessions: sessions, epoch: epoch) }
        for link in links { link.socket.presenceChanged(device, presence) }
    }
}

extension EntityAddress {
    /// How the identity is named in the records.
    fileprivate var name: String { "\(kind.rawValue)/\(key)" }
}

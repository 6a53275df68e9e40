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

/// An opened session, with the ticket that resumes it.
package struct OpenedSession: Sendable {
    package var session: Session
    package var ticket: [UInt8]
    package var ticketSeconds: UInt32
    /// True if the owner of its identity has confirmed it as the newest (IV-A5). Otherwise ``ClientLink/confirmed()``
    /// is called later.
    package var isConfirmed: Bool
}

/// The sessions of a node (D6). Clients are authenticated by tokens and tickets, and registered with the owner of each
/// identity's shard.
/// A client with a new token waits for the owner's answer, so that it receives a clear refusal. A client with a ticket
/// does not: it was admitted before, and may have lost the very node that owns its identity. The owner is notified as
/// soon as there is one. ``EdgeSessionStateMachine`` decides, and this class carries out its actions.
/// Concurrency model: a `Mutex` guards the machine. One task at a time asks the owners of one session, in ``run()``'s
/// group.
package final class SessionService: Service, Sendable {
    typealias EdgeMachine = EdgeSessionStateMachine<EdgeLink>

    /// A socket, compared by identity.
    struct EdgeLink: Sendable, Equatable {
        let socket: any ClientLink
        static func == (left: Self, right: Self) -> Bool { left.socket === right.socket }
    }

    struct State {
        var edge: EdgeMachine
        var alarms = IdentityAlarms<IdentityActor>()
        var disabled = DisabledDevices()
        /// Identities that are active here. The registry bounds and owns them.
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

    /// Work of ``run()``.
    enum Work: Sendable {
        /// Notify the owner of a session's identity or of a device, now or after a pause.
        case tell(EdgeMachine.Action)
        /// Process an alarm at this time.
        case lookAtClock(MonotonicTime)
        /// Write the newest clients of identities.
        case write(IdentityMemory)
    }

    package let configuration: SessionConfiguration
    package let view: ClusterView
    let entities: EntityRegistry
    let transport: Transport
    /// They learn who may use devices; set once, while the node is made.
    private let observers = Mutex<(all: [any RelationObserver], publishers: [any RelationPublisher])>(([], []))
    private let keys: Mutex<SessionKeys>
    private let generation = Atomic<Int>(0)
    package let revocations: RevocationWatch
    let log: Logger
    /// Nil if the node has no relay.
    let relayIssuer: (any RelayIssuer)?
    let issues: Mutex<RateLimiter<String>>
    let state: Mutex<State>
    let work: AsyncStream<Work>
    let workFeed: AsyncStream<Work>.Continuation
    /// The number of sessions and subscriptions that were refused because of a limit.
    private let refused = Counter(label: "apus_sessions_refused_total")

    var verifier: TokenVerifier { keys.withLock { $0.verifier } }
    var sealer: TicketSealer { keys.withLock { $0.sealer } }

    /// Accepts the tokens and tickets of other keys from now on. Sessions that are open continue.
    package func use(_ new: SessionKeys) {
        keys.withLock { $0 = new }
        generation.add(1, ordering: .sequentiallyConsistent)
    }

    /// The number of times that the keys were replaced.
    package var keyGeneration: Int { generation.load(ordering: .sequentiallyConsistent) }

    package init(
        configuration: SessionConfiguration, view: ClusterView, entities: EntityRegistry, transport: Transport,
        verifier: TokenVerifier, sealer: TicketSealer, revocations: RevocationWatch,
        relayIssuer: (any RelayIssuer)? = nil, log: Logger
    ) {
        self.configuration = configuration
        self.view = view
        self.entities = entities
        self.transport = transport
        keys = Mutex(SessionKeys(verifier: verifier, sealer: sealer))
        self.revocations = revocations
        self.relayIssuer = relayIssuer
        let perMinute = configuration.relayCredentialsPerMinute
        issues = Mutex(RateLimiter(perMinute, per: .seconds(60), burst: perMinute))
        state = Mutex(State(configuration))
        self.log = log
        // Bounded by the sessions and identities: each is queued at most once.
        (work, workFeed) = AsyncStream.makeStream()
        view.observe { [weak self] old, new in self?.mapChanged(from: old, to: new) }
        let map = view.map
        mapChanged(from: map, to: map)
    }

    /// Registers the entities of devices and apps, and the messages of their owners.
    ///
    /// - Parameter runtime: has the outbox of changes of who may use devices; nil: they are published by the nodes of
    ///   their clients.
    package func register(
        with dispatcher: NodeDispatcher, records: any RecordStore, runtime: EntityRuntime? = nil
    ) {
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
            isIdle: { [weak self] actor, isIdle in self?.entities.setIdle(isIdle, actor.address, actor) },
            remember: { [weak self] address, newest in self?.remember(address, newest, in: memory) },
            clusterMilliseconds: { [view] in view.clock.wallMilliseconds() },
            outbox: runtime?.outbox(of: .device, to: RelationDeliveries(service: self)),
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
                handlers.on(SessionRelate.self) { actor, message throws(ApusError) in try await actor.relate(message) }
                handlers.on(SessionSleep.self) { actor, message throws(ApusError) in try await actor.sleep(message) }
            }
        }
        dispatcher.on(SessionKick.self) { [weak self] _, message in
            let code = message.code == 0 ? ErrorCode.kicked : ErrorCode(number: message.code)
            let order = message.hasOrder ? SessionOrder(message.order) : nil
            self?.kicked(message.session, code, by: order, epoch: message.epoch)
            return SessionForgotten()
        }
        dispatcher.on(SessionProbe.self) { [weak self] _, message in
            SessionProbed(await self?.probeHere(message.session) ?? .notAsked)
        }
        dispatcher.on(SessionPresenceChanged.self) { [weak self] _, message in
            guard let self, let device = DeviceID(rawValue: message.device) else { return SessionForgotten() }
            let online = Presence.Online(rawValue: message.online) ?? .offline
            presenceChanged(
                device, Presence(online: online, time: message.time), sessions: message.sessions, epoch: message.epoch)
            return SessionForgotten()
        }
    }

    /// A device's record is kept for as long: it says when the device was last seen.
    private static let deviceMemoryTime: Int64 = 10 * 366 * 24 * 3600

    /// The record is kept for the lifetime of a ticket: the tickets of a superseded client were issued before, and are
    /// not renewed.
    private func remember(
        _ address: EntityAddress, _ newest: PresenceStateMachine.Memory, in memory: IdentityMemory
    ) {
        let ticketTime = configuration.ticketLifetime.components.seconds
        let time = address.kind == .device ? max(Self.deviceMemoryTime, ticketTime) : ticketTime
        let record = IdentityRecord(
            identity: address.name, epoch: newest.newest.epoch, sequence: newest.newest.sequence,
            instance: newest.instance, superseded: newest.superseded,
            expires: wallSeconds() + time, seen: newest.seenSeconds)
        if memory.remember(record) { workFeed.yield(.write(memory)) }
    }

    /// Carries out the machine's actions. Those that take time are passed to ``run()``.
    func perform(_ actions: [EdgeMachine.Action]) {
        for action in actions {
            switch action {
            case .end(let links, let error): for link in links { link.socket.end(error) }
            case .confirm(let links): for link in links { link.socket.confirmed() }
            case .ask, .wait: workFeed.yield(.tell(action))
            }
        }
    }

    /// Counts a refusal because of a limit of the table.
    func noteRefusal(_ error: ApusError) { if error.code == .overloaded { refused.increment() } }

    // MARK: - For the edges

    /// Checks the permission to use a device, and returns the presence. Fails with 8002, 8003, 12004, 20011, and 10007
    /// beyond a limit.
    /// - Parameter control: also to change settings and to send commands (IV-B10).
    package func inspect(
        _ device: DeviceID, for session: Session, subscribe: Bool, control: Bool = false
    ) async -> Result<Presence, ApusError> {
        do throws(ApusError) { try use(device, in: session) } catch { return .failure(error) }
        guard subscribe else { return await inspect(device, for: session.account, control: control) }
        switch state.withLock({ $0.edge.subscribing(session.id, device) }) {
        case .failure(let error):
            noteRefusal(error)
            return .failure(error)
        case .success(let number):
            let answer = await self.subscribe(to: device, for: session)
            var error: ApusError?
            if case .failure(let failure) = answer { error = failure }
            perform(state.withLock { [error] in $0.edge.subscribed(session.id, device, number, error) })
            return answer
        }
    }

    /// As ``inspect(_:for:subscribe:control:)``, for a session that uses the device.
    package func inspect(
        _ device: DeviceID, for account: AccountID, control: Bool
    ) async -> Result<Presence, ApusError> {
        await access(to: device, for: account, control: control).map(\.presence)
    }

    /// The same, with what the account may know of the device's data. The session uses the device already.
    package func access(
        to device: DeviceID, for account: AccountID, control: Bool
    ) async -> Result<DeviceAccess, ApusError> {
        await ask(
            device,
            SessionInspect.with {
                $0.account = account.rawValue
                $0.control = control
            })
    }

    /// The session uses the device from now on, before its owner is asked: if the right is lost meanwhile, the session
    /// ends. Throws 12004 if it is not an app's, or may not use this device.
    package func use(_ device: DeviceID, in session: Session) throws(ApusError) {
        guard session.role == .app else { throw ApusError(.notAllowed, "only an app may watch a device") }
        guard session.allowedDevices?.contains(device) ?? true else {
            throw ApusError(.notAllowed, "the token does not name this device")
        }
        uses(device, in: session)
    }

    /// True if another node granted this session the permission to play the device. If the account lost a right to it
    /// since, the device's owner decides.
    package func isGranted(_ grant: [UInt8], _ session: Session, device: DeviceID) -> Bool {
        uses(device, in: session)
        return !revocations.hasLost(session.account, device)
            && sealer.allows(grant, session, device: device, wallSeconds: wallSeconds())
    }

    /// The session uses the device: it ends when its account loses a right to it.
    package func uses(_ device: DeviceID, in session: Session) {
        state.withLock { $0.edge.uses(session.id, device) }
    }

    /// A grant for one channel alone, as ``grant(_:device:)``.
    ///
    /// - Parameter peers: the devices to which the account needs a right.
    package func grant(
        _ session: Session, channel: ChannelID, isPublished: Bool, peers: [DeviceID]
    ) -> [UInt8] {
        grant(session, device: channel.grantName(isPublished: isPublished), peers: peers)
    }

    /// True if another node granted this session the permission to publish, or to play, this one channel, and its
    /// account has lost no right to the devices of the grant since.
    package func isGranted(
        _ grant: [UInt8], _ session: Session, channel: ChannelID, isPublished: Bool
    ) -> Bool {
        let peers = sealer.peers(
            of: grant, session, device: channel.grantName(isPublished: isPublished), wallSeconds: wallSeconds())
        guard let peers else { return false }
        for peer in peers { uses(peer, in: session) }
        return !peers.contains { revocations.hasLost(session.account, $0) }
    }

    /// Changes which accounts may use a device (IV-B8, IV-B10), or whether it can be used (IV-C16). Durable on return;
    /// every node acts on it within a second, and with the session that has asked for it within a further one.
    ///
    /// - Throws: 12004 if the token is for certain devices only: temporary access does not include who may use a device
    ///   (IV-A3); otherwise as ``SessionRecords/relate(_:epoch:_:by:now:keepSeconds:events:)``.
    package func relate(
        _ device: DeviceID, _ change: DeviceRelationChange, for session: Session
    ) async throws(ApusError) {
        guard session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is for the use of certain devices only")
        }
        let client: DeviceClient =
            switch session.role {
            case .admin: .operator
            case .customer: .customer(CustomerID(unchecked: session.account.rawValue))
            case .app, .device: .account(session.account)
            }
        try await relate(device, change, by: client, for: session)
    }

    func relate(
        _ device: DeviceID, _ change: DeviceRelationChange, by client: DeviceClient, for session: Session
    ) async throws(ApusError) {
        state.withLock { $0.edge.relates(session.id, true) }
        defer { state.withLock { $0.edge.relates(session.id, false) } }
        let observers = observers.withLock(\.self)
        let before = observers.all.isEmpty ? nil : try? await revocations.records.record(of: device)
        var message = change.message(by: client)
        message.publish = true
        let answer = try await ask(.device, device.rawValue, message)
        if !answer.published { await publishUnqueued(change, of: device, before: before) }
        for observer in observers.all { await observer.related(device, change, before: before) }
    }

    /// Publishes a change whose owner's node is of an earlier release, which has no outbox for it.
    private func publishUnqueued(_ change: DeviceRelationChange, of device: DeviceID, before: DeviceRecord?) async {
        // A request that changed nothing may be a repetition, or end a share that does not exist; any account may send
        // such a request.
        guard before?.isChanged(by: change) ?? change.createsRecord else { return }
        let published = PublishedRelation(
            device: device, change: change, before: before, timeMs: view.clock.wallMilliseconds(),
            number: .random(in: 0...(.max)))
        do throws(ApusError) {
            try await publish(published)
        } catch {
            log.warning("Accounts were not notified of a change of rights", metadata: Logger.facts(of: error))
        }
    }

    /// Publishes a change of who may use a device.
    ///
    /// - Throws: 10006 if the services of this node are not made yet; otherwise as the publishers do.
    func publish(_ change: PublishedRelation) async throws(ApusError) {
        let publishers = observers.withLock(\.publishers)
        guard !publishers.isEmpty else { throw ApusError(.cancelled) }
        for publisher in publishers { try await publisher.publish(change) }
    }

    /// From now on the observers learn of changes that are requested at this node, one after the other. The publishers
    /// receive the changes of the devices whose owner is this node.
    package func observe(_ new: [any RelationObserver], publishers: [any RelationPublisher]) {
        observers.withLock { $0 = (new, publishers) }
    }

    /// A grant to play a device. Every node accepts it for ``SessionConfiguration/grantLifetime``, or until the
    /// session's token expires.
    package func grant(_ session: Session, device: DeviceID) -> [UInt8] {
        grant(session, device: device, peers: nil)
    }

    private func grant(_ session: Session, device: DeviceID, peers: [DeviceID]?) -> [UInt8] {
        let expiresAt = wallSeconds() + configuration.grantLifetime.components.seconds
        return (try? sealer.sealGrant(session, device: device, peers: peers, expiresAt: expiresAt)) ?? []
    }

    /// Ends a session's subscription to a device.
    package func forget(_ device: DeviceID, for session: Session) async {
        guard let number = state.withLock({ $0.edge.forgetting(session.id, device) }) else { return }
        let error = await forget(device, at: place(of: session.id))
        perform(state.withLock { $0.edge.forgotten(session.id, device, number, isDone: error == nil) })
    }

    /// Notes that the device sleeps or wakes. Fails if its owner cannot be notified in time; it is notified later then.
    package func setAsleep(_ session: Session, _ isAsleep: Bool) async -> Result<Void, ApusError> {
        guard session.device != nil else { return .failure(ApusError(.notAllowed)) }
        guard let number = state.withLock({ $0.edge.sleeping(session.id, isAsleep) }) else {
            return .failure(ApusError(.linkLost, "the session has ended"))
        }
        let error = await sleep(session, isAsleep)
        perform(state.withLock { $0.edge.slept(session.id, number, isDone: error == nil) })
        return error.map { .failure($0) } ?? .success(())
    }

    /// True if the device of the session has said that it sleeps.
    package func isAsleep(_ session: Session) -> Bool { state.withLock { $0.edge.isAsleep(session.id) } }

    /// The sessions of this node, oldest first, and whether there are more than `limit`.
    /// - Parameter account: only its sessions; if empty, those of all accounts.
    package func list(account: String, limit: Int) -> (sessions: [Session], hasMore: Bool) {
        state.withLock { $0.edge.list(account: account, limit: limit) }
    }

    /// True if this node has a session with this id and a socket.
    package func held(_ session: String) -> Bool {
        state.withLock { !($0.edge.held(session)?.links.isEmpty ?? true) }
    }

    /// The bearer of a token, as a session for one request. Throws 12001 and 12002, and 12004 for a token for one use:
    /// it opens a session.
    package func bearer(of token: String) throws(ApusError) -> Session {
        let claims = try verifier.verify(token, wallSeconds: wallSeconds())
        guard claims.once != true else {
            throw ApusError(.notAllowed, "a token for one use signs in over a connection")
        }
        return try Session(claims: claims, id: "-", sinceMilliseconds: 0)
    }

    /// Throws 12001 if the session's token is revoked, and 12002 if it has expired.
    package func checkBearer(_ session: Session) throws(ApusError) {
        guard session.token.expires > wallSeconds() - TokenVerifier.leewaySeconds else {
            throw ApusError(.tokenExpired)
        }
        try revocations.check(session)
    }

    // MARK: - From owners

    /// Processes an owner's message that a session was superseded by a client of this order, or must end with another
    /// code.
    package func kicked(
        _ session: String, _ code: ErrorCode = .kicked, by order: SessionOrder? = nil, epoch: Epoch = 0
    ) {
        perform(state.withLock { $0.edge.kicked(session, code, by: order, epoch: epoch) })
    }

    /// Processes an owner's message that a device's presence changed.
    package func presenceChanged(
        _ device: DeviceID, _ presence: Presence, sessions: [String], epoch: Epoch = 0
    ) {
        let links = state.withLock { $0.edge.presenceChanged(device, sessions: sessions, epoch: epoch) }
        for link in links { link.socket.presenceChanged(device, presence) }
    }
}

extension ChannelID {
    /// What a grant for this channel alone names instead of a device.
    ///
    /// - Parameter isPublished: the grant permits to publish the channel, not to play it.
    package func grantName(isPublished: Bool) -> DeviceID {
        DeviceID(unchecked: "\(owner.wireName).\(source)\(isPublished ? "p" : "w")")
    }
}

extension EntityAddress {
    /// The identity's name in the records.
    var name: String { "\(kind.rawValue)/\(key)" }
}

package import ApusCluster
import ApusContract
package import ApusCore
package import ApusStorage
package import ApusTransport
import ApusWire
import Crypto
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
/// as soon as there is one.
///
/// Concurrency model: the table sits behind a `Mutex`; one worker at a time tells the owner of one
/// session, in tasks of ``run()``'s group, until the owner knows what is true here.
package final class SessionService: Service, Sendable {
    struct Entry {
        var session: Session
        /// Its sockets, the newest last. More than one while its client chooses one of them; none once they are gone
        /// and the owner is yet to be told.
        var links: [any ClientLink]
        /// The owner is being asked for the session's first order.
        var isOpening = false
        /// The order of the client that superseded the session while it was being opened.
        var kickedBy = SessionOrder.none
        /// It was never opened: the owner is told once, in case that it heard of it.
        var isRefused = false
        var isAsleep = false
        var isResumable = true
        /// The owner answered that no newer client is known.
        var isConfirmed = false
        var subscriptions: [DeviceID] = []
        /// What is true here, counted; and what the owner was told of it.
        var version = 1
        var toldVersion = 0
        var isWorking = false
    }

    struct State {
        var entries: [String: Entry] = [:]
        /// Identities that want to be asked again, by when; times are whole steps of `wakeStep`.
        var wakes: [MonotonicTime: [IdentityActor]] = [:]
        /// When the clock is looked at next.
        var alarm: MonotonicTime?
        /// Nodes that died since the last look.
        var lostNodes: [NodeID] = []
        /// Identities that live here; the registry bounds and owns them.
        var identities: [WeakIdentity] = []
        /// What owners said that may be replaced by now.
        var words = OwnerWords()
        private var sweepAt = 64

        mutating func keep(_ actor: IdentityActor) {
            if identities.count >= sweepAt {
                identities.removeAll { $0.actor == nil }
                sweepAt = max(64, identities.count * 2)
            }
            identities.append(WeakIdentity(actor: actor))
        }
    }

    struct WeakIdentity: Sendable { weak var actor: IdentityActor? }

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
    let issues: Mutex<IssueLimiter>
    let state = Mutex(State())
    /// What ``run()`` does beside answering.
    private enum Work {
        /// The owner of a session's identity is to be told.
        case tell(String)
        /// Something is due then.
        case lookAtClock(MonotonicTime)
        /// Identities' newest clients are to be written down.
        case write(IdentityMemory)
    }
    private let work: AsyncStream<Work>
    private let workFeed: AsyncStream<Work>.Continuation

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
        issues = Mutex(IssueLimiter(perMinute: configuration.relayCredentialsPerMinute))
        self.log = log
        // Bounded by the sessions and identities: each is in here at most once.
        (work, workFeed) = AsyncStream.makeStream()
        view.observe { [weak self] old, new in self?.mapChanged(from: old, to: new) }
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

    private func ask<M: EntityMessage>(
        _ kind: EntityKind, _ key: String, _ message: M
    ) async throws(ApusError) -> M.Reply {
        try await entities.ref(IdentityActor.self, EntityAddress(kind: kind, key: key))
            .ask(message, timeout: configuration.askTimeout)
    }

    // MARK: - For the edges

    /// Leave to watch, and presence. Fails with 8002, 8003, 12004.
    package func inspect(
        _ device: DeviceID, for session: Session, subscribe: Bool
    ) async -> Result<Presence, ApusError> {
        do throws(ApusError) {
            guard session.role == .app else { throw ApusError(.notAllowed, "only an app watches") }
            guard session.allowedDevices?.contains(device) ?? true else {
                throw ApusError(.notAllowed, "the token does not name this device")
            }
            let presence = try await ask(device, for: session, subscribe: subscribe)
            if subscribe {
                state.withLock { state in
                    guard var entry = state.entries[session.id], !entry.subscriptions.contains(device) else { return }
                    entry.subscriptions.append(device)
                    state.entries[session.id] = entry
                }
            }
            return .success(presence)
        } catch {
            return .failure(error)
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
        state.withLock { $0.entries[session.id]?.subscriptions.removeAll { $0 == device } }
        let message = SessionForget.with { $0.place = place(of: session.id).message }
        _ = try? await ask(.device, device.rawValue, message)
    }

    /// The device sleeps or wakes. Fails where its owner cannot be told in time.
    package func setAsleep(_ session: Session, _ isAsleep: Bool) async -> Result<Void, ApusError> {
        state.withLock { $0.entries[session.id]?.isAsleep = isAsleep }
        let message = SessionSleep.with {
            $0.place = place(of: session.id).message
            $0.asleep = isAsleep
        }
        do throws(ApusError) {
            guard let device = session.device else { throw ApusError(.notAllowed) }
            _ = try await ask(.device, device.rawValue, message)
            return .success(())
        } catch {
            return .failure(error)
        }
    }

    func place(of session: String) -> SessionPlace { SessionPlace(node: view.local, session: session) }

    // MARK: - Telling the owner

    func tell(_ id: String) {
        let isNew = state.withLock { state in
            guard let entry = state.entries[id], !entry.isWorking, !entry.isOpening, entry.version != entry.toldVersion
            else { return false }
            state.entries[id]?.isWorking = true
            return true
        }
        if isNew { workFeed.yield(.tell(id)) }
    }

    /// Tells owners and watches the time, until the node stops.
    ///
    /// On one of the transport's event loops: on the shared pool each sign-in woke three threads.
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
                case .tell(let id): group.addTask { await self.reconcile(id) }
                case .lookAtClock(let time): group.addTask { await self.lookAtClock(at: time) }
                case .write(let memory): group.addTask { await memory.write { self.wallSeconds() } }
                }
            }
            group.cancelAll()
        }
    }

    /// Tells the owner of one session what is true here, until it knows.
    private func reconcile(_ id: String) async {
        var delay = Duration.milliseconds(50)
        while let entry = state.withLock({ $0.entries[id] }), entry.version != entry.toldVersion {
            do throws(ApusError) {
                if entry.links.isEmpty {
                    try await unregister(entry)
                } else {
                    let order = try await register(entry.session, again: true)
                    confirm(id, order)
                    for device in entry.subscriptions {
                        _ = try await ask(device, for: entry.session, subscribe: true)
                    }
                }
                told(id, version: entry.version)
            } catch {
                if error.code == .kicked || error.code == .boundToOtherUser {
                    told(id, version: entry.version)
                    for link in state.withLock({ $0.entries[id]?.links ?? [] }) { link.end(error) }
                    continue
                }
                guard !entry.isRefused else {
                    told(id, version: entry.version)
                    continue
                }
                log.debug(
                    "The owner of a session cannot be told yet.",
                    metadata: Logger.facts(of: error).merging([LogKey.session: "\(id)"]) { $1 })
                do {
                    try await Task.sleep(for: delay)
                } catch {
                    return  // The node stops; the other nodes see that by themselves.
                }
                delay = min(delay * 2, .seconds(1))
            }
        }
        finishWork(id)
    }

    /// The owner knows the session, and no newer one.
    private func confirm(_ id: String, _ order: SessionOrder) {
        let links: [any ClientLink] = state.withLock { state in
            guard var entry = state.entries[id] else { return [] }
            entry.session.order = max(entry.session.order, order)
            let isNews = !entry.isConfirmed
            entry.isConfirmed = true
            state.entries[id] = entry
            return isNews ? entry.links : []
        }
        for link in links { link.confirmed() }
    }

    private func told(_ id: String, version: Int) {
        state.withLock { state in
            state.entries[id]?.toldVersion = version
            if let entry = state.entries[id], entry.links.isEmpty, entry.version == version { state.entries[id] = nil }
        }
    }

    private func finishWork(_ id: String) {
        state.withLock { $0.entries[id]?.isWorking = false }
        tell(id)
    }

    /// The order that the owner gave the session's client. Throws 12003 where a newer client is known.
    func register(_ session: Session, again: Bool) async throws(ApusError) -> SessionOrder {
        let message = SessionRegister.with {
            $0.place = place(of: session.id).message
            $0.account = session.account.rawValue
            $0.access = session.access.rawValue
            $0.sinceMs = session.sinceMilliseconds
            $0.asleep = state.withLock { $0.entries[session.id]?.isAsleep } ?? false
            $0.again = again
            $0.instance = session.instance
            if session.order != .none { $0.order = session.order.message }
        }
        let answer = try await ask(session.entityKind, session.entityKey, message)
        if answer.superseded { throw ApusError(.kicked) }
        return answer.hasOrder ? SessionOrder(answer.order) : session.order
    }

    private func unregister(_ entry: Entry) async throws(ApusError) {
        let message = SessionUnregister.with {
            $0.place = place(of: entry.session.id).message
            $0.resumable = entry.isResumable
        }
        _ = try await ask(entry.session.entityKind, entry.session.entityKey, message)
    }

    private func ask(_ device: DeviceID, for session: Session, subscribe: Bool) async throws(ApusError) -> Presence {
        let message = SessionInspect.with {
            $0.account = session.account.rawValue
            $0.subscribe = subscribe
            $0.place = place(of: session.id).message
        }
        let answer = try await ask(.device, device.rawValue, message)
        return Presence(online: Presence.Online(rawValue: answer.online) ?? .offline, time: answer.time)
    }

    // MARK: - Time and the map

    /// An identity wants to be asked again then.
    private func wake(_ actor: IdentityActor, at time: MonotonicTime) {
        // The clients of a node that dies are lost at once and want to be asked again at once.
        let step = UInt64(Self.wakeStep.nanoseconds)
        let time = MonotonicTime(nanoseconds: (time.nanoseconds / step + 1) * step)
        state.withLock { $0.wakes[time, default: []].append(actor) }
        setAlarm(at: time)
    }
    private static let wakeStep = Duration.milliseconds(20)

    /// Sees to it that the clock is looked at then, where no earlier look is waited for.
    private func setAlarm(at time: MonotonicTime) {
        let isFirst = state.withLock { state in
            if let alarm = state.alarm, alarm <= time { return false }
            state.alarm = time
            return true
        }
        if isFirst { workFeed.yield(.lookAtClock(time)) }
    }

    /// Does what is due. A look that an earlier one has replaced does nothing.
    private func lookAtClock(at time: MonotonicTime) async {
        let wait = time - .now()
        if wait > .zero {
            do { try await Task.sleep(for: wait) } catch { return }
        }
        let isCurrent = state.withLock { state in
            defer { if state.alarm == time { state.alarm = nil } }
            return state.alarm == time
        }
        guard isCurrent else { return }
        let now = MonotonicTime.now()
        let due = state.withLock { state in
            let due = state.wakes.keys.filter { $0 <= now }.sorted()
            return due.flatMap { state.wakes.removeValue(forKey: $0) ?? [] }
        }
        for actor in due { await actor.tick() }
        let (lost, identities) = state.withLock { state in
            defer { state.lostNodes = [] }
            return (state.lostNodes, state.lostNodes.isEmpty ? [] : state.identities)
        }
        for node in lost {
            for identity in identities { await identity.actor?.nodeLost(node) }
        }
        if let next = state.withLock({ $0.wakes.keys.min() }) { setAlarm(at: next) }
    }

    /// Shards that changed hands: their new owner is told what this node holds.
    private func mapChanged(from old: ClusterMap, to new: ClusterMap) {
        let touched = state.withLock { state in
            state.entries.values.filter { entry in
                let shards = [ShardID(key: entry.session.entityKey)] + entry.subscriptions.map { ShardID(of: $0) }
                return shards.contains { old[$0].epoch != new[$0].epoch }
            }.map(\.session.id)
        }
        for id in touched {
            state.withLock { $0.entries[id]?.version += 1 }
            tell(id)
        }
        let lost = old.members.map(\.id).filter { old.isAlive($0) && !new.isAlive($0) }
        guard !lost.isEmpty else { return }
        state.withLock { $0.lostNodes += lost }
        setAlarm(at: .now())
    }

    // MARK: - From owners

    /// An owner says that a session here was superseded by a client of this order, or is to end with another code.
    ///
    /// A session of a later order stays: the word is old, and its client won since.
    package func kicked(
        _ session: String, _ code: ErrorCode = .kicked, by order: SessionOrder? = nil, epoch: Epoch = 0
    ) {
        let links: [any ClientLink] = state.withLock { state in
            guard let entry = state.entries[session],
                takes(epoch, of: ShardID(key: entry.session.entityKey), &state)
            else { return [] }
            if entry.isOpening {
                state.entries[session]?.kickedBy = max(entry.kickedBy, order ?? .none)
                return []
            }
            if let order, order < entry.session.order { return [] }
            return entry.links
        }
        for link in links { link.end(ApusError(code)) }
    }

    /// An owner says that a device's presence changed.
    package func presenceChanged(
        _ device: DeviceID, _ presence: Presence, sessions: [String], epoch: Epoch = 0
    ) {
        let links: [any ClientLink] = state.withLock { state in
            guard takes(epoch, of: ShardID(of: device), &state) else { return [] }
            return sessions.flatMap { state.entries[$0]?.links ?? [] }
        }
        for link in links { link.presenceChanged(device, presence) }
    }

    private func takes(_ epoch: Epoch, of shard: ShardID, _ state: inout State) -> Bool {
        state.words.takes(epoch, of: shard, known: view.lookUp(shard).epoch)
    }

    private func kick(_ place: SessionPlace, _ code: ErrorCode, by order: SessionOrder?, _ epoch: Epoch) {
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

    /// A tell that does not arrive is repaired when the edge tells the next owner, or asks again.
    private func tell(_ node: NodeID, _ message: some NodeMessage) {
        do throws(ApusError) {
            try transport.tell(node.name, message)
        } catch {
            log.debug(
                "An edge cannot be told.",
                metadata: Logger.facts(of: error).merging([LogKey.peer: "\(node)"]) { $1 })
        }
    }

    private func push(_ device: String, _ presence: Presence, to places: [SessionPlace], _ epoch: Epoch) {
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

extension EntityAddress {
    /// How the identity is named in the records.
    fileprivate var name: String { "\(kind.rawValue)/\(key)" }
}

extension Session {
    /// Where the identity lives: devices by their id, which is bound to one account, apps by their account and access
    /// id.
    var entityKind: EntityKind { role == .device ? .device : .app }
    package var entityKey: String { device?.rawValue ?? Self.entityKey(of: access, account) }
    /// Access ids are unique within an account alone. The names of two may be longer than a key; then their digest
    /// stands for them, behind a character that no name has.
    private static func entityKey(of access: AccessID, _ account: AccountID) -> String {
        let text = "\(account)/\(access)"
        guard text.utf8.count > EntityAddress.keyByteCountMax else { return text }
        return "#"
            + SHA256.hash(data: Data(text.utf8)).prefix(16).map { String(Int($0), radix: 36) }.joined(separator: ".")
    }

    /// Its name within its account.
    var identity: String { device?.rawValue ?? access.rawValue }
}

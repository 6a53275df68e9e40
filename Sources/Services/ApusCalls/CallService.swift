package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusEvents
import ApusMediaAccess
import ApusOutgoing
import ApusSessions
package import ApusStorage
import ApusWire
import CoreMetrics
import Foundation
import Logging
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Calls at this node: requests of clients, and the connections that take calls (CALL-4 to CALL-11, docs/calls.md).
///
/// A call is at the owner of the shard of its first called party. It claims its parties, and sends notices to them; the
/// owner of a party knows the connections of its clients, and sends the notice to their nodes. Every message may be
/// lost: the call sends again what is not confirmed.
///
/// Concurrency model: any thread. A `Mutex` guards the numbers of sessions.
package final class CallService: NodeService, Service {
    package static let name = "Calls"
    package static let records = CallRecords.catalogue

    /// The kind of the topic by which a client takes calls, and its only key.
    package static let topicKind = "calls"
    static let ownKey = "own"

    /// A client that takes calls.
    struct Client: Sendable {
        var party: CallParty
        var endpoint: AccessID
        var session: Session
    }

    let configuration: CallConfiguration
    let view: ClusterView
    let sessions: SessionService
    let records: CallRecords
    private let events: EventService
    let log: Logger
    let limited: LogLimiter
    let entities: EntityRegistry
    let connections: AnnouncedConnections<Client>
    /// What the party has given each connection, by its number.
    private let numbers: Numbers
    /// A connection as parties know it, by its number and its endpoint.
    private let listener: @Sendable (UInt64, String) -> CallListener
    /// By account: a device's calls count for its account.
    let starts: Mutex<RateLimiter<String>>
    /// Calls whose records have not been written yet.
    private let finished = WorkQueue<CallState>(countMax: CallService.finishedMax)
    let placed = Counter(label: "apus_calls_placed_total")
    private let notices = Counter(label: "apus_calls_notices_total")
    private let listening = Gauge(label: "apus_calls_connections")
    let media: CallMediaTable
    /// Where push notifications go.
    let webhook: WebhookSender
    let machines: any AnsweringMachines
    /// Apps to be notified by push.
    let pushes: CallPushQueue

    /// Records that wait to be written. A further one is dropped, and its call repeats the request.
    private static let finishedMax = 1024
    /// Records that are written at once. The store commits those together that come together.
    private static let writesMax = 32
    private static let lookInterval = Duration.milliseconds(500)

    package init(_ sections: CallServiceConfiguration, of node: NodeContext) throws(ApusError) {
        let (configuration, view, entities) = (sections.calls, node.view, node.entities)
        machines = try node.ports.one((any AnsweringMachines).self)
        events = try node.ports.one(EventService.self)
        let media = try node.ports.one(MediaAccess.self)
        webhook = WebhookSender(sections.push, limited: node.limited) { view.clock.wallSeconds() }
        let pushes = CallPushQueue()
        self.pushes = pushes
        (self.configuration, self.view, self.entities, sessions) = (configuration, view, entities, node.sessions)
        (records, log, limited) = (CallRecords(node.records), node.log, LogLimiter(node.log))
        self.media = CallMediaTable(interval: configuration.mediaCheckInterval)
        let numbers = Numbers()
        let listener: @Sendable (UInt64, String) -> CallListener = { [local = view.local] number, endpoint in
            .with {
                ($0.node, $0.incarnation) = (local.name.rawValue, local.incarnation)
                ($0.number, $0.endpoint) = (number, endpoint)
            }
        }
        (self.numbers, self.listener) = (numbers, listener)
        starts = Mutex(
            RateLimiter(configuration.startsPerMinute, per: .seconds(60), burst: configuration.startsPerMinute))
        connections = AnnouncedConnections(
            view: view, shard: { $0.party.address.shard },
            announce: { number, client, timeout throws(ApusError) in
                let party = entities.ref(EntityCell<CallPartyEntity>.self, client.party.address)
                let reply = try await party.ask(
                    CallListen.with { $0.listener = listener(number, client.endpoint.rawValue) }, timeout: timeout)
                numbers.set(number, reply.session)
            },
            withdraw: { number, client in
                numbers.remove(number)
                let party = entities.ref(EntityCell<CallPartyEntity>.self, client.party.address)
                try? party.tell(CallLeave.with { $0.listener = listener(number, client.endpoint.rawValue) })
            })
        let isAlive: @Sendable (String, UInt64) -> Bool = { [view] name, incarnation in
            view.map.members.contains {
                $0.id.name.rawValue == name && $0.id.incarnation == incarnation && $0.state.isAlive
            }
        }
        node.runtime.register(CallKind(configuration: configuration, node: view.local.name).definition)
        node.runtime.register(PartyKind(configuration: configuration, isAlive: isAlive).definition)
        let dispatcher = node.dispatcher
        dispatcher.onTell(CallDeliver.self) { [weak self] message in self?.deliver(message) }
        dispatcher.onOwnTell(CallPush.self) { message in pushes.yield(message) }
        dispatcher.onOwnTell(CallVoiceMessage.self) { [weak self] message in self?.record(message) }
        dispatcher.on(CallOrder.self) { [weak self] _, order throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            return try await place(order)
        }
        dispatcher.on(CallAccept.self) { [weak self] _, message throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            return try await accept(message)
        }
        dispatcher.onOwnTell(CallFinished.self) { [weak self] message in self?.finished.add(message.state) }
        media.register(self, for: .call)
    }

    package var work: [any Service] { [webhook, self] }

    // MARK: - Clients

    func sender(_ call: ClientCall) throws(ApusError) -> CallSender {
        let client = try Self.client(call.session)
        let session = call.connection.flatMap { connections.number(of: $0) }.flatMap { numbers[$0] }
        return CallSender(client.party, client.endpoint, session: session ?? 0)
    }

    static func client(_ session: Session) throws(ApusError) -> Client {
        if let device = session.device {
            return Client(party: .device(device), endpoint: session.access, session: session)
        }
        guard session.role == .app, session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "only devices call, and apps whose token is for the whole account")
        }
        return Client(party: try account(session.account.rawValue), endpoint: session.access, session: session)
    }

    static func account(_ name: String) throws(ApusError) -> CallParty {
        guard let account = AccountID(rawValue: name), name.utf8.count <= CallParty.accountByteCountMax
        else {
            throw ApusError(
                .callParametersInvalid,
                "an account that calls has a name of 1 to \(CallParty.accountByteCountMax) bytes")
        }
        return .account(account)
    }

    // MARK: - Who may be called

    /// Why a party may not call another: 8003, or 20011 if one of them is a disabled device. An account may call the
    /// devices that it may control; a device the accounts that may use it, and the devices of its account.
    ///
    /// - Returns: nil if it may.
    /// - Throws: −2501 for a device that the cluster does not know.
    func refusal(of called: CallParty, by caller: CallParty) async throws(ApusError) -> ApusError? {
        func record(_ party: CallParty) async throws(ApusError) -> DeviceRecord {
            guard let found = try await records.sessions.record(of: DeviceID(unchecked: party.id)) else {
                throw ApusError(.callRequestFailed, "no such device")
            }
            return found
        }
        var devices: [DeviceRecord] = []
        let isAllowed: Bool
        switch (caller.kind, called.kind) {
        case (.account, .device):
            devices = [try await record(called)]
            let right = devices[0].right(of: AccountID(unchecked: caller.id))
            isAllowed = right == .own || right == .control
        case (.device, .account):
            devices = [try await record(caller)]
            isAllowed = devices[0].right(of: AccountID(unchecked: called.id)) != nil
        case (.device, .device):
            devices = [try await record(caller), try await record(called)]
            isAllowed = devices[0].account != nil && devices[0].account == devices[1].account
        default: isAllowed = false
        }
        // Without a right, the answer does not reveal that the device is disabled.
        guard isAllowed else { return ApusError(.illegalRelation) }
        return devices.contains(where: \.isDisabled) ? ApusError(.deviceDisabled) : nil
    }

    // MARK: - Connections

    /// The connection takes calls from now on. Throws 12004 if it is neither a device's nor an app's.
    func listen(_ call: ClientCall) async throws(ApusError) {
        guard let connection = call.connection else { throw ApusError(.notAllowed) }
        try await connections.listen(connection, try Self.client(call.session), timeout: try call.timeLeft())
    }

    private func record(_ message: CallVoiceMessage) {
        guard let id = CallID(rawValue: message.call), let call = try? ref(id) else { return }
        machines.record(message) { report in
            let kind: CallNoteKind =
                switch report {
                case .stored: .messageStored
                case .full: .messageFull
                }
            // A call that is not reached repeats its request.
            try? call.tell(CallNote.with { $0.kind = kind })
        }
    }

    /// The shard of a call; nil for an invalid id.
    package static func shard(of call: String) -> ShardID? {
        guard let id = CallID(rawValue: call) else { return nil }
        return (try? id.address())?.shard
    }

    func leave(_ connection: any ClientConnection) { connections.leave(connection) }

    private func deliver(_ message: CallDeliver) {
        guard let found = connections.entry(message.number), found.key.party == message.party else {
            // The notice that it has ended was lost.
            let leave = CallLeave.with { $0.listener = listener(message.number, "") }
            try? ref(message.party).tell(leave)
            return
        }
        guard !message.notice.mediaEnded else {
            let call = CallID(unchecked: message.notice.call)
            media.end(.init(connection: ObjectIdentifier(found.connection), call: call), ApusError(.callUnknown))
            return
        }
        notices.increment()
        var notice = ClientCallNotice(message.notice, nowMs: view.clock.wallMilliseconds())
        if notice.stage == .accepted, !notice.message, let grant = sessions.relayGrant(for: found.key.session) {
            notice.relay = ClientRelayCredentialsResponse(grant)
        }
        let frame = ClientEventFrame(
            topic: "\(Self.topicKind)/\(Self.ownKey)", type: ClientCallNotice.info.number,
            message: (try? notice.serializedBytes()) ?? [])
        found.connection.send([frame])
    }

    // MARK: - Entities

    func ref(_ party: CallParty) -> EntityRef<EntityCell<CallPartyEntity>> {
        entities.ref(EntityCell<CallPartyEntity>.self, party.address)
    }

    func ref(_ id: CallID) throws(ApusError) -> EntityRef<EntityCell<CallEntity>> {
        entities.ref(EntityCell<CallEntity>.self, try id.address())
    }

    /// Announces connections to new owners, and writes records, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.connections.run() }
                group.addTask { await self.finished.run(atMost: Self.writesMax) { await self.writeRecord(of: $0) } }
                group.addTask { await self.checkMedia() }
                group.addTask { await self.pushNotices() }
                group.addTask { await self.measure() }
            }
        }
    }

    private func writeRecord(of state: CallState) async {
        guard let id = CallID(rawValue: state.id), let call = try? ref(id) else { return }
        do throws(ApusError) {
            // Before the record: if this node dies in between, the call repeats the request, since it has no record.
            try await notifyEnd(of: EndedCall(state))
            try await records.write(state)
            try call.tell(CallNote.with { $0.kind = .recordWritten })
        } catch {
            // The call repeats the request.
            log.debug("The record of a call cannot be written", metadata: Logger.facts(of: error))
        }
    }

    /// Publishes the end of a call, for its parties and their hooks. It is published again if this throws, or if the
    /// node dies before the record is written.
    private func notifyEnd(of call: EndedCall) async throws(ApusError) {
        let parties = Dictionary(grouping: call.parties, by: \.kind)
        try await events.ended(
            call: call.id, reason: call.reason, json: call.json,
            devices: (parties[.device] ?? []).map { DeviceID(unchecked: $0.id) },
            accounts: (parties[.account] ?? []).map { AccountID(unchecked: $0.id) }, at: call.endedMs)
    }

    private func measure() async {
        while (try? await Task.sleep(for: Self.lookInterval)) != nil { listening.record(connections.count) }
    }
}

/// The sessions of connections, by their numbers.
private final class Numbers: Sendable {
    private let sessions = Mutex<[UInt64: UInt64]>([:])

    subscript(number: UInt64) -> UInt64? { sessions.withLock { $0[number] } }
    func set(_ number: UInt64, _ session: UInt64) { sessions.withLock { $0[number] = session } }
    func remove(_ number: UInt64) { sessions.withLock { $0[number] = nil } }
}

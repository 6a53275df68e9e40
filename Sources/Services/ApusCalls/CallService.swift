import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import CoreMetrics
import Foundation
package import Logging
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Calls at this node: requests of clients, and the connections that take calls (CALL-4 to CALL-11, docs/calls.md).
///
/// A call is at the owner of the shard of its first called party. It claims its parties, and sends notices to them; the
/// owner of a party knows the connections of its clients, and sends the notice to their nodes. Every message may be
/// lost: the call sends again what is not confirmed.
///
/// Concurrency model: any thread. A `Mutex` guards the numbers of sessions.
package final class CallService: Service, Sendable {
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
    private let onEnded: @Sendable (EndedCall) async throws(ApusError) -> Void
    let log: Logger
    let limited: LogLimiter
    private let entities: EntityRegistry
    private let connections: AnnouncedConnections<Client>
    /// What the party has given each connection, by its number.
    private let numbers: Numbers
    /// A connection as parties know it, by its number and its endpoint.
    private let listener: @Sendable (UInt64, String) -> CallListener
    /// By account: a device's calls count for its account.
    private let starts: Mutex<RateLimiter<String>>
    /// Calls whose records are to be written.
    private let finished: AsyncStream<CallState>
    private let finishedFeed: AsyncStream<CallState>.Continuation
    private let placed = Counter(label: "apus_calls_placed_total")
    private let notices = Counter(label: "apus_calls_notices_total")
    private let listening = Gauge(label: "apus_calls_connections")
    let media: CallMediaTable
    let pusher: any CallPusher
    private let machines: any AnsweringMachines
    /// Apps to be notified by push.
    let pushes: AsyncStream<CallPush>

    /// Records that wait to be written. One more is left out: its call asks again.
    private static let finishedMax = 1024
    /// Apps that wait to be notified by push. One more is left out: its call asks again.
    private static let pushesMax = 1024
    /// Records that are written at once.
    private static let writesMax = 32
    private static let lookInterval = Duration.milliseconds(500)

    /// Registers the kinds of entities, and the messages between nodes. Created once, before the node is a member.
    ///
    /// - Parameter onEnded: called for each call that has ended, before its record is written; again if it throws, and
    ///   if the node dies meanwhile.
    package init(
        _ configuration: CallConfiguration, _ view: ClusterView, _ entities: EntityRegistry,
        _ sessions: SessionService, _ store: any RecordStore, _ runtime: EntityRuntime, _ dispatcher: NodeDispatcher,
        pusher: any CallPusher, machines: any AnsweringMachines, log: Logger,
        onEnded: @escaping @Sendable (EndedCall) async throws(ApusError) -> Void
    ) {
        (self.pusher, self.machines, self.onEnded) = (pusher, machines, onEnded)
        let (pushes, pushFeed) = AsyncStream<CallPush>.makeStream(bufferingPolicy: .bufferingOldest(Self.pushesMax))
        self.pushes = pushes
        (self.configuration, self.view, self.entities, self.sessions) = (configuration, view, entities, sessions)
        (records, self.log, limited) = (CallRecords(store), log, LogLimiter(log))
        media = CallMediaTable(interval: configuration.mediaCheckInterval)
        (finished, finishedFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingOldest(Self.finishedMax))
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
        runtime.register(CallKind(configuration: configuration, node: view.local.name).definition)
        runtime.register(PartyKind(configuration: configuration, isAlive: isAlive).definition)
        dispatcher.onTell(CallDeliver.self) { [weak self] message in self?.deliver(message) }
        dispatcher.onTell(CallPush.self) { message in pushFeed.yield(message) }
        dispatcher.onTell(CallRecording.self) { [weak self] message in self?.record(message) }
        dispatcher.onTell(CallFinished.self) { [weak self] message in self?.finishedFeed.yield(message.state) }
    }

    // MARK: - Requests

    /// Places a call (CALL-6).
    ///
    /// - Throws: 10007 after too many calls of this account, −2500 if a parameter is out of range, −2501 for a party
    ///   that the cluster does not know, 8003 and 12004 for one that this client may not call, 20011 for a device that
    ///   is disabled, 8000 if no called party has a client that takes calls, 21025 for a connection that takes none,
    ///   21031 for an id that is not valid.
    func start(_ request: ClientStartCallRequest, _ call: ClientCall) async throws(ApusError) -> ClientCallInfo {
        let sender = try sender(call)
        guard let connection = call.connection, connections.number(of: connection) != nil else {
            throw ApusError(.unavailable, "who calls subscribes to \(Self.topicKind)/\(Self.ownKey) first")
        }
        guard starts.withLock({ $0.take(call.session.account.rawValue, at: .now()) }) else {
            throw ApusError(.overloaded, "the account places too many calls; try again later")
        }
        let number = try Self.number(request) ?? RequestID(high: .random(in: 0...(.max)), low: .random(in: 0...(.max)))
        let type = CallType(rawValue: Int(request.type)) ?? .unspecified
        let parties = try await parties(request, call)
        if request.again, let first = parties.first {
            let known = CallID(shard: first.address.shard, number)
            if let view = try await placed(known, by: sender, call) { return ClientCallInfo(known, view) }
        }
        var called: [[CallCallee]] = []
        for party in parties { called.append(try await callees(of: party, call)) }
        var callees = Self.inTurn(called, countMax: configuration.legsMax)
        let machine = await machines.machine(of: parties)
        if callees.isEmpty, let machine { callees = [.with { ($0.party, $0.absent) = (machine.party, true) }] }
        guard let first = parties.first, !callees.isEmpty else {
            throw ApusError(.targetOffline, "no client of the called parties takes calls")
        }
        let id = CallID(shard: first.address.shard, number)
        let place = CallPlace.with {
            ($0.type, $0.caller, $0.endpoint, $0.session) = (
                type, sender.party, sender.endpoint.rawValue, sender.session
            )
            ($0.callees, $0.extra) = (callees, Data(request.extra.utf8))
            $0.timeoutMs = Int64(request.timeoutSeconds) * 1000
            if let machine { $0.answering = machine }
        }
        let view = try await ref(id).ask(place, timeout: try call.timeLeft(), call: call.entityCall)
        placed.increment()
        return ClientCallInfo(id, view)
    }

    /// The number in the session id that the client has chosen; nil if it leaves that to the cluster.
    private static func number(_ request: ClientStartCallRequest) throws(ApusError) -> RequestID? {
        guard !request.id.isEmpty else { return nil }
        let (high, low) = (request.id.prefix(16), request.id.dropFirst(16))
        guard request.id.utf8.count == 32, request.id.allSatisfy({ $0.isASCII && $0.isHexDigit }),
            let high = UInt64(high, radix: 16), let low = UInt64(low, radix: 16)
        else { throw ApusError(.badParameter, "the id of a call has 32 hexadecimal digits") }
        return RequestID(high: high, low: low)
    }

    /// The caller's view of a call that an earlier request with the same id has placed; nil if none has. Asked before
    /// the called parties are looked up: their clients may be away by now.
    private func placed(
        _ id: CallID, by sender: CallSender, _ call: ClientCall
    ) async throws(ApusError) -> CallLegView? {
        let report = CallReport.with {
            ($0.party, $0.endpoint, $0.session) = (sender.party, sender.endpoint.rawValue, sender.session)
            // A confirmation of no stage changes nothing.
            $0.kind = .confirmed
        }
        do throws(ApusError) {
            return try await ref(id).ask(report, timeout: try call.timeLeft())
        } catch {
            guard error.code == .callUnknown else { throw error }
            return nil
        }
    }

    /// The first of each list, then the second of each, and so on: no party takes the legs of another.
    private static func inTurn(_ lists: [[CallCallee]], countMax: Int) -> [CallCallee] {
        var callees: [CallCallee] = []
        for place in 0..<(lists.map(\.count).max() ?? 0) {
            callees += lists.filter { $0.count > place }.map { $0[place] }
        }
        return Array(callees.prefix(countMax))
    }

    /// Reports an event of the client's leg.
    ///
    /// - Throws: as ``CallStateMachine/handle(_:from:at:_:)-(CallEvent,_,_,_)``.
    func report(_ request: ClientReportCallRequest, _ call: ClientCall) async throws(ApusError) -> ClientCallInfo {
        let sender = try sender(call)
        guard let id = CallID(rawValue: request.call) else { throw ApusError(.callUnknown) }
        let kind = CallEventKind(rawValue: request.event.rawValue) ?? .unspecified
        guard (CallEventKind.joined.rawValue...CallEventKind.confirmed.rawValue).contains(kind.rawValue) else {
            throw ApusError(.callParametersInvalid, "the event is not one of a client")
        }
        // Whoever has media, or asks for them, is checked again there (right(of:in:)).
        if kind == .accepted { try await checkRights(of: sender, in: id, call) }
        let report = CallReport.with {
            ($0.party, $0.endpoint, $0.session) = (sender.party, sender.endpoint.rawValue, sender.session)
            ($0.kind, $0.number) = (kind, request.code)
            $0.stage = CallStage(rawValue: request.stage.rawValue) ?? .unspecified
        }
        return ClientCallInfo(id, try await ref(id).ask(report, timeout: try call.timeLeft()))
    }

    /// An account may have lost its right to the device since the call began, or the device may have been disabled. The
    /// leg then leaves, which ends the call if it is one of two.
    ///
    /// - Throws: 8003, 20011.
    private func checkRights(of sender: CallSender, in id: CallID, _ call: ClientCall) async throws(ApusError) {
        let parties = try await ref(id).ask(
            CallPeek.with { ($0.party, $0.endpoint) = (sender.party, sender.endpoint.rawValue) },
            timeout: try call.timeLeft())
        var found: ApusError? = ApusError(.illegalRelation)
        if sender.party == parties.caller {
            for called in parties.called where found != nil {
                found = try await refusal(of: called, by: sender.party)
            }
        } else {
            found = try await refusal(of: sender.party, by: parties.caller)
        }
        guard let error = found else { return }
        let leave = CallReport.with {
            ($0.party, $0.endpoint, $0.session) = (sender.party, sender.endpoint.rawValue, sender.session)
            $0.kind = .hungUp
        }
        _ = try? await ref(id).ask(leave, timeout: try call.timeLeft())
        throw error
    }

    private func sender(_ call: ClientCall) throws(ApusError) -> CallSender {
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

    private static func account(_ name: String) throws(ApusError) -> CallParty {
        guard let account = AccountID(rawValue: name), name.utf8.count <= CallParty.accountByteCountMax
        else {
            throw ApusError(
                .callParametersInvalid,
                "an account that calls has a name of 1 to \(CallParty.accountByteCountMax) bytes")
        }
        return .account(account)
    }

    // MARK: - Who may be called

    /// The parties that a request names, and that this client may call.
    private func parties(
        _ request: ClientStartCallRequest, _ call: ClientCall
    ) async throws(ApusError) -> [CallParty] {
        guard request.targets.count <= configuration.legsMax else {
            throw ApusError(.callParametersInvalid, "a call has at most \(configuration.legsMax) called parties")
        }
        guard let device = call.session.device else {
            var parties: [CallParty] = []
            for target in request.targets { parties.append(try await devicePartyOfApp(target, call)) }
            return try Self.unique(parties)
        }
        guard !request.targets.isEmpty else { return [try Self.account(call.session.account.rawValue)] }
        var parties: [CallParty] = []
        for target in request.targets {
            let party = try target.device.isEmpty ? Self.account(target.account) : .device(Self.device(target))
            if let error = try await refusal(of: party, by: .device(device)) { throw error }
            parties.append(party)
        }
        return try Self.unique(parties)
    }

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
        // Who has no right does not learn that the device is disabled.
        guard isAllowed else { return ApusError(.illegalRelation) }
        return devices.contains(where: \.isDisabled) ? ApusError(.deviceDisabled) : nil
    }

    private func devicePartyOfApp(
        _ target: ClientCallParty, _ call: ClientCall
    ) async throws(ApusError) -> CallParty {
        let device = try Self.device(target)
        let answer = await sessions.inspect(device, for: call.session, subscribe: false, control: true)
        do throws(ApusError) {
            _ = try answer.get()
        } catch {
            throw error.code == .targetUnknown ? ApusError(.callRequestFailed, "no such device") : error
        }
        return .device(device)
    }

    private static func device(_ target: ClientCallParty) throws(ApusError) -> DeviceID {
        guard let device = DeviceID(rawValue: target.device), target.account.isEmpty else {
            throw ApusError(.callParametersInvalid, "a called party is a device, or an account that a device calls")
        }
        return device
    }

    private static func unique(_ parties: [CallParty]) throws(ApusError) -> [CallParty] {
        guard !parties.isEmpty else { throw ApusError(.callParametersInvalid, "a call has a called party") }
        guard Set(parties).count == parties.count else {
            throw ApusError(.callParametersInvalid, "a party is called twice")
        }
        return parties
    }

    // MARK: - Connections

    /// The connection takes calls from now on. Throws 12004 if it is neither a device's nor an app's.
    func listen(_ call: ClientCall) async throws(ApusError) {
        guard let connection = call.connection else { throw ApusError(.notAllowed) }
        try await connections.listen(connection, try Self.client(call.session), timeout: try call.timeLeft())
    }

    private func record(_ message: CallRecording) {
        guard let id = CallID(rawValue: message.call), let call = try? ref(id) else { return }
        machines.record(message) { report in
            let kind: CallNoteKind =
                switch report {
                case .stored: .messageStored
                case .full: .messageFull
                }
            // A call that is not reached asks again.
            try? call.tell(CallNote.with { $0.kind = kind })
        }
    }

    /// The shard of a call; nil if its id is none.
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
                group.addTask { await self.writeRecords() }
                group.addTask { await self.checkMedia() }
                group.addTask { await self.pushNotices() }
                group.addTask { await self.measure() }
            }
        }
    }

    private func writeRecords() async {
        await withTaskGroup(of: Void.self) { group in
            var count = 0
            for await state in finished {
                // The store commits those together that come together.
                if count >= Self.writesMax { await group.next() } else { count += 1 }
                group.addTask { await self.writeRecord(of: state) }
            }
        }
    }

    private func writeRecord(of state: CallState) async {
        guard let id = CallID(rawValue: state.id), let call = try? ref(id) else { return }
        do throws(ApusError) {
            // First: when this node dies meanwhile, the call asks again as long as it has no record.
            try await onEnded(EndedCall(state))
            try await records.write(state)
            try call.tell(CallNote.with { $0.kind = .recordWritten })
        } catch {
            // The call asks again.
            log.debug("The record of a call cannot be written", metadata: Logger.facts(of: error))
        }
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

package import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
package import ApusThings
import ApusWire
import CoreMetrics
import Foundation
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// The commands of devices at this node: requests of apps, connections of devices, and requests that wait (IV-D5,
/// IV-D11, IV-D15, docs/commands.md).
///
/// A command is in the queue of its device (``CommandState``) before its request is answered. The queue sends it to the
/// nodes of the device's connections, and notifies the nodes whose requests wait for it. Both messages may be lost: the
/// queue sends an unacknowledged command again, and a request that waits asks again.
///
/// Concurrency model: any thread. A `Mutex` guards the table of requests.
package final class CommandService: Service, DeviceReader, Sendable {
    private static let collection = EntityCollection<CommandState>("commands", kind: .commands, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topic by which a device takes commands, and its only key.
    package static let topicKind = "commands"
    static let ownKey = "own"

    /// Two devices may have commands with the same id.
    private struct Waiting: Hashable {
        let device: String
        let id: Data
    }

    private typealias Waits = [Waiting: [CommandWait]]

    let configuration: CommandConfiguration
    private let view: ClusterView
    private let entities: EntityRegistry
    let sessions: SessionService
    private let products: ProductService
    private let connections: AnnouncedConnections<DeviceID>
    private let waiting = Mutex(Waits())
    private let deliveries = Counter(label: "apus_command_deliveries_total")
    private let listenerGauge = Gauge(label: "apus_command_connections")
    private let waitingGauge = Gauge(label: "apus_command_waiting")

    private static let lookInterval = Duration.milliseconds(100)
    private static let askTimeout = Duration.seconds(3)
    /// A request asks again after this time, and then after twice the time before.
    private static let askAgainMin = Duration.milliseconds(200)
    private static let askAgainMax = Duration.seconds(2)

    /// Registers the kinds of entities, and the messages between nodes. Created once, before the node is a member.
    package init(
        _ configuration: CommandConfiguration, _ view: ClusterView, _ entities: EntityRegistry,
        _ sessions: SessionService, _ products: ProductService, _ runtime: EntityRuntime, _ dispatcher: NodeDispatcher
    ) {
        (self.configuration, self.view, self.entities, self.sessions) = (configuration, view, entities, sessions)
        self.products = products
        let node = view.local.name.rawValue
        connections = AnnouncedConnections(
            view: view, shard: { CommandQueue.live.address($0).shard },
            announce: { number, device, timeout throws(ApusError) in
                let listen = CommandListen.with { $0.listener = CommandListener(node, number) }
                for queue in CommandQueue.allCases {
                    _ = try await entities.ref(EntityCell<CommandState>.self, queue.address(device))
                        .ask(listen, timeout: timeout)
                }
            },
            withdraw: { number, device in Self.withdraw(number, device, of: node, entities) })
        runtime.register(CommandQueue.kept.definition(configuration), in: Self.collection)
        runtime.register(CommandQueue.live.definition(configuration))
        dispatcher.onTell(CommandDeliver.self) { [weak self] message in self?.deliver(message) }
        dispatcher.onTell(CommandReached.self) { [weak self] message in self?.reached(message) }
    }

    private func ref(_ queue: CommandQueue, _ device: DeviceID) -> EntityRef<EntityCell<CommandState>> {
        entities.ref(EntityCell<CommandState>.self, queue.address(device))
    }

    // MARK: - Apps

    /// Sends a command, and waits until it has a status.
    ///
    /// - Parameters:
    ///   - ttl: nil: the device must not be offline, and the command ends at the deadline.
    ///   - until: the status to wait for.
    /// - Throws: 8000 if the device is offline and there is no time to live, 8002, 8003 and 12004 if this client has no
    ///   such device, 20101 and 20102 if the schema of the device's product does not allow the action or its argument,
    ///   21002 if the status is not reached in time; otherwise as ``CommandState/submit(_:_:at:_:)``.
    func send(
        _ content: CommandContent, id: Data, to device: DeviceID, noAnswer: Bool, ttl: Duration?, until: CommandStatus,
        _ call: ClientCall
    ) async throws(ApusError) -> CommandEntry {
        let presence = try await sessions.inspect(device, for: call.session, subscribe: false, control: true).get()
        if let action = content.action {
            try Self.check(action, ttl: ttl, call.session)
            try await products.checkAction(
                action, json: ArraySlice(content.bytes), of: device, timeout: try call.timeLeft())
        }
        return try await submit(
            content, id: id, to: device, presence, noAnswer: noAnswer, ttl: ttl, until: until, call)
    }

    /// Checks a request for local access (docs/local-access.md); other actions need no further right.
    ///
    /// - Throws: 12004 if the token is for certain devices only, which does not include access that outlasts it; 21031
    ///   if the command is to be kept.
    private static func check(_ action: String, ttl: Duration?, _ session: Session) throws(ApusError) {
        guard action == ClientCheckLocalAccessRequest.action else { return }
        guard session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is for certain devices only")
        }
        guard ttl == nil else { throw ApusError(.badParameter, "local access is given at once, or not at all") }
    }

    /// As ``send(_:id:to:noAnswer:ttl:until:_:)``, for a client that may do so.
    private func submit(
        _ content: CommandContent, id: Data, to device: DeviceID, _ presence: Presence, noAnswer: Bool, ttl: Duration?,
        until: CommandStatus, _ call: ClientCall
    ) async throws(ApusError) -> CommandEntry {
        guard ttl != nil || presence.online != .offline else { throw ApusError(.targetOffline) }
        let waiter = CommandWaiter.with { ($0.node, $0.until) = (view.local.name.rawValue, until) }
        let submit = CommandSubmit.with {
            ($0.id, $0.path, $0.content, $0.noAnswer) = (id, content.path, content.bytes, noAnswer)
            ($0.sender, $0.waiter) = (call.session.access.rawValue, waiter)
            if content.action == ClientCheckLocalAccessRequest.action {
                $0.origin = .with {
                    ($0.user, $0.expiresS) = (RelayUser(call.session).text, call.session.token.expires)
                }
            }
        }
        let wait = CommandWait(until: until)
        let key = Waiting(device: device.rawValue, id: id)
        begin(wait, for: key)
        defer { end(wait, for: key) }
        let left = try call.timeLeft()
        let isShort = content.bytes.count <= CommandConfiguration.liveContentByteCountMax
        let queue = ref(ttl == nil && isShort ? .live : .kept, device)
        let submitted = try await queue.ask(
            submit.with(ttl: ttl ?? left), timeout: left, call: call.entityCall.withoutRequest)
        var entry = submitted.entry
        var pause = Self.askAgainMin
        while !entry.hasReached(until) {
            guard !Task.isCancelled else { throw ApusError(.cancelled) }
            let left = call.deadline - .now()
            guard left > .zero else { throw entry.timedOut }
            if let reached = await wait.reached(within: min(pause, left)) { return reached }
            guard call.deadline > .now() else { throw entry.timedOut }
            let again = CommandAwait.with { ($0.id, $0.waiter) = (id, waiter) }
            let report = try? await queue.ask(again, timeout: min(Self.askTimeout, call.deadline - .now()))
            if let report {
                guard report.hasEntry else {
                    throw ApusError(.answerTimedOut, "nothing is known of the command any more")
                }
                entry = report.entry
            }
            pause = min(pause * 2, Self.askAgainMax)
        }
        return entry
    }

    package func value(
        of leaf: String, _ device: DeviceID, _ presence: Presence, _ call: ClientCall
    ) async throws(ApusError) -> (json: String, timeMs: Int64) {
        let entry = try await submit(
            CommandContent(reading: leaf), id: CommandContent.randomID(), to: device, presence, noAnswer: false,
            ttl: nil, until: .answered, call)
        guard entry.code == 0 else { throw ApusError(ErrorCode(number: entry.code), entry.message) }
        return (try JSONValue(checking: String(decoding: entry.answer, as: UTF8.self)).text, entry.changedMs)
    }

    func read(_ device: DeviceID, id: Data, _ call: ClientCall) async throws(ApusError) -> CommandReadReply {
        try await inspect(device, call)
        let read = CommandRead.with { $0.id = id }
        let live = try await ref(.live, device).ask(read, timeout: try call.timeLeft())
        var both = try await ref(.kept, device).ask(read, timeout: try call.timeLeft())
        let all = both.entries + live.entries
        both.entries =
            all.filter { !$0.hasEnded }.sorted { $0.createdMs < $1.createdMs }
            + all.filter(\.hasEnded).sorted { $0.changedMs > $1.changedMs }
        return both
    }

    func cancel(_ device: DeviceID, id: Data, _ call: ClientCall) async throws(ApusError) -> CommandEntry {
        try await inspect(device, call)
        let cancel = CommandCancel.with { $0.id = id }
        var unknown = ApusError(.targetUnknown)
        for queue in CommandQueue.allCases {
            do throws(ApusError) {
                return try await ref(queue, device).ask(cancel, timeout: try call.timeLeft()).entry
            } catch {
                guard error.code == .targetUnknown else { throw error }
                unknown = error
            }
        }
        throw unknown
    }

    func setOrder(_ order: CommandOrder, of device: DeviceID, _ call: ClientCall) async throws(ApusError) {
        try await inspect(device, call)
        for queue in CommandQueue.allCases {
            _ = try await ref(queue, device).ask(
                CommandSetOrder.with { $0.order = order }, timeout: try call.timeLeft())
        }
    }

    private func inspect(_ device: DeviceID, _ call: ClientCall) async throws(ApusError) {
        _ = try await sessions.inspect(device, for: call.session, subscribe: false, control: true).get()
    }

    // MARK: - Requests that wait

    private func begin(_ wait: CommandWait, for key: Waiting) {
        waiting.withLock { $0[key, default: []].append(wait) }
    }

    private func end(_ wait: CommandWait, for key: Waiting) {
        waiting.withLock { waiting in
            waiting[key]?.removeAll { $0 === wait }
            if waiting[key]?.isEmpty ?? false { waiting[key] = nil }
        }
    }

    private func reached(_ message: CommandReached) {
        let key = Waiting(device: message.device, id: message.entry.id)
        for wait in waiting.withLock({ $0[key] }) ?? [] { wait.reached(message.entry) }
    }

    // MARK: - Devices

    /// The connection of a device takes commands from now on.
    ///
    /// - Throws: 12004 if it is not a device's.
    func listen(_ call: ClientCall) async throws(ApusError) {
        guard let device = call.session.device, let connection = call.connection else {
            throw ApusError(.notAllowed, "only a device takes commands")
        }
        try await connections.listen(connection, device, timeout: try call.timeLeft())
    }

    /// The connection takes no commands any more, or has ended.
    func leave(_ connection: any ClientConnection) { connections.leave(connection) }

    /// A queue that misses it is notified with the next delivery.
    private static func withdraw(_ number: UInt64, _ device: DeviceID, of node: String, _ entities: EntityRegistry) {
        let leave = CommandLeave.with { $0.listener = CommandListener(node, number) }
        for queue in CommandQueue.allCases {
            try? entities.ref(EntityCell<CommandState>.self, queue.address(device)).tell(leave)
        }
    }

    private func deliver(_ message: CommandDeliver) {
        guard let device = DeviceID(rawValue: message.device) else { return }
        guard let found = connections.entry(message.number), found.key == device else {
            return Self.withdraw(message.number, device, of: view.local.name.rawValue, entities)
        }
        deliveries.increment()
        let event = ClientCommandDelivery(message)
        let frame = ClientEventFrame(
            topic: "\(Self.topicKind)/\(Self.ownKey)", type: ClientCommandDelivery.info.number,
            message: (try? event.serializedBytes()) ?? [])
        found.connection.send([frame])
    }

    func acknowledge(_ ids: [Data], _ call: ClientCall) async throws(ApusError) {
        let device = try Self.device(call)
        let message = CommandAcknowledge.with { $0.ids = ids }
        let reply = try await ref(.live, device).ask(message, timeout: try call.timeLeft())
        guard !reply.unknown.isEmpty else { return }
        let others = CommandAcknowledge.with { $0.ids = reply.unknown }
        _ = try await ref(.kept, device).ask(others, timeout: try call.timeLeft())
    }

    func answer(_ message: CommandAnswer, _ call: ClientCall) async throws(ApusError) {
        let device = try Self.device(call)
        let reply = try await ref(.live, device).ask(message, timeout: try call.timeLeft())
        if !reply.isKnown { _ = try await ref(.kept, device).ask(message, timeout: try call.timeLeft()) }
    }

    private static func device(_ call: ClientCall) throws(ApusError) -> DeviceID {
        guard let device = call.session.device else { throw ApusError(.notAllowed, "only a device answers commands") }
        return device
    }

    /// Announces connections to new owners, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.watch() }
                group.addTask { await self.connections.run() }
            }
        }
    }

    private func watch() async {
        while (try? await Task.sleep(for: Self.lookInterval)) != nil {
            let now = MonotonicTime.now()
            let waits = waiting.withLock { $0.values.flatMap(\.self) }
            for wait in waits { wait.look(now: now) }
            listenerGauge.record(connections.count)
            waitingGauge.record(waits.count)
        }
    }
}

extension CommandListener {
    fileprivate init(_ node: String, _ number: UInt64) {
        self.init()
        (self.node, self.number) = (node, number)
    }
}

extension CommandSubmit {
    fileprivate func with(ttl: Duration) -> CommandSubmit {
        var submit = self
        submit.ttlMs = Int64(ttl.milliseconds)
        return submit
    }
}

extension EntityCall {
    /// The command's own id makes a repetition harmless.
    fileprivate var withoutRequest: EntityCall {
        var call = self
        call.request = nil
        return call
    }
}

extension CommandEntry {
    fileprivate var timedOut: ApusError { ApusError(.answerTimedOut, "the command is \(status.word)") }
}

extension CommandStatus {
    /// For people.
    package var word: String {
        switch self {
        case .queued: "queued"
        case .sent: "sent, and not acknowledged"
        case .acknowledged: "acknowledged, and not answered"
        case .answered: "answered"
        case .failed: "failed"
        case .expired: "expired"
        case .unspecified, .UNRECOGNIZED: "unknown"
        }
    }
}

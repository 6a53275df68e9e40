package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusSessions
package import ApusStorage
import ApusThings
import ApusWire
import CoreMetrics
import Foundation
package import ServiceLifecycle
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
package final class CommandService: NodeService, Service, DeviceReader, RelationObserver {
    package static let name = "Commands"
    private static let collection = EntityCollection<CommandState>("commands", kind: .commands, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topic by which a device takes commands, and its only key.
    package static let topicKind = "commands"
    static let ownKey = "own"

    /// Two devices may have commands with the same id.
    struct Waiting: Hashable {
        let device: String
        let id: Data
    }

    private typealias Waits = [Waiting: [CommandWait]]

    let configuration: CommandConfiguration
    let view: ClusterView
    let entities: EntityRegistry
    let sessions: SessionService
    let products: ProductService
    /// Who may use each device.
    let devices: SessionRecords
    /// Queues that wait for the check of rights. One more is left out: it asks again.
    let checks: WorkQueue<CommandCheck>
    private let connections: AnnouncedConnections<DeviceID>
    /// Connections of devices that sleep, and that take commands when they are awake.
    private let asleep = Mutex<Set<ObjectIdentifier>>([])
    private let waiting = Mutex(Waits())
    private let deliveries = Counter(label: "apus_command_deliveries_total")
    private let listenerGauge = Gauge(label: "apus_command_connections")
    private let waitingGauge = Gauge(label: "apus_command_waiting")

    private static let lookInterval = Duration.milliseconds(100)
    private static let checksMax = 4096

    package init(_ configuration: CommandConfiguration, of node: NodeContext) throws(ApusError) {
        let (view, entities, runtime, dispatcher) = (node.view, node.entities, node.runtime, node.dispatcher)
        (self.configuration, self.view, self.entities, sessions) = (configuration, view, entities, node.sessions)
        (products, devices) = (try node.ports.one(ProductService.self), SessionRecords(node.records))
        let checks = WorkQueue<CommandCheck>(countMax: Self.checksMax)
        self.checks = checks
        let name = view.local.name
        connections = AnnouncedConnections(
            view: view, shard: { CommandQueue.live.address($0).shard },
            announce: { number, device, timeout throws(ApusError) in
                let listen = CommandListen.with { $0.listener = CommandListener(name.rawValue, number) }
                for queue in CommandQueue.allCases {
                    _ = try await entities.ref(EntityCell<CommandState>.self, queue.address(device))
                        .ask(listen, timeout: timeout)
                }
            },
            withdraw: { number, device in Self.withdraw(number, device, of: name.rawValue, entities) })
        runtime.register(CommandQueue.kept.definition(configuration, node: name), in: Self.collection)
        runtime.register(CommandQueue.live.definition(configuration, node: name))
        dispatcher.onOwnTell(CommandCheck.self) { message in checks.add(message) }
        dispatcher.onTell(CommandDeliver.self) { [weak self] message in self?.deliver(message) }
        dispatcher.on(CommandRun.self) { [weak self] _, message throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            return try await run(message)
        }
        dispatcher.onTell(CommandReached.self) { [weak self] message in self?.reached(message) }
        node.ports.provide(self)
        node.ports.provide(self, as: (any DeviceReader).self)
        node.ports.provide(self, as: (any RelationObserver).self)
    }

    package var work: [any Service] { [self] }

    func ref(_ queue: CommandQueue, _ device: DeviceID) -> EntityRef<EntityCell<CommandState>> {
        entities.ref(EntityCell<CommandState>.self, queue.address(device))
    }

    // MARK: - Apps

    /// One command, or all, without those of accounts that have lost their right to the device.
    func read(_ device: DeviceID, id: Data, _ call: ClientCall) async throws(ApusError) -> CommandReadReply {
        try await inspect(device, call)
        let read = CommandRead.with { $0.id = id }
        let live = try await ref(.live, device).ask(read, timeout: try call.timeLeft())
        var both = try await ref(.kept, device).ask(read, timeout: try call.timeLeft())
        let all = try await visible(both.entries + live.entries, of: device, to: call.session.account)
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

    func begin(_ wait: CommandWait, for key: Waiting) {
        waiting.withLock { $0[key, default: []].append(wait) }
    }

    func end(_ wait: CommandWait, for key: Waiting) {
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

    /// The connection of a device takes commands from now on, or, if the device sleeps, when it is awake.
    ///
    /// - Throws: 12004 if it is not a device's.
    func listen(_ call: ClientCall) async throws(ApusError) {
        guard let device = call.session.device, let connection = call.connection else {
            throw ApusError(.notAllowed, "only a device takes commands")
        }
        let isAsleep = sessions.isAsleep(call.session)
        pause(connection, isAsleep)
        if !isAsleep { try await connections.listen(connection, device, timeout: try call.timeLeft()) }
    }

    /// The device sleeps from now on: it receives no command, also none that is on its way to this node. Or it is
    /// awake.
    func slept(_ isAsleep: Bool, _ call: ClientCall) async throws(ApusError) {
        guard let device = call.session.device, let connection = call.connection else { return }
        if isAsleep {
            guard connections.number(of: connection) != nil else { return }
            pause(connection, true)
        } else if pause(connection, false) {
            try await connections.listen(connection, device, timeout: try call.timeLeft())
        }
    }

    /// Notes that the device of a connection sleeps and takes no commands, or is awake. Returns true if it slept
    /// before.
    @discardableResult
    private func pause(_ connection: any ClientConnection, _ isAsleep: Bool) -> Bool {
        let id = ObjectIdentifier(connection)
        guard isAsleep else { return asleep.withLock { $0.remove(id) } != nil }
        connections.leave(connection)
        let isNew = asleep.withLock { $0.insert(id).inserted }
        // A connection that ended while its request was on its way.
        if connection.isClosed { asleep.withLock { _ = $0.remove(id) } }
        return !isNew
    }

    /// The connection takes no commands any more, or has ended.
    func leave(_ connection: any ClientConnection) {
        pause(connection, false)
        connections.leave(connection)
    }

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
                group.addTask { await self.checkRights() }
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

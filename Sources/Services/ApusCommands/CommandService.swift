import ApusClientAPI
package import ApusCluster
import ApusContract
import ApusCore
package import ApusSessions
package import ApusStorage
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
/// Concurrency model: any thread. A `Mutex` guards the tables of connections and of requests.
package final class CommandService: Service, Sendable {
    private static let collection = EntityCollection<CommandState>("commands", kind: .commands, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topic by which a device takes commands, and its only key.
    package static let topicKind = "commands"
    static let ownKey = "own"

    private struct Connection: Sendable {
        let connection: any ClientConnection
        let device: DeviceID
        let shard: ShardID
    }

    /// Two devices may have commands with the same id.
    private struct Waiting: Hashable {
        let device: String
        let id: Data
    }

    private struct State {
        /// By the number of the listener.
        var connections: [UInt64: Connection] = [:]
        /// The numbers of the listeners.
        var numbers: [ObjectIdentifier: UInt64] = [:]
        var waiting: [Waiting: [CommandWait]] = [:]
        var epochs: [Epoch] = []
    }

    let configuration: CommandConfiguration
    private let view: ClusterView
    private let entities: EntityRegistry
    private let sessions: SessionService
    private let state = Mutex(State())
    /// Connections that are to be announced to the owner of their device, or withdrawn.
    private let work: AsyncStream<UInt64>
    private let workFeed: AsyncStream<UInt64>.Continuation
    private let deliveries = Counter(label: "apus_command_deliveries_total")
    private let listenerGauge = Gauge(label: "apus_command_connections")
    private let waitingGauge = Gauge(label: "apus_command_waiting")

    private static let lookInterval = Duration.milliseconds(100)
    private static let retryDelay = Duration.milliseconds(300)
    private static let askTimeout = Duration.seconds(3)
    /// A request asks again after this time, and then after twice the time before.
    private static let askAgainMin = Duration.milliseconds(200)
    private static let askAgainMax = Duration.seconds(2)
    /// Connections that are announced at once, such as after the death of an owner.
    private static let listensMax = 64

    /// Registers the kinds of entities, and the messages between nodes. Created once, before the node is a member.
    package init(
        _ configuration: CommandConfiguration, _ view: ClusterView, _ entities: EntityRegistry,
        _ sessions: SessionService, _ runtime: EntityRuntime, _ dispatcher: NodeDispatcher
    ) {
        (self.configuration, self.view, self.entities, self.sessions) = (configuration, view, entities, sessions)
        // Bounded by the connections of devices: each is in it a few times at most.
        (work, workFeed) = AsyncStream.makeStream()
        let map = view.map
        state.withLock { $0.epochs = map.shards.map(\.epoch) }
        runtime.register(CommandQueue.kept.definition(configuration), in: Self.collection)
        runtime.register(CommandQueue.live.definition(configuration))
        view.observe { [weak self] _, map in self?.mapChanged(map) }
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
    ///   such device, 21002 if the status is not reached in time; otherwise as ``CommandState/submit(_:_:at:_:)``.
    func send(
        _ content: CommandContent, id: Data, to device: DeviceID, noAnswer: Bool, ttl: Duration?, until: CommandStatus,
        _ call: ClientCall
    ) async throws(ApusError) -> CommandEntry {
        let presence = try await sessions.inspect(device, for: call.session, subscribe: false, control: true).get()
        guard ttl != nil || presence.online != .offline else { throw ApusError(.targetOffline) }
        let waiter = CommandWaiter.with { ($0.node, $0.until) = (view.local.name.rawValue, until) }
        let submit = CommandSubmit.with {
            ($0.id, $0.path, $0.content, $0.noAnswer) = (id, content.path, content.bytes, noAnswer)
            ($0.sender, $0.waiter) = (call.session.access.rawValue, waiter)
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
        state.withLock { $0.waiting[key, default: []].append(wait) }
    }

    private func end(_ wait: CommandWait, for key: Waiting) {
        state.withLock { state in
            state.waiting[key]?.removeAll { $0 === wait }
            if state.waiting[key]?.isEmpty ?? false { state.waiting[key] = nil }
        }
    }

    private func reached(_ message: CommandReached) {
        let key = Waiting(device: message.device, id: message.entry.id)
        for wait in state.withLock({ $0.waiting[key] }) ?? [] { wait.reached(message.entry) }
    }

    // MARK: - Devices

    /// The connection of a device takes commands from now on.
    ///
    /// - Throws: 12004 if it is not a device's.
    func listen(_ call: ClientCall) async throws(ApusError) {
        guard let device = call.session.device, let connection = call.connection else {
            throw ApusError(.notAllowed, "only a device takes commands")
        }
        leave(connection)
        let number = UInt64.random(in: 1...(.max))
        let shard = CommandQueue.live.address(device).shard
        state.withLock { state in
            state.connections[number] = Connection(connection: connection, device: device, shard: shard)
            state.numbers[ObjectIdentifier(connection)] = number
        }
        try await announce(number, device, timeout: try call.timeLeft())
        // A connection that ended while its request was on its way.
        if connection.isClosed { leave(connection) }
    }

    /// The connection takes no commands any more, or has ended.
    func leave(_ connection: any ClientConnection) {
        let left = state.withLock { state -> (UInt64, DeviceID)? in
            guard let number = state.numbers.removeValue(forKey: ObjectIdentifier(connection)),
                let entry = state.connections.removeValue(forKey: number)
            else { return nil }
            return (number, entry.device)
        }
        if let (number, device) = left { withdraw(number, device) }
    }

    /// A queue that misses it is notified with the next delivery.
    private func withdraw(_ number: UInt64, _ device: DeviceID) {
        for queue in CommandQueue.allCases {
            try? ref(queue, device).tell(CommandLeave.with { $0.listener = listener(number) })
        }
    }

    private func announce(_ number: UInt64, _ device: DeviceID, timeout: Duration) async throws(ApusError) {
        let listen = CommandListen.with { $0.listener = listener(number) }
        do throws(ApusError) {
            for queue in CommandQueue.allCases {
                _ = try await ref(queue, device).ask(listen, timeout: min(timeout, Self.askTimeout))
            }
        } catch {
            workFeed.yield(number)
            throw error
        }
    }

    private func listener(_ number: UInt64) -> CommandListener {
        .with { ($0.node, $0.number) = (view.local.name.rawValue, number) }
    }

    private func deliver(_ message: CommandDeliver) {
        guard let device = DeviceID(rawValue: message.device) else { return }
        guard let found = state.withLock({ $0.connections[message.number] }), found.device == device else {
            return withdraw(message.number, device)
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

    // MARK: - Owners

    private func mapChanged(_ map: ClusterMap) {
        let epochs = map.shards.map(\.epoch)
        let moved = state.withLock { state in
            defer { state.epochs = epochs }
            guard state.epochs != epochs else { return [UInt64]() }
            return state.connections.filter { entry in
                let shard = Int(entry.value.shard.rawValue)
                return state.epochs[shard] != epochs[shard]
            }.map(\.key)
        }
        for number in moved { workFeed.yield(number) }
    }

    /// Announces connections to new owners, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.watch() }
                for _ in 0..<Self.listensMax { group.addTask { await self.announceAll() } }
            }
        }
    }

    private func announceAll() async {
        for await number in work {
            guard let found = state.withLock({ $0.connections[number] }) else { continue }
            do throws(ApusError) {
                // Failing, it is in the stream once more.
                try await announce(number, found.device, timeout: Self.askTimeout)
            } catch {
                try? await Task.sleep(for: Self.retryDelay)
            }
        }
    }

    private func watch() async {
        while (try? await Task.sleep(for: Self.lookInterval)) != nil {
            let now = MonotonicTime.now()
            let (connectionCount, waits) = state.withLock { ($0.connections.count, $0.waiting.values.flatMap(\.self)) }
            for wait in waits { wait.look(now: now) }
            listenerGauge.record(connectionCount)
            waitingGauge.record(waits.count)
        }
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

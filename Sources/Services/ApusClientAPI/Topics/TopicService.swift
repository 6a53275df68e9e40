package import ApusCluster
package import ApusContract
package import ApusCore
import ApusTransport
import ApusWire
import CoreMetrics
import Foundation
import NIOCore
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Whose share of a topic's kept events an event takes.
package struct TopicSender: Sendable, Hashable {
    package var number: UInt64
    /// It is not one of the topic's own: all of those together have an eighth.
    package var isForeign: Bool

    /// All that name no sender are one.
    package static let own = Self(number: 0, isForeign: false)

    /// - Parameter name: such as a device's id.
    package init(_ name: String, isForeign: Bool) {
        self.init(number: StableHash.hash(name), isForeign: isForeign)
    }

    private init(number: UInt64, isForeign: Bool) { (self.number, self.isForeign) = (number, isForeign) }
}

/// Topics of this node's clients, and publishing from any node (D17, docs/decisions/26).
///
/// ``TopicEdgeStateMachine`` decides who receives what; this asks the owners and hands events to connections.
///
/// Concurrency model: the machine sits behind a `Mutex`; one task a question, in ``run()``'s group.
package final class TopicService: Service, Sendable {
    typealias Machine = TopicEdgeStateMachine<Subscriber>

    /// A connection, by its identity.
    struct Subscriber: Hashable, Sendable {
        let connection: any ClientConnection
        static func == (left: Self, right: Self) -> Bool { left.connection === right.connection }
        func hash(into hasher: inout Hasher) { hasher.combine(ObjectIdentifier(connection)) }
    }

    private struct State {
        var machine: Machine
        var epochs: [Epoch]
    }

    private let view: ClusterView
    private let entities: EntityRegistry
    private let state: Mutex<State>
    private let retentions = Mutex<[String: TopicRetention]>([:])
    private let work: AsyncStream<Machine.Action>
    private let workFeed: AsyncStream<Machine.Action>.Continuation
    private let topicGauge = Gauge(label: "apus_topics")
    private let subscriptionGauge = Gauge(label: "apus_topic_subscriptions")
    private let published = Counter(label: "apus_topic_published_total")
    private let delivered = Counter(label: "apus_topic_delivered_total")
    private let reads = Counter(label: "apus_topic_reads_total")
    private let gaps = Counter(label: "apus_topic_gaps_total")

    private static let lookInterval = Duration.milliseconds(100)
    private static let askTimeout = Duration.seconds(3)

    package init(configuration: ClientAPIConfiguration, view: ClusterView, entities: EntityRegistry) {
        (self.view, self.entities) = (view, entities)
        let map = view.map
        var bounds = Machine.Configuration()
        (bounds.topicsMax, bounds.subscriptionsMax) = (configuration.topicsMax, configuration.subscriptionsMax)
        state = Mutex(State(machine: Machine(configuration: bounds), epochs: map.shards.map(\.epoch)))
        // Bounded by the topics and subscriptions: each has one question in progress.
        (work, workFeed) = AsyncStream.makeStream()
        view.observe { [weak self] _, map in self?.mapChanged(map) }
    }

    /// Makes this node able to own topics and to subscribe to them.
    package func register(with runtime: EntityRuntime, _ dispatcher: NodeDispatcher) {
        let retention: @Sendable (String) -> TopicRetention = { [weak self] topic in
            self?.retention(of: String(topic.prefix { $0 != "/" })) ?? .none
        }
        runtime.register(.topic(.topic, name: "topic", durability: .none, retention: retention))
        runtime.register(.topic(.keptTopic, name: "kept topic", durability: .replicated, retention: retention))
        dispatcher.onTell(TopicEvent.self) { [weak self] message in self?.received(message) }
    }

    func add(_ retention: TopicRetention, of kind: String) { retentions.withLock { $0[kind] = retention } }

    private func retention(of kind: String) -> TopicRetention { retentions.withLock { $0[kind] } ?? .none }

    private func address(_ topic: ClientTopic, _ retention: TopicRetention) -> EntityAddress {
        EntityAddress(kind: retention.eventsMax > 0 ? .keptTopic : .topic, key: topic.description)
    }

    // MARK: - Publishing

    /// Publishes an event to all subscribers of the topic, at every node.
    ///
    /// The event is in the topic when this returns; where the topic keeps events, the standby has it too, and no
    /// subscriber misses it while it is kept.
    ///
    /// - Parameters:
    ///   - request: names the event where the caller may publish it again.
    ///   - version: events with versions are published in their order, whatever node publishes them; 0: in the order of
    ///     their arrival.
    ///   - previous: the version before, whose event comes first.
    ///   - generation: grows when what was published is not for the next readers: a later one drops what the topic has
    ///     kept, and an event of an earlier one is dropped. 0: the topic has none.
    ///   - sender: each has a share of the kept events.
    /// - Throws: as ``EntityRef/ask(_:timeout:call:)``.
    package func publish(
        _ message: some ClientEventMessage, to topic: ClientTopic, version: UInt64 = 0, after previous: UInt64 = 0,
        generation: UInt64 = 0, sender: TopicSender = .own,
        request: RequestID? = nil, timeout: Duration = .seconds(5)
    ) async throws(ApusError) {
        var call = EntityCall()
        call.request = request
        guard let bytes: [UInt8] = try? message.serializedBytes() else { throw ApusError(.internalFailure) }
        let type = Swift.type(of: message).info.number
        _ = try await entities.ref(EntityCell<TopicState>.self, address(topic, retention(of: topic.kind))).ask(
            TopicPublish.with {
                ($0.type, $0.message, $0.version, $0.previousVersion) = (type, Data(bytes), version, previous)
                ($0.generation, $0.sender, $0.foreign) = (generation, sender.number, sender.isForeign)
            }, timeout: timeout, call: call)
        published.increment()
    }

    // MARK: - Subscribers

    func subscribe(
        _ topic: ClientTopic, after: TopicPosition?, _ retention: TopicRetention, generation: UInt64 = 0,
        _ call: ClientCall
    ) async throws(ApusError) {
        guard let connection = call.connection else { throw ApusError(.badParameter, "there is no connection") }
        let subscriber = Subscriber(connection: connection)
        let name = topic.description
        let error = state.withLock {
            $0.machine.subscribing(
                subscriber, name, after: after, keeps: retention.eventsMax > 0,
                startsWithLast: retention.startsWithLast, window: retention.window, now: .now())
        }
        if let error { throw error }
        connection.eventLoop.execute { connection.begin(name, at: after) }
        let answer = await listen(topic, retention, generation: generation, timeout: try call.timeLeft())
        advance { $0.subscribed(subscriber, name, answer, now: .now()) }
        // A connection that ended while its subscription was on its way.
        if connection.isClosed { ended(connection) }
        _ = try answer.get()
    }

    /// Where the client's subscription to the topic began; nil if the topic keeps no events.
    func start(_ topic: ClientTopic, _ call: ClientCall) -> TopicPosition? {
        guard let connection = call.connection else { return nil }
        return state.withLock { $0.machine.start(of: Subscriber(connection: connection), topic.description) }
    }

    func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) {
        guard let connection = call.connection else { return }
        advance { $0.unsubscribed(Subscriber(connection: connection), topic.description) }
    }

    /// A client's connection has closed.
    package func ended(_ connection: any ClientConnection) {
        advance { $0.ended(Subscriber(connection: connection)) }
    }

    /// A connection did not take an event.
    package func notSent(_ connection: any ClientConnection, _ event: ClientEventFrame) {
        guard let position = event.position else { return }
        state.withLock {
            $0.machine.notSent(
                Subscriber(connection: connection), event.topic, sequence: position.next, missed: event.missed)
        }
    }

    /// A connection takes events of the topic again.
    package func writable(_ connection: any ClientConnection, _ topic: String) {
        advance { $0.writable(Subscriber(connection: connection), topic) }
    }

    /// A client has handled the events of a topic up to a cursor.
    package func acknowledged(_ connection: any ClientConnection, _ topic: ClientTopic, _ position: TopicPosition) {
        advance { $0.acknowledged(Subscriber(connection: connection), topic.description, position) }
    }

    // MARK: - Owners

    private func received(_ message: TopicEvent) {
        let event = Machine.Event(message.entry)
        if event.isAfterGap { gaps.increment() }
        advance { $0.received(message.topic, log: message.log, event) }
    }

    private func mapChanged(_ map: ClusterMap) {
        let epochs = map.shards.map(\.epoch)
        let old = state.withLock { state in
            defer { state.epochs = epochs }
            return state.epochs
        }
        advance { machine in
            machine.mapChanged({ old[Int($0.rawValue)] != epochs[Int($0.rawValue)] }, now: .now())
        }
    }

    /// Asks owners and renews, until the node stops.
    package func run() async throws {
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.watchTime() }
                for await action in work { group.addTask { await self.ask(action) } }
                group.cancelAll()
            }
        } onGracefulShutdown: {
            self.workFeed.finish()
        }
    }

    private func watchTime() async {
        while (try? await Task.sleep(for: Self.lookInterval)) != nil {
            advance { $0.tick(now: .now()) }
            let (topics, subscriptions) = state.withLock { ($0.machine.topicCount, $0.machine.subscriptionCount) }
            topicGauge.record(topics)
            subscriptionGauge.record(subscriptions)
        }
    }

    /// Changes the machine and performs what it says before anybody else changes it.
    ///
    /// Events reach each event loop in the order in which the machine released them. Nothing here waits.
    private func advance(_ body: (inout Machine) -> [Machine.Action]) {
        state.withLock { perform(body(&$0.machine)) }
    }

    private func perform(_ actions: [Machine.Action]) {
        for action in actions {
            if case .deliver(let topic, let event, let log, let missed, let subscribers) = action {
                deliver(topic, event, log: log, missed: missed, to: subscribers)
            } else {
                workFeed.yield(action)
            }
        }
    }

    private func deliver(
        _ topic: String, _ event: Machine.Event, log: UInt64, missed: Bool, to subscribers: [Subscriber]
    ) {
        let isKept = retention(of: String(topic.prefix { $0 != "/" })).eventsMax > 0
        let frame = ClientEventFrame(
            topic: topic, type: event.type, message: event.message,
            position: isKept ? TopicPosition(log: log, next: event.sequence) : nil, missed: missed,
            isAfterGap: event.isAfterGap)
        delivered.increment(by: Int64(subscribers.count))
        ClientEventFrame.send(frame, to: subscribers.map(\.connection))
    }

    private func ask(_ action: Machine.Action) async {
        switch action {
        case .listen(let name):
            guard let topic = try? ClientTopic(name) else { return }
            let answer = await listen(topic, retention(of: topic.kind), timeout: Self.askTimeout)
            advance { $0.listened(name, answer, now: .now()) }
        case .leave(let name):
            guard let topic = try? ClientTopic(name) else { return }
            let message = TopicLeave.with {
                ($0.node, $0.incarnation) = (view.local.name.rawValue, view.local.incarnation)
            }
            // An owner that misses it forgets this node a minute later.
            _ = try? await ref(topic).ask(message, timeout: Self.askTimeout)
        case .read(let name, let subscriber, let position):
            guard let topic = try? ClientTopic(name) else { return }
            reads.increment()
            let answer = await read(topic, position)
            advance { $0.read(subscriber, name, answer, now: .now()) }
        case .deliver: break  // Performed at once, in `perform`.
        }
    }

    private func ref(_ topic: ClientTopic) -> EntityRef<EntityCell<TopicState>> {
        entities.ref(EntityCell<TopicState>.self, address(topic, retention(of: topic.kind)))
    }

    private func listen(
        _ topic: ClientTopic, _ retention: TopicRetention, generation: UInt64 = 0, timeout: Duration
    ) async -> Result<TopicPosition, ApusError> {
        do throws(ApusError) {
            let message = TopicListen.with {
                ($0.node, $0.incarnation) = (view.local.name.rawValue, view.local.incarnation)
                $0.generation = generation
            }
            let answer = try await ref(topic).ask(message, timeout: min(timeout, Self.askTimeout))
            return .success(TopicPosition(log: answer.log, next: answer.next))
        } catch {
            return .failure(error)
        }
    }

    private func read(_ topic: ClientTopic, _ position: TopicPosition) async -> Result<Machine.Page, ApusError> {
        do throws(ApusError) {
            let message = TopicRead.with { ($0.log, $0.from) = (position.log, position.next) }
            let answer = try await ref(topic).ask(message, timeout: Self.askTimeout)
            return .success(
                Machine.Page(
                    head: TopicPosition(log: answer.log, next: answer.next),
                    events: answer.entries.map { Machine.Event($0) }, missed: answer.missed))
        } catch {
            return .failure(error)
        }
    }
}

extension TopicEdgeStateMachine.Event {
    init(_ entry: TopicEntry) {
        self.init(
            sequence: entry.sequence, type: entry.type, message: Array(entry.message),
            isAfterGap: entry.missed)
    }
}

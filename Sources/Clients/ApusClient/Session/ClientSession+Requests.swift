public import ApusContract
public import ApusCore
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

// What a session asks and hears beside streams (D17). The messages say what is asked: each request and each event of
// the cluster is a type of `ApusContract`, and services of others add theirs.

extension ClientSession {
    /// Asks the cluster, at the node that this session is connected to, and waits for the answer.
    ///
    ///     let page = try await session.ask(ClientListDevicesRequest())
    ///
    /// A cancelled task cancels the request.
    ///
    /// - Parameters:
    ///   - message: the request, of `ApusContract` or of a service of your own.
    ///   - timeout: how long to wait; the cluster waits no longer either.
    /// - Returns: the answer.
    /// - Throws: 21023 where no node is connected, 20010 where the cluster has refused the token, 21002 where there
    ///   is no answer in time, 10008 where the connection broke meanwhile, 10006 where the task was cancelled, or the
    ///   error that the cluster answered.
    public func ask<M: ClientRequestMessage>(
        _ message: M, timeout: Duration = .seconds(5)
    ) async throws(ApusError) -> M.Reply {
        let pending = PendingRequest()
        let result: Result<ByteBuffer, ApusError> = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                pending.set { continuation.resume(returning: $0) }
                eventLoop.execute { self.send(message, timeout, pending) }
            }
        } onCancel: {
            eventLoop.execute { pending.cancel() }
        }
        let bytes = try result.get()
        guard let reply = try? M.Reply(serializedBytes: Array(bytes.readableBytesView)) else {
            throw ApusError(.malformed, "the answer cannot be read")
        }
        return reply
    }

    /// Sends a request before all later ones, and does not wait for its answer.
    func post(_ message: some ClientRequestMessage, timeout: Duration = .seconds(5)) {
        let pending = PendingRequest()
        pending.set { _ in }
        eventLoop.execute { self.send(message, timeout, pending) }
    }

    private func send(_ message: some ClientRequestMessage, _ timeout: Duration, _ pending: PendingRequest) {
        guard let active else {
            if let refusal {
                return pending.end(.failure(ApusError(.tokenRefused, "the cluster refuses the token: \(refusal)")))
            }
            wanted()
            return pending.end(.failure(ApusError(.notConnected)))
        }
        let call = active.ask(type(of: message).info.number, message, timeout: timeout) { pending.end($0) }
        guard let call else { return }
        let alarm = eventLoop.assumeIsolated().scheduleTask(in: TimeAmount(timeout + Self.answerSlack)) {
            active.cancel(call)
            pending.end(.failure(ApusError(.answerTimedOut)))
        }
        pending.started(alarm) { active.cancel(call) }
    }

    /// The node ends a request when its time is over, and says so.
    private static let answerSlack = Duration.milliseconds(500)

    /// The events of a topic, such as `presence/front-door`, from now on and through changes of the node.
    ///
    ///     for try await event in session.events(of: "presence/camera-1", as: ClientPresence.self) { … }
    ///
    /// The session resumes the topic after the last event that it heard, or where its subscription began, if the topic
    /// keeps events; otherwise what was published while it was not connected is missed. Ends when its consumer ends,
    /// with ``close()``, and with the error of the cluster where the topic may not be heard. One sequence of a topic is
    /// heard at a time: a second one ends the first with 10006.
    ///
    /// - Parameters:
    ///   - topic: `KIND/KEY`, at most 63 bytes.
    ///   - type: events of other messages are left out.
    ///   - bufferMax: events that wait for the consumer; then the oldest is dropped.
    public func events<M: ClientEventMessage>(
        of topic: String, as type: M.Type = M.self, bufferMax: Int = 256
    ) -> AsyncThrowingStream<TopicEvent<M>, any Error> {
        let (stream, feed) = AsyncThrowingStream<TopicEvent<M>, any Error>.makeStream(
            bufferingPolicy: .bufferingNewest(bufferMax))
        let subscription = TopicSubscription(
            heard: { event in
                guard event.type == M.info.number, let message = try? M(serializedBytes: event.message) else { return }
                feed.yield(TopicEvent(message: message, cursor: event.cursor, missed: event.missed))
            },
            ended: { feed.finish(throwing: $0) })
        feed.onTermination = { [weak self, eventLoop] _ in
            eventLoop.execute { [weak self] in self?.unsubscribe(topic, subscription) }
        }
        begin(subscription, of: topic)
        return stream
    }

    /// Calls `onEvent` on the event loop for each event of a topic, without a task in between.
    package func subscribe(topic: String, onEvent: @escaping @Sendable (ClientEvent) -> Void) {
        begin(TopicSubscription(heard: onEvent, ended: { _ in }), of: topic)
    }

    private func begin(_ subscription: TopicSubscription, of topic: String) {
        eventLoop.execute { [self] in
            topics.updateValue(subscription, forKey: topic)?.ended(ApusError(.cancelled))
            if let active { subscribe(topic, on: active) }
        }
    }

    /// An event of a topic.
    public struct TopicEvent<M: ClientEventMessage>: Sendable {
        public let message: M
        /// Where it stands in its topic; empty where the topic keeps no events.
        public let cursor: String
        /// Events before it were missed.
        public let missed: Bool
    }

    // MARK: - On the loop

    func subscribe(_ topic: String, on connection: ClientConnection) {
        guard let subscription = topics[topic], !pausedTopics.contains(topic) else { return }
        let request = ClientSubscribeRequest.with {
            $0.topic = topic
            $0.after = subscription.cursor
        }
        connection.ask(ClientSubscribeRequest.info.number, request, timeout: nil) { [weak self] result in
            guard let self, topics[topic] === subscription else { return }
            switch result {
            case .success(let answer):
                subscription.begin(answer)
                if topic == Self.callTopic { checkCalls(on: connection) }
            case .failure(let error): notSubscribed(topic, subscription, on: connection, error)
            }
        }
    }

    private func notSubscribed(
        _ topic: String, _ subscription: TopicSubscription, on connection: ClientConnection, _ error: ApusError
    ) {
        if Self.isLasting(error) {
            topics[topic] = nil
            subscription.ended(error)
        } else if connection === active {
            // The owner of the topic may be on its way to another node.
            eventLoop.assumeIsolated().scheduleTask(in: Self.subscribeAgain) { [weak self] in
                guard let self, connection === active else { return }
                subscribe(topic, on: connection)
            }
        }
    }

    private static let subscribeAgain = TimeAmount.milliseconds(500)

    /// Asking again would be answered the same.
    package static func isLasting(_ error: ApusError) -> Bool {
        let passing: [ErrorCode] = [
            .notConnected, .linkLost, .deadlineExceeded, .overloaded, .moved, .noRoute, .noOwnership, .shuttingDown,
            .staleEpoch, .cancelled, .internalFailure, .storageFailed,
        ]
        return !passing.contains(error.code)
    }

    private func unsubscribe(_ topic: String, _ subscription: TopicSubscription) {
        guard topics[topic] === subscription else { return }
        topics[topic] = nil
        unsubscribe(topic)
    }

    /// Stops the events of a topic, whose consumer remains, or lets them come again.
    func setPaused(_ isPaused: Bool, _ topic: String) {
        eventLoop.execute { [self] in
            guard isPaused != pausedTopics.contains(topic) else { return }
            if isPaused {
                pausedTopics.insert(topic)
                if topics[topic] != nil { unsubscribe(topic) }
            } else {
                pausedTopics.remove(topic)
                if let active { subscribe(topic, on: active) }
            }
        }
    }

    private func unsubscribe(_ topic: String) {
        active?.ask(
            ClientUnsubscribeRequest.info.number, ClientUnsubscribeRequest.with { $0.topic = topic }, timeout: nil
        ) { _ in }
    }

    func heard(_ payload: ByteBuffer) {
        guard let event = try? ClientEvent(bounded: payload), let subscription = topics[event.topic] else { return }
        if !event.cursor.isEmpty { subscription.cursor = event.cursor }
        subscription.heard(event)
    }

    // MARK: - Presence and the relay

    /// Hears of a device's presence from now on (IV-B9, IV-D9); the first call comes with the state now. The callback
    /// is called on the event loop.
    public func subscribe(to device: DeviceID, onChange: @escaping @Sendable (Presence) -> Void) {
        subscribe(topic: "presence/\(device.rawValue)") { event in
            guard let message = try? ClientPresence(serializedBytes: event.message) else { return }
            onChange(Presence(online: message.online, time: message.time))
        }
    }

    /// A device's presence as the cluster tells it.
    public struct Presence: Sendable, Hashable {
        /// 0 offline, 1 online, 2 asleep.
        public var online: UInt32
        /// Unix seconds of the change.
        public var time: Int64
    }

    /// Access to the relays of the cluster for a time, for a peer connection of the caller's (D8).
    public struct RelayCredentials: Sendable, Hashable {
        /// Relays of the node that was asked, then of others: RFC 7065, as an ICE stack takes them.
        public var urls: [String]
        public var username: String
        public var credential: String
        /// From the answer on; ask again before it is over.
        public var lifetime: Duration
    }

    /// Asks the cluster for credentials of its relays.
    ///
    /// - Throws: as ``ask(_:timeout:)``; 10007 where it was asked too often, 20004 where no relay takes clients.
    public func relayCredentials() async throws(ApusError) -> RelayCredentials {
        let answer = try await ask(ClientRelayCredentialsRequest())
        return RelayCredentials(answer)
    }
}

extension ClientSession.RelayCredentials {
    init(_ answer: ClientRelayCredentialsResponse) {
        (urls, username, credential) = (answer.urls, answer.username, answer.credential)
        lifetime = .seconds(Int64(answer.lifetimeSeconds))
    }
}

/// A topic that a session hears; confined to the session's event loop.
final class TopicSubscription: @unchecked Sendable {  // SAFETY: `cursor` is confined to the event loop.
    var cursor = ""
    let heard: @Sendable (ClientEvent) -> Void
    let ended: @Sendable (ApusError) -> Void

    init(heard: @escaping @Sendable (ClientEvent) -> Void, ended: @escaping @Sendable (ApusError) -> Void) {
        (self.heard, self.ended) = (heard, ended)
    }

    /// The node has answered the subscription. Until the first event, the next connection goes on from where it began.
    func begin(_ answer: ByteBuffer) {
        guard cursor.isEmpty, let response = try? ClientSubscribeResponse(bounded: answer) else { return }
        cursor = response.cursor
    }
}

/// The first end of a request counts; confined to the session's event loop, but for what is set before it is sent.
private final class PendingRequest: Sendable {
    private struct State: Sendable {
        var take: (@Sendable (Result<ByteBuffer, ApusError>) -> Void)?
        var alarm: Scheduled<Void>?
        var cancel: (@Sendable () -> Void)?
        var isCancelled = false
    }

    private let state = Mutex(State())

    func set(_ take: @escaping @Sendable (Result<ByteBuffer, ApusError>) -> Void) {
        let isCancelled = state.withLock { state in
            if !state.isCancelled { state.take = take }
            return state.isCancelled
        }
        if isCancelled { take(.failure(ApusError(.cancelled))) }
    }

    func started(_ alarm: Scheduled<Void>, cancel: @escaping @Sendable () -> Void) {
        let isOver = state.withLock { state in
            (state.alarm, state.cancel) = (alarm, cancel)
            return state.take == nil
        }
        if isOver {
            alarm.cancel()
            cancel()
        }
    }

    func end(_ result: Result<ByteBuffer, ApusError>) {
        let (take, alarm) = state.withLock { state in
            defer { (state.take, state.alarm, state.cancel) = (nil, nil, nil) }
            return (state.take, state.alarm)
        }
        alarm?.cancel()
        take?(result)
    }

    func cancel() {
        let cancel = state.withLock { state in
            state.isCancelled = true
            return state.cancel
        }
        cancel?()
        end(.failure(ApusError(.cancelled)))
    }
}

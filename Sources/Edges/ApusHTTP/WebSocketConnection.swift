import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import ApusTransport
import Logging
import NIOCore
import NIOWebSocket
import Synchronization

/// One WebSocket: a session of a client with its requests and events. What its messages mean is its dialect's affair.
///
/// Concurrency model: confined to the channel's event loop. The methods of ``ClientLink`` and ``ClientConnection`` may
/// be called from elsewhere and hop to it.
final class WebSocketConnection: ChannelInboundHandler, ChannelOutboundHandler,
    @unchecked Sendable  // SAFETY: confined to the event loop.
{
    typealias InboundIn = WebSocketFrame
    typealias OutboundIn = WebSocketFrame
    typealias OutboundOut = WebSocketFrame

    enum State {
        case awaitingHello
        case opening
        case open(Session)
        case closed
    }

    let eventLoop: any EventLoop
    private let service: WebSockets
    /// Of the session and its media.
    private let executor: LoopTaskExecutor
    /// Of requests. It is never that of a loop with channels: a long answer would delay frames.
    private let requestExecutor: LoopTaskExecutor
    private let channel: any Channel
    private let dialect: any WebSocketDialect
    private(set) var state = State.awaitingHello
    private var lastHeard = MonotonicTime.now()
    private var behindSince: MonotonicTime?
    /// The number of bytes that were received while the client was behind with reading.
    private var heardWhileBehind = 0
    /// True if a read was requested and waits until the client has caught up.
    private var isReadHeld = false
    private var timer: Scheduled<Void>?
    private var events: ClientEventQueue
    private let hasEnded = Atomic(false)
    /// The owner of the identity has confirmed the session as the newest.
    private(set) var isConfirmed = false
    private lazy var calls = ClientCalls(
        service.clients.services, on: eventLoop,
        spawn: { [service, requestExecutor] in service.run(requestExecutor, $0) },
        answer: { [weak self] id, result in
            if let self { dialect.answered(id, result, on: self) }
        })

    private static let helloTimeout = Duration.seconds(5)
    /// The number of unanswered pings after which the client counts as gone.
    private static let silentPings = 3
    private static let slowReaderTimeout = Duration.seconds(10)
    private static let lookInterval = TimeAmount.seconds(1)
    /// So much is still read from a client that does not read, so that it can unsubscribe and cancel.
    private static let heardWhileBehindMax = 4 << 10
    /// The number of binary bytes that count as one there.
    private static let binaryWeight = 16

    init(
        _ service: WebSockets, channel: any Channel, executor: LoopTaskExecutor, requests: LoopTaskExecutor,
        dialect: any WebSocketDialect
    ) {
        (self.service, self.channel, self.executor, self.dialect) = (service, channel, executor, dialect)
        requestExecutor = requests
        eventLoop = channel.eventLoop
        events = ClientEventQueue(eventsMax: service.clients.services.configuration.eventsMax)
    }

    // MARK: - The channel

    func handlerAdded(context: ChannelHandlerContext) {
        let high = service.configuration.webSocketOutboundByteCountMax
        channel.setOption(ChannelOptions.writeBufferWaterMark, value: .init(low: high / 4, high: high))
            .whenFailure { _ in }
        look(since: .now())
        perform { connection throws(ApusError) in try connection.dialect.connected(connection) }
    }

    func handlerRemoved(context: ChannelHandlerContext) { gone() }

    func channelInactive(context: ChannelHandlerContext) {
        gone()
        context.fireChannelInactive()
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        // The client has closed its side without a goodbye. The listener allows half-closed connections.
        if let event = event as? ChannelEvent, event == .inputClosed {
            gone()
            channel.close(promise: nil)
        }
        context.fireUserInboundEventTriggered(event)
    }

    /// A client that violates the protocol, or sends frames that cannot be read, receives 1002 (RFC 6455 §7.4.1).
    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        switch error {
        case let violation as WebSocketViolation:
            close(ApusError(.malformed, violation.reason), code: .protocolError)
        case let error as ApusError where error.code == .frameTooLarge: close(error, code: .messageTooLarge)
        case let error as ApusError: close(error)
        // NIO's handler has sent the close frame.
        case is NIOWebSocketError: gone()
        case NIOWebSocketFrameAggregator.Error.accumulatedFrameSizeIsTooLarge,
            NIOWebSocketFrameAggregator.Error.tooManyFragments:
            close(ApusError(.frameTooLarge, "the message is too long"), code: .messageTooLarge)
        case is NIOWebSocketFrameAggregator.Error:
            close(ApusError(.malformed, "the message's fragments are out of order"), code: .protocolError)
        default: close(ApusError(.malformed, "\(error)"))
        }
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        behindSince = channel.isWritable ? nil : behindSince ?? .now()
        if channel.isWritable {
            dialect.becameWritable()
            let waiting = events.becameWritable()
            for event in waiting.events { send(event) }
            for topic in waiting.topics { service.clients.services.topics?.writable(self, topic) }
        }
        context.fireChannelWritabilityChanged()
        if channel.isWritable { releaseRead(context) }
    }

    /// Stops reading from a client that sends and does not read: the answers would accumulate here. A closed connection
    /// is read to its end.
    func read(context: ChannelHandlerContext) {
        if channel.isWritable || hasEnded.load(ordering: .acquiring) || heardWhileBehind < Self.heardWhileBehindMax {
            context.read()
        } else {
            isReadHeld = true
        }
    }

    private func releaseRead(_ context: ChannelHandlerContext) {
        heardWhileBehind = 0
        guard isReadHeld else { return }
        isReadHeld = false
        context.read()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let frame = unwrapInboundIn(data)
        lastHeard = .now()
        // The smallest frame of a client has six bytes (RFC 6455 §5.2).
        // What it publishes is answered by few acknowledgements.
        let weight = frame.opcode == .binary ? Self.binaryWeight : 1
        if !channel.isWritable { heardWhileBehind += frame.data.readableBytes / weight + 6 }
        switch frame.opcode {
        case .text:
            let text = frame.unmaskedData
            perform { connection throws(ApusError) in try connection.dialect.received(text, on: connection) }
        case .binary:
            let bytes = frame.unmaskedData
            perform { connection throws(ApusError) in try connection.dialect.received(binary: bytes, on: connection) }
        // RFC 6455 §5.5.3: a client that sends many pings need not get a pong for each.
        case .ping: if channel.isWritable { write(.pong, frame.unmaskedData) }
        case .connectionClose: finish(code: .normalClosure)
        default: break
        }
    }

    private func perform(_ body: (WebSocketConnection) throws(ApusError) -> Void) {
        if case .closed = state { return }
        do throws(ApusError) { try body(self) } catch { close(error) }
    }

    // MARK: - The session

    /// Opens the session of a client. ``WebSocketDialect/opened(_:_:on:)`` follows, or the end of the connection.
    ///
    /// - Precondition: the connection has none, and opens none.
    func open(_ hello: ClientHello) {
        guard case .awaitingHello = state else { preconditionFailure("a session is opened twice, in \(state)") }
        state = .opening
        service.run(executor) { [self] in
            let result = await service.sessions.open(hello, link: self)
            eventLoop.execute { [self] in opened(result) }
        }
    }

    /// The same for a browser with a cookie.
    ///
    /// - Parameter instance: the page's random number.
    func open(signedIn cookie: String, instance: UInt64) {
        guard case .awaitingHello = state else { preconditionFailure("a session is opened twice, in \(state)") }
        state = .opening
        service.run(executor) { [self] in
            let result = await service.sessions.open(signedIn: cookie, instance: instance, link: self)
            eventLoop.execute { [self] in opened(result) }
        }
    }

    private func opened(_ result: Result<OpenedWebSocket, ApusError>) {
        switch (result, state) {
        case (.failure(let error), _): close(error)
        case (.success(let opened), .opening):
            guard service.admit(self, of: opened.session.account) else {
                service.sessions.close(opened.session, link: self)
                return close(ApusError(.tooManyConnections, "the account has reached its share of connections"))
            }
            state = .open(opened.session)
            isConfirmed = isConfirmed || opened.isConfirmed
            service.sessions.chosen(opened.session, link: self)
            perform { connection throws(ApusError) in
                try connection.dialect.opened(opened.session, opened.welcome, on: connection)
            }
        case (.success(let opened), _): service.sessions.close(opened.session, link: self)
        }
    }

    /// Carries out a request of the client. ``WebSocketDialect/answered(_:_:on:)`` follows.
    ///
    /// - Parameters:
    ///   - id: names the request at this connection.
    ///   - time: how long the client waits; nil: the usual time.
    /// - Throws: 10004 if there is no request of this name.
    func ask(
        _ id: UInt32, _ name: String, _ body: ByteBuffer, _ encoding: ClientEncoding, of session: Session,
        time: Duration? = nil, trace: TraceContext? = nil
    ) throws(ApusError) {
        let services = service.clients.services
        let operation = try services.api.operation(named: name)
        calls.received(
            id, operation, body, encoding,
            ClientCall(
                session: session, deadline: services.deadline(asked: time), connection: self, trace: trace,
                topics: services.api.topics))
    }

    func cancel(_ id: UInt32) { calls.cancelled(id) }

    /// Runs work of the connection.
    func spawn(_ body: @escaping @Sendable () async -> Void) { service.run(executor, body) }

    /// The kind of an event; nil if this node does not have it.
    func kind(of event: ClientEventFrame) -> ClientEventKind? { service.clients.services.api.event(number: event.type) }

    /// The cluster's time, in Unix seconds.
    func wallSeconds() -> Int64 { service.sessions.wallSeconds() }

    private func send(_ event: ClientEventFrame) { dialect.received(event, on: self) }

    func write(_ text: String) { write(.text, ByteBuffer(string: text)) }

    func write(_ text: ByteBuffer) { write(.text, text) }

    private func write(_ opcode: WebSocketOpcode, _ data: ByteBuffer) {
        if case .closed = state { return }
        channel.writeAndFlush(WebSocketFrame(fin: true, opcode: opcode, data: data), promise: nil)
    }

    // MARK: - Time and shutdown

    private func look(since: MonotonicTime) {
        timer = eventLoop.assumeIsolated().scheduleTask(in: Self.lookInterval) { [weak self] in self?.looked(since) }
    }

    private func looked(_ since: MonotonicTime) {
        let now = MonotonicTime.now()
        let ping = service.configuration.webSocketPing
        switch state {
        case .awaitingHello, .opening:
            if now - since > Self.helloTimeout { return close(ApusError(.handshakeTimeout)) }
        case .open(let session):
            if session.token.hasEnded(at: service.sessions.wallSeconds()) {
                return close(ApusError(.tokenExpired))
            }
            if now - lastHeard > ping * Self.silentPings { return close(ApusError(.idleTimeout)) }
            if let behindSince, now - behindSince > Self.slowReaderTimeout { return close(ApusError(.slowReader)) }
            if now - lastHeard > ping { write(.ping, ByteBuffer()) }
            dialect.looked(at: now, on: self)
        case .closed: return
        }
        look(since: since)
    }

    /// The client's protocol has a message that asks it to leave.
    var canBeAsked: Bool { dialect is ClientTexts }

    /// Asks the client to connect to one of these addresses.
    func leave(for endpoints: [String]) {
        eventLoop.execute { [self] in
            if case .open = state { dialect.leave(for: endpoints, on: self) }
        }
    }

    /// Sends the client the reason and closes the connection.
    func close(_ error: ApusError, code: WebSocketErrorCode? = nil) {
        if case .closed = state { return }
        service.limited.log(
            .info, "This node closed a client's connection", metadata: Logger.facts(of: error))
        write(dialect.goodbye(error))
        finish(code: code ?? (error.code == .shuttingDown ? .goingAway : .policyViolation))
    }

    private func finish(code: WebSocketErrorCode) {
        var data = ByteBuffer()
        data.write(webSocketErrorCode: code)
        write(.connectionClose, data)
        gone()
        channel.close(promise: nil)
    }

    private func gone() {
        timer?.cancel()
        let state = state
        self.state = .closed
        guard !hasEnded.exchange(true, ordering: .acquiringAndReleasing) else { return }
        if isReadHeld {
            isReadHeld = false
            channel.read()
        }
        calls.closed()
        dialect.closed()
        var account: AccountID?
        if case .open(let session) = state {
            account = session.account
            service.clients.services.ended(self)
            service.sessions.close(session, link: self)
        }
        service.ended(self, of: account)
    }
}

extension WebSocketConnection: ClientLink {
    func end(_ error: ApusError) { eventLoop.execute { [self] in close(error) } }

    /// Only publishing waits for the confirmation.
    func confirmed() {
        eventLoop.execute { [self] in
            isConfirmed = true
            dialect.confirmed()
        }
    }

    func presenceChanged(_ device: DeviceID, _ presence: Presence) { send([.presence(device, presence)]) }
}

extension WebSocketConnection: ClientConnection {
    var protocolName: String { "websocket" }

    var isClosed: Bool { hasEnded.load(ordering: .acquiring) }

    func begin(_ topic: String, at position: TopicPosition?) { events.begin(topic, at: position) }

    func received(_ event: ClientEventFrame) {
        guard case .open = state else { return }
        switch events.received(event, isWritable: channel.isWritable) {
        case .send: send(event)
        case .readLater: service.clients.services.topics?.notSent(self, event)
        case .wait, .drop: break
        }
    }
}

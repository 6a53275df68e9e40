import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusMediaAccess
import ApusSessions
import ApusWire
import CoreMetrics
import Foundation
import Logging
import NIOCore
import SwiftProtobuf
import Synchronization

/// One client's connection: its incoming and outgoing frames, its streams and its session.
/// Concurrency model: confined to the channel's event loop. The methods of ``ClientLink`` and ``ClientConnection`` may
/// be called from elsewhere and hop to it. Requests run concurrently, in tasks of the gateway.
final class ClientHandler: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = ByteBuffer

    let gateway: GatewayLoop
    var machine: ClientConnectionStateMachine
    var session: Session?
    /// The client's streams; nil before it is admitted.
    private(set) var media: MediaClient?
    /// Requests to the services that are in progress.
    private(set) lazy var calls = ClientCalls(
        gateway.service.clients, on: eventLoop, spawn: { [gateway] in gateway.run($0) },
        answer: { [weak self] in self?.answer($0, $1) })
    /// Events that wait for the socket.
    private var events: ClientEventQueue
    private let hasEnded = Atomic(false)
    /// Sends the connection's frames.
    let endpoint: TLSServerHandler
    /// The error with which the hello is refused; nil if the client is served.
    let refusal: ApusError?
    /// This connection's place in its loop's lists.
    var slot = 0
    private var decoder: LinkFrameDecoder
    private var context: ChannelHandlerContext?
    private var gathered: [(stream: StreamNumber, frames: [RelayFrame])] = []
    private var isDecoding = false
    /// True once the client has sent a frame after its welcome, that is, has chosen this connection.
    private var isChosen = false
    /// Receive pacing, if the connection publishes exactly one stream.
    private var pacing: ReceivePacing?
    /// Questions of ``probe()`` that the client has not answered.
    private var probes = ClientProbes()
    /// True once the owner of the identity has confirmed this session as the newest (IV-A5).
    private var isConfirmed = false
    private var remote = "?"
    /// The numbers of streams that the metrics count for this connection.
    var counted = (played: 0, published: 0)

    init(gateway: GatewayLoop, endpoint: TLSServerHandler, refusal: ApusError? = nil) {
        self.gateway = gateway
        self.refusal = refusal
        self.endpoint = endpoint
        decoder = LinkFrameDecoder(lengthMax: gateway.configuration.helloByteCountMax)
        machine = ClientConnectionStateMachine(timing: gateway.timing, now: .now())
        events = ClientEventQueue(eventsMax: gateway.service.clients.configuration.eventsMax)
    }

    var eventLoop: any EventLoop { gateway.eventLoop }

    /// From its first stream on, frames of an app may be as long as those of a device. This stays so when the stream
    /// ends: what it has sent before it learns of the end must not end its connection.
    func allowLongFrames() { decoder.lengthMax = gateway.configuration.deviceFrameByteCountMax }

    var log: Logger { gateway.service.log }

    // MARK: - The channel

    func handlerAdded(context: ChannelHandlerContext) {
        self.context = context
        remote = context.remoteAddress?.description ?? "?"
        gateway.added(self)
        endpoint.place = (gateway, slot)
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        self.context = nil
        gone()
    }

    func channelInactive(context: ChannelHandlerContext) {
        gone()
        context.fireChannelInactive()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        gateway.service.metrics.bytesIn.increment(by: Int64(bytes.readableBytes))
        decoder.append(bytes)
        decode()
    }

    func channelReadComplete(context: ChannelHandlerContext) {
        deliver()
        pacing?.readComplete(now: .now())
        context.fireChannelReadComplete()
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        machine.writabilityChanged(isWritable: endpoint.isWritable, now: .now())
        guard endpoint.isWritable else { return }
        media?.becameWritable()
        let waiting = events.becameWritable()
        for event in waiting.events { send(event) }
        for topic in waiting.topics { gateway.service.clients.topics?.writable(self, topic) }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        // TLS failures and resets end here: the peer is gone, or it never used TLS.
        log.debug("A client's connection failed", metadata: [LogKey.address: "\(remote)", LogKey.error: "\(error)"])
        context.close(promise: nil)
    }

    // MARK: - Frames

    private func decode() {
        guard !isDecoding else { return }
        isDecoding = true
        defer { isDecoding = false }
        do {
            // While the hello is checked, further bytes stay in the decoder, and the socket is not read.
            while !machine.isAuthenticating, let frame = try decoder.next() { received(frame) }
        } catch {
            close(error)
        }
    }

    private func received(_ frame: LinkFrame) {
        if let session, !isChosen {
            isChosen = true
            gateway.service.sessions.chosen(session, link: self)
        }
        switch machine.received(frame.kind, now: .now()) {
        case .authenticate:
            if let refusal { close(refusal) } else { authenticate(frame) }
        case .pong:
            let spread = gateway.service.reconnectSpreadMs
            send(.pong, ClientPong.with { $0.reconnectSpreadMs = spread }, correlation: frame.correlation)
        case .ignore: probes.answered(now: .now())
        case .close(let error): close(error)
        case .serve:
            switch frame.kind {
            case .media: gather(frame)
            case .request:
                deliver()
                serve(frame)
            case .cancel: calls.cancelled(frame.correlation)
            case .goodbye: context?.close(promise: nil)
            default: break
            }
        }
    }

    private func authenticate(_ frame: LinkFrame) {
        guard let hello = try? ClientHello(bounded: frame.payload) else {
            return close(ApusError(.malformed, "the hello cannot be read"))
        }
        guard hello.versionMin <= 1, hello.version >= 1 else {
            return close(ApusError(.versionUnsupported, "this node supports version 1 of the client protocol"))
        }
        // A returning client is admitted at once: after a node's death there are many, and the owner need not be asked.
        if let result = gateway.service.sessions.resume(hello, link: self) { return admitted(result) }
        context?.channel.setOption(ChannelOptions.autoRead, value: false).whenFailure { _ in }
        gateway.run { [self] in
            let result = await gateway.service.sessions.open(hello, link: self)
            eventLoop.execute { [self] in
                context?.channel.setOption(ChannelOptions.autoRead, value: true).whenFailure { _ in }
                admitted(result)
            }
        }
    }

    private func admitted(_ result: Result<OpenedSession, ApusError>) {
        // The connection may have ended while the hello was checked. Nothing would release what it takes now.
        guard !machine.isClosed else {
            if case .success(let opened) = result { gateway.service.sessions.close(opened.session, link: self) }
            return
        }
        switch result {
        case .failure(let error):
            close(error)
        case .success(let opened):
            guard gateway.authenticated(self, as: opened.session.account) else {
                gateway.service.sessions.close(opened.session, link: self)
                return close(ApusError(.tooManyConnections, "the account has reached its share of connections"))
            }
            session = opened.session
            isConfirmed = isConfirmed || opened.isConfirmed
            media = makeMedia(opened.session)
            machine.admitted(now: .now(), tokenExpires: opened.session.token.expires)
            gateway.service.metrics.sessions.increment()
            gateway.service.metrics.open(opened.session.role).increment()
            let configuration = gateway.configuration
            decoder.lengthMax =
                opened.session.role == .device
                ? configuration.deviceFrameByteCountMax : configuration.appFrameByteCountMax
            send(
                .welcome,
                ClientWelcome.with {
                    $0.version = 1
                    $0.session = opened.session.id
                    $0.ticket = Data(opened.ticket)
                    $0.ticketSeconds = opened.ticketSeconds
                    $0.node = gateway.service.node.name.rawValue
                    $0.endpoints = gateway.service.endpoints()
                    $0.keepaliveMs = UInt32(configuration.keepalive.milliseconds)
                    $0.streamKeepaliveMs = UInt32(configuration.streamKeepalive.milliseconds)
                    $0.access = opened.session.access.rawValue
                    $0.account = opened.session.account.rawValue
                    $0.reconnectSpreadMs = gateway.service.reconnectSpreadMs
                })
            decode()
            deliver()
        }
    }

    var isPlaying: Bool { media?.played.isEmpty == false }
    var isPublishing: Bool { media?.published.isEmpty == false }

    private func makeMedia(_ session: Session) -> MediaClient {
        MediaClient(
            gateway.service.media, session, on: self, isConfirmed: isConfirmed,
            streamsMax: gateway.configuration.streamsPerConnectionMax, spawn: { [gateway] in gateway.run($0) },
            onStreams: { [weak self] in self?.streamsChanged() })
    }

    /// The grant of a stream that is open, as ``ApusMediaAccess/MediaClient/grant(for:isPublished:earlier:)``.
    func grant(for channel: ChannelID, isPublished: Bool, earlier: [UInt8]) -> Data {
        Data(media?.grant(for: channel, isPublished: isPublished, earlier: earlier) ?? earlier)
    }

    /// Starts pacing if the camera has exactly one stream. With several streams, none of them determines how long the
    /// others may wait.
    func paceReceiving() {
        let hold = gateway.service.channels.configuration.audioHold
        if media?.published.count == 1, hold > .zero, let channel = context?.channel {
            pacing = pacing ?? ReceivePacing(channel: channel, clock: gateway.clock, hold: hold)
        } else {
            pacing?.stop()
            pacing = nil
        }
    }

    private func gather(_ frame: LinkFrame) {
        guard media?.published[frame.correlation] != nil else { return }
        do throws(ApusError) {
            let relayed = try RelayFrame(copying: frame.payload) { byteCount, buffer in
                LinkFrame.encodeHeader(
                    kind: .media, correlation: frame.correlation, payloadByteCount: byteCount, into: &buffer)
            }
            // Only relays repeat frames: a frame that a publisher marks as repeated would be neither copied nor kept.
            guard !relayed.flags.contains(.repeated) else {
                throw ApusError(.malformed, "a publisher must not mark a frame as repeated")
            }
            pacing?.received(relayed)
            if let last = gathered.indices.last, gathered[last].stream == frame.correlation {
                gathered[last].frames.append(relayed)
            } else {
                gathered.append((frame.correlation, [relayed]))
            }
        } catch {
            close(error)
        }
    }

    private func deliver() {
        guard !gathered.isEmpty else { return }
        for batch in gathered { media?.published[batch.stream]?.handle.send(batch.frames) }
        gathered.removeAll(keepingCapacity: true)
    }

    // MARK: - Out

    func send(_ kind: FrameKind, _ message: some Message, method: UInt16 = 0, correlation: UInt32 = 0) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        write(LinkFrame(kind: kind, method: method, correlation: correlation, payload: ByteBuffer(bytes: bytes)))
    }

    func fail(_ call: UInt32, _ error: ApusError) {
        gateway.service.metrics.refused(code: error.code.number)
        guard let bytes: [UInt8] = try? ClientFailure(error).serializedBytes() else { return }
        write(LinkFrame(kind: .response, flags: .failure, correlation: call, payload: ByteBuffer(bytes: bytes)))
    }

    func write(_ frame: LinkFrame) {
        guard !machine.isClosed else { return }
        var buffer = ByteBufferAllocator().buffer(capacity: LinkFrame.headerByteCount + frame.payload.readableBytes)
        frame.encode(into: &buffer)
        endpoint.send(buffer, now: .now())
    }

    // MARK: - Time and shutdown

    func tick(now: MonotonicTime) { run(machine.tick(now: now, lastSent: gateway.lastSent(slot))) }

    /// Ends the session if its token has expired by the cluster's clock.
    func wallClockRead(seconds: Int64) { run(machine.wallClockRead(seconds: seconds)) }

    private func run(_ decision: ClientConnectionStateMachine.OnTick) {
        switch decision {
        case .nothing: break
        // An unsolicited pong. A ping would cost an answer, on each stream, many times a second.
        case .keepalive: write(LinkFrame(kind: .pong))
        case .close(let error): close(error)
        }
    }

    /// Asks the client to connect to another endpoint.
    func sendAway(to endpoints: [String]) {
        guard machine.isOpen else { return close(ApusError(.shuttingDown)) }
        send(
            .tell,
            ClientEndpointsChanged.with {
                $0.endpoints = endpoints
                $0.leaving = true
            }, method: ClientMethod.endpointsChanged.rawValue)
    }

    /// Sends the client the reason and closes the connection.
    func close(_ error: ApusError) {
        guard let context, !machine.isClosed else { return }
        gateway.service.metrics.closed(code: error.code.number)
        gateway.service.limited.log(
            .info, "This node closed a client's connection",
            metadata: Logger.facts(of: error).merging([
                LogKey.address: "\(remote)", LogKey.access: "\(session?.access.rawValue ?? "-")",
            ]) { $1 })
        var failure = ClientFailure(error)
        failure.node = gateway.service.node.name.rawValue
        send(.goodbye, failure)
        machine.closed()
        context.close(promise: nil)
    }

    private func gone() {
        endpoint.place = nil
        guard gateway.removed(self) else { return }
        machine.closed()
        hasEnded.store(true, ordering: .releasing)
        media?.closed()
        media = nil
        countStreams()
        if let session {
            calls.closed()
            gateway.service.clients.ended(self)
            gateway.service.metrics.open(session.role).decrement()
            gateway.service.sessions.close(session, link: self)
        }
        session = nil
    }
}

extension ClientHandler: ClientLink {
    func end(_ error: ApusError) { eventLoop.execute { [self] in close(error) } }

    func confirmed() {
        eventLoop.execute { [self] in
            isConfirmed = true
            media?.sessionConfirmed()
        }
    }

    func presenceChanged(_ device: DeviceID, _ presence: Presence) { send([.presence(device, presence)]) }

    func probe() async -> ClientProbe {
        await withCheckedContinuation { waiting in
            eventLoop.execute { [self] in
                guard machine.isOpen else { return waiting.resume(returning: .notAsked) }
                let number = probes.ask(now: .now()) { waiting.resume(returning: $0) }
                guard let number else { return }
                write(LinkFrame(kind: .ping, correlation: 1))
                eventLoop.assumeIsolated().scheduleTask(in: TimeAmount(ClientProbe.timeout)) { [self] in
                    probes.timedOut(number)
                }
            }
        }
    }
}

extension ClientHandler: ClientConnection {
    var protocolName: String { "native" }

    var isClosed: Bool { hasEnded.load(ordering: .acquiring) }

    func begin(_ topic: String, at position: TopicPosition?) { events.begin(topic, at: position) }

    func received(_ event: ClientEventFrame) {
        guard machine.isOpen else { return }
        switch events.received(event, isWritable: endpoint.isWritable) {
        case .send: send(event)
        case .readLater: gateway.service.clients.topics?.notSent(self, event)
        case .wait, .drop: break
        }
    }

    private func send(_ event: ClientEventFrame) {
        write(LinkFrame(kind: .tell, method: ClientMethod.event.rawValue, payload: event.binary()))
    }
}

import ApusContract
package import ApusCore
import ApusTLS
import ApusWire
import Foundation
import NIOCore
import NIOPosix
import NIOTLS
import SwiftProtobuf

/// The delegate of a connection: its session. Confined to the event loop.
protocol ClientConnectionOwner: AnyObject {
    func connected(_ connection: ClientConnection)
    func secured(_ connection: ClientConnection)
    func welcomed(_ connection: ClientConnection, _ welcome: ClientWelcome)
    func received(_ frame: LinkFrame, on connection: ClientConnection)
    func heard(_ connection: ClientConnection)
    /// The node answered a ping.
    func ponged(_ connection: ClientConnection, _ pong: ClientPong, roundTrip: Duration)
    /// The node accepted a stream.
    func streamOpened(_ connection: ClientConnection)
    /// A request was answered or cancelled.
    func answered(_ connection: ClientConnection)
    func becameWritable(_ connection: ClientConnection)
    /// The connection closed. `node` is the name of the node that ended it, if it sent its name.
    func closed(_ connection: ClientConnection, error: ApusError?, node: String)
}

/// One TLS connection of a client to an endpoint.
///
/// Concurrency model: confined to its event loop.
final class ClientConnection: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer
    typealias Completion = (Result<ByteBuffer, ApusError>) -> Void

    let id: LinkStateMachine.AttemptID
    let endpoint: HostPort
    let eventLoop: any EventLoop
    weak var owner: (any ClientConnectionOwner)?
    private var decoder = LinkFrameDecoder(lengthMax: frameByteCountMax)
    private var context: ChannelHandlerContext?
    private var channel: (any Channel)?
    private var calls: [UInt32: Completion] = [:]
    private var nextCall: UInt32 = 1
    private var isSecured = false
    private var isWelcomed = false
    private var isClosed = false
    private var lastError: ApusError?
    /// The node that sent the goodbye.
    private var endedBy = ""
    private var nextPing: UInt32 = 1
    private var pingSent: (number: UInt32, at: MonotonicTime)?

    /// The largest frame that a node sends, in bytes: one media frame with its headers.
    private static let frameByteCountMax = (4 << 20) + 64

    init(id: LinkStateMachine.AttemptID, endpoint: HostPort, eventLoop: any EventLoop) {
        self.id = id
        self.endpoint = endpoint
        self.eventLoop = eventLoop
    }

    /// Nil if the endpoint is given by name.
    private var address: SocketAddress? { try? SocketAddress(ipAddress: endpoint.host, port: endpoint.port) }

    var isWritable: Bool { context?.channel.isWritable ?? false }
    /// True if requests wait for their answers.
    var hasCalls: Bool { !calls.isEmpty }

    /// Opens the TCP connection. The session then calls ``secure(tls:resumption:)`` and ``greet(_:)``.
    ///
    /// - Parameter timeout: of the connect.
    func connect(timeout: Duration) {
        let bootstrap = ClientBootstrap(group: eventLoop)
            .connectTimeout(.nanoseconds(timeout.nanoseconds))
            .channelOption(.tcpOption(.tcp_nodelay), value: 1)
            .channelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture { try channel.pipeline.syncOperations.addHandler(self) }
            }
        // An address needs no resolver, which would use a thread.
        (address.map { bootstrap.connect(to: $0) } ?? bootstrap.connect(host: endpoint.host, port: endpoint.port))
            .hop(to: eventLoop)
            .assumeIsolated()
            .whenComplete { [self] result in
                switch result {
                case .success(let channel):
                    self.channel = channel
                    if isClosed { channel.close(promise: nil) } else { owner?.connected(self) }
                case .failure(let error):
                    over(ApusError(.connectFailed, "\(endpoint) cannot be reached: \(error.connectionReason)"))
                }
            }
    }

    /// Starts TLS.
    ///
    /// - Parameter resumption: Stores the newest TLS ticket of the connection's session.
    func secure(tls: TLSClientContext, resumption: TLSResumption?) {
        guard let channel, context != nil, !isClosed else { return }
        do {
            let handler = TLSHandler(tls, host: address == nil ? endpoint.host : nil, resumption: resumption)
            try channel.pipeline.syncOperations.addHandler(handler, position: .first)
        } catch {
            lastError = ApusError(.connectFailed, "TLS to \(endpoint) cannot be started: \(error.connectionReason)")
            channel.close(promise: nil)
        }
    }

    /// Sends the hello.
    func greet(_ hello: ClientHello) { send(.hello, hello) }

    func close() {
        owner = nil
        isClosed = true
        failCalls(ApusError(.linkLost))
        channel?.close(promise: nil)
    }

    // MARK: - Out

    func send(_ kind: FrameKind, _ message: some Message, method: ClientMethod? = nil, correlation: UInt32 = 0) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        write(
            LinkFrame(
                kind: kind, method: method?.rawValue ?? 0, correlation: correlation, payload: ByteBuffer(bytes: bytes)))
    }

    /// Sends a request. `completion` is called on the event loop.
    ///
    /// - Parameter trace: nodes that trace have spans of the request with this trace id.
    func request(
        _ method: ClientMethod, _ message: some Message, trace: TraceContext? = nil, completion: @escaping Completion
    ) {
        ask(method.rawValue, message, timeout: nil, trace: trace) { [weak self] result in
            if let self, case .success = result, method == .play || method == .publish { owner?.streamOpened(self) }
            completion(result)
        }
    }

    /// Sends a request of any number.
    ///
    /// - Parameter timeout: how long the caller waits, sent to the node; nil: the node's own time.
    /// - Returns: names the request for ``cancel(_:)``; nil where it was not sent.
    @discardableResult
    func ask(
        _ number: UInt16, _ message: some Message, timeout: Duration?, trace: TraceContext? = nil,
        completion: @escaping Completion
    ) -> UInt32? {
        guard context != nil, !isClosed else {
            completion(.failure(ApusError(.notConnected)))
            return nil
        }
        guard let bytes: [UInt8] = try? message.serializedBytes() else {
            completion(.failure(ApusError(.badParameter, "the request cannot be encoded")))
            return nil
        }
        let call = nextCall
        nextCall &+= 1
        calls[call] = completion
        var frame = LinkFrame(kind: .request, method: number, correlation: call)
        if let trace {
            frame.flags.insert(.traced)
            trace.encode(into: &frame.payload)
        }
        if let timeout {
            frame.flags.insert(.timed)
            frame.payload.writeInteger(UInt32(clamping: timeout.nanoseconds / 1_000_000))
        }
        frame.payload.writeBytes(bytes)
        write(frame)
        return call
    }

    /// Tells the node that the answer is not wanted any more; the request is not completed.
    func cancel(_ call: UInt32) {
        guard calls.removeValue(forKey: call) != nil else { return }
        write(LinkFrame(kind: .cancel, correlation: call))
        owner?.answered(self)
    }

    /// Sends a ping. The round trip is reported to the owner.
    func ping(now: MonotonicTime) {
        pingSent = (nextPing, now)
        write(LinkFrame(kind: .ping, correlation: nextPing))
        nextPing = nextPing == .max ? 1 : nextPing + 1
    }

    /// Queues bytes of whole frames.
    func write(_ bytes: ByteBuffer) { context?.write(wrapOutboundOut(bytes), promise: nil) }
    func flush() { context?.flush() }

    private func write(_ frame: LinkFrame) {
        var buffer = ByteBuffer()
        frame.encode(into: &buffer)
        write(buffer)
        flush()
    }

    // MARK: - The channel

    func handlerAdded(context: ChannelHandlerContext) { self.context = context }
    func handlerRemoved(context: ChannelHandlerContext) { self.context = nil }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent {
            isSecured = true
            owner?.secured(self)
        }
        context.fireUserInboundEventTriggered(event)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard isSecured else {
            // Anyone on the path could have sent it.
            lastError = ApusError(.connectFailed, "\(endpoint) sent data before TLS")
            return context.close(promise: nil)
        }
        decoder.append(unwrapInboundIn(data))
        if isWelcomed { owner?.heard(self) }
        do {
            while !isClosed, let frame = try decoder.next() { received(frame) }
        } catch {
            lastError = error
            context.close(promise: nil)
        }
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        if context.channel.isWritable { owner?.becameWritable(self) }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        lastError = lastError ?? ApusError(.connectFailed, "the link to \(endpoint) failed: \(error.connectionReason)")
        context.close(promise: nil)
    }

    func channelInactive(context: ChannelHandlerContext) { over(lastError) }

    private func received(_ frame: LinkFrame) {
        switch frame.kind {
        case .welcome:
            guard let welcome = try? ClientWelcome(bounded: frame.payload) else {
                lastError = ApusError(.malformed)
                context?.close(promise: nil)
                return
            }
            isWelcomed = true
            owner?.welcomed(self, welcome)
        case .goodbye:
            lastError = failure(in: frame)
            endedBy = (try? ClientFailure(bounded: frame.payload))?.node ?? ""
            context?.close(promise: nil)
        case .response:
            guard let completion = calls.removeValue(forKey: frame.correlation) else { return }
            completion(frame.flags.contains(.failure) ? .failure(failure(in: frame)) : .success(frame.payload))
            owner?.answered(self)
        case .ping:
            write(LinkFrame(kind: .pong, correlation: frame.correlation))
        case .pong:
            // An unsolicited pong is a keepalive.
            guard let sent = pingSent, sent.number == frame.correlation else { return }
            pingSent = nil
            // Nodes of earlier versions send none.
            let pong = (try? ClientPong(bounded: frame.payload)) ?? ClientPong()
            owner?.ponged(self, pong, roundTrip: .now() - sent.at)
        default:
            owner?.received(frame, on: self)
        }
    }

    private func failure(in frame: LinkFrame) -> ApusError {
        guard let failure = try? ClientFailure(bounded: frame.payload) else {
            return ApusError(.malformed)
        }
        return ApusError(failure)
    }

    private func over(_ error: ApusError?) {
        guard !isClosed else { return }
        isClosed = true
        failCalls(error?.ofRequest ?? ApusError(.linkLost))
        owner?.closed(self, error: error, node: endedBy)
    }

    private func failCalls(_ error: ApusError) {
        let pending = calls
        calls.removeAll()
        for completion in pending.values { completion(.failure(error)) }
    }
}

extension ApusError {
    /// What a request receives whose connection ended with this error. Other nodes would answer the same to what ends
    /// the session and to what the client sent wrongly. Anything else concerns the connection, and the request may have
    /// been carried out (10008).
    package var ofRequest: ApusError {
        let isSame = code.ends(.session) || code == .frameTooLarge || code == .malformed
        return isSame ? self : ApusError(.linkLost, message)
    }

    /// A node's failure message. Its text is escaped, since it is shown to the user.
    init(_ failure: ClientFailure) {
        self.init(ErrorCode(number: failure.code), UntrustedText.escaped(failure.message))
    }
}

import ApusContract
import ApusCore
import ApusTLS
import ApusWire
import NIOCore
import NIOPosix
import NIOTLS
import SwiftProtobuf

/// One change of a setting over a connection of its own.
///
/// Concurrency model: confined to its channel's event loop.
final class LocalExchange: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private let hello: ClientLocalHello
    private let request: ClientLocalWriteRequest
    private let answer: EventLoopPromise<String>
    private var decoder = LinkFrameDecoder(lengthMax: LocalKey.frameByteCountMax)
    private var isConnected = false
    private var isSecured = false

    private init(_ hello: ClientLocalHello, _ request: ClientLocalWriteRequest, _ answer: EventLoopPromise<String>) {
        (self.hello, self.request, self.answer) = (hello, request, answer)
    }

    /// - Returns: the value that the device has now.
    /// - Throws: 21022 without a connection, 20005 if TLS is not established in time, 20006 if the device does not
    ///   accept the key, otherwise what it answers, 21002 after the time-out, or
    ///   21023 if the connection breaks after the request was sent.
    static func run(
        _ hello: ClientLocalHello, _ request: ClientLocalWriteRequest, at address: HostPort, identity: String,
        key: [UInt8], handshakeTimeout: Duration, timeout: Duration
    ) async throws(ApusError) -> String {
        do {
            let context = try TLSClientContext(sharedKey: key, identity: identity)
            let loop = MultiThreadedEventLoopGroup.singleton.next()
            let answer = loop.makePromise(of: String.self)
            let exchange = LocalExchange(hello, request, answer)
            let alarms = [
                loop.scheduleTask(in: TimeAmount(handshakeTimeout)) {
                    guard !exchange.isSecured else { return }
                    let code: ErrorCode = exchange.isConnected ? .peerHandshakeTimedOut : .connectFailed
                    answer.fail(ApusError(code, "\(address) does not answer"))
                },
                loop.scheduleTask(in: TimeAmount(timeout)) { answer.fail(ApusError(.answerTimedOut)) },
            ]
            defer { for alarm in alarms { alarm.cancel() } }
            let connecting = ClientBootstrap(group: loop)
                .connectTimeout(TimeAmount(handshakeTimeout))
                .channelInitializer { channel in
                    channel.eventLoop.makeCompletedFuture {
                        try channel.pipeline.syncOperations.addHandlers([TLSHandler(unnamed: context), exchange])
                    }
                }
                .connect(host: address.host, port: address.port)
            connecting.whenFailure { answer.fail(ApusError(.connectFailed, "\(address) cannot be reached: \($0)")) }
            connecting.whenSuccess { channel in
                answer.futureResult.whenComplete { _ in channel.close(promise: nil) }
            }
            return try await answer.futureResult.get()
        } catch {
            throw error as? ApusError
                ?? ApusError(.connectFailed, "TLS with the device fails: \(error.connectionReason)")
        }
    }

    func channelActive(context: ChannelHandlerContext) {
        isConnected = true
        context.fireChannelActive()
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent {
            isSecured = true
            write(.hello, hello, to: context)
            write(.request, request, to: context)
            context.flush()
        }
        context.fireUserInboundEventTriggered(event)
    }

    private func write(_ kind: FrameKind, _ message: some Message, to context: ChannelHandlerContext) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        var buffer = ByteBuffer()
        LinkFrame(kind: kind, method: 1, correlation: 1, payload: ByteBuffer(bytes: bytes)).encode(into: &buffer)
        context.write(wrapOutboundOut(buffer), promise: nil)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        decoder.append(unwrapInboundIn(data))
        do throws(ApusError) {
            guard let frame = try decoder.next() else { return }
            if frame.kind == .goodbye || frame.flags.contains(.failure) {
                throw (try? ClientFailure(bounded: frame.payload)).map { ApusError($0) } ?? ApusError(.malformed)
            }
            guard frame.kind == .response else { throw ApusError(.malformed) }
            answer.succeed(try ClientLocalWriteResponse(bounded: frame.payload).json)
        } catch {
            answer.fail(error)
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        over(error.connectionReason)
        context.close(promise: nil)
    }

    func channelInactive(context: ChannelHandlerContext) {
        over("it has closed the connection")
        context.fireChannelInactive()
    }

    private func over(_ reason: String) {
        answer.fail(
            isSecured
                ? ApusError(.notConnected, "the connection to the device broke: \(reason)")
                : ApusError(
                    .deviceTokenRefused, "the device does not accept this access; ask for another one: \(reason)"))
    }
}

import ApusClient
import ApusContract
import ApusCore
import ApusTLS
import ApusWire
import NIOCore
import SwiftProtobuf

/// The device's side of a local connection: a hello and one change, then the answer and the end.
///
/// Concurrency model: confined to its channel's event loop; the change runs in a task of ``LocalControl/run()``.
final class LocalConnectionHandler: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer
    typealias Change =
        @Sendable (ClientLocalHello, ClientLocalWriteRequest, _ identity: String) async throws(ApusError) -> String

    private enum State {
        case awaitingHello
        case awaitingRequest(ClientLocalHello)
        case working
    }

    typealias Spawn = @Sendable (@escaping @Sendable () async -> Void) -> Void

    private let tls: TLSHandler
    private let timeout: TimeAmount
    private let spawn: Spawn
    private let change: Change
    private var state = State.awaitingHello
    private var decoder = LinkFrameDecoder(lengthMax: LocalKey.frameByteCountMax)
    private var alarm: Scheduled<Void>?

    /// - Parameters:
    ///   - tls: of the connection; it has the identity of the client's key.
    ///   - timeout: from the connect to the answer.
    ///   - spawn: runs the change.
    init(_ tls: TLSHandler, timeout: Duration, spawn: @escaping Spawn, change: @escaping Change) {
        (self.tls, self.timeout, self.spawn, self.change) = (tls, TimeAmount(timeout), spawn, change)
    }

    func handlerAdded(context: ChannelHandlerContext) {
        let bound = NIOLoopBound(context, eventLoop: context.eventLoop)
        alarm = context.eventLoop.scheduleTask(in: timeout) { bound.value.close(promise: nil) }
    }

    func handlerRemoved(context: ChannelHandlerContext) { alarm?.cancel() }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        decoder.append(unwrapInboundIn(data))
        do throws(ApusError) {
            while let frame = try decoder.next() { try received(frame, context) }
        } catch {
            answer(.failure(error), context)
        }
    }

    private func received(_ frame: LinkFrame, _ context: ChannelHandlerContext) throws(ApusError) {
        switch (state, frame.kind) {
        case (.awaitingHello, .hello):
            state = .awaitingRequest(try ClientLocalHello(bounded: frame.payload))
        case (.awaitingRequest(let hello), .request) where frame.method == 1:
            let request = try ClientLocalWriteRequest(bounded: frame.payload)
            state = .working
            let bound = NIOLoopBound(self, eventLoop: context.eventLoop)
            let place = NIOLoopBound(context, eventLoop: context.eventLoop)
            let identity = tls.peerIdentity ?? ""
            spawn { [change, eventLoop = context.eventLoop] in
                let result: Result<String, ApusError>
                do throws(ApusError) { result = .success(try await change(hello, request, identity)) } catch {
                    result = .failure(error)
                }
                eventLoop.execute { bound.value.answer(result, place.value) }
            }
        default: throw ApusError(.malformed, "a hello and one request are expected")
        }
    }

    private func answer(_ result: Result<String, ApusError>, _ context: ChannelHandlerContext) {
        let message: any Message
        var flags: FrameFlags = []
        switch result {
        case .success(let json): message = ClientLocalWriteResponse.with { $0.json = json }
        case .failure(let error):
            flags = .failure
            message = ClientFailure(error)
        }
        guard context.channel.isActive, let bytes: [UInt8] = try? message.serializedBytes() else { return }
        var buffer = ByteBuffer()
        LinkFrame(kind: .response, flags: flags, method: 1, correlation: 1, payload: ByteBuffer(bytes: bytes))
            .encode(into: &buffer)
        let bound = NIOLoopBound(context, eventLoop: context.eventLoop)
        context.writeAndFlush(wrapOutboundOut(buffer)).assumeIsolated().whenComplete { _ in
            bound.value.close(promise: nil)
        }
    }

    /// TLS fails for whoever has no access, and the peer has the reason in an alert.
    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}

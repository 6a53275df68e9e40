import ApusCore
import ApusTLS
import ApusWire
import NIOCore
import NIOTLS

/// Runs a ``HandshakeStateMachine`` on a connection, then replaces itself by the lane's handler.
///
/// Before the handshake is complete, a connection costs the node at most a few KiB and the handshake's time-out: a
/// hello has at most 4 KiB, and any other input closes the connection (D3).
final class HandshakeHandler: ChannelInboundHandler, RemovableChannelHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    /// The longest hello, welcome or goodbye, in bytes.
    static let greetingByteCountMax = 4096

    /// The result of the handshake. Exactly one of the two closures is called, on the connection's event loop.
    struct Outcome: Sendable {
        /// Makes the lane's handler. It receives everything after the handshake. Nil closes the connection.
        var established: @Sendable (LinkPeer, any Channel) -> (any ChannelHandler)?
        var failed: @Sendable (RejectReason, any Error) -> Void
    }

    private var machine: HandshakeStateMachine
    private var decoder = LinkFrameDecoder(lengthMax: HandshakeHandler.greetingByteCountMax)
    private let timeout: TimeAmount
    private let revoked: @Sendable () -> RevokedCertificates
    private let outcome: Outcome
    private var timer: Scheduled<Void>?
    private var isFinished = false

    /// - Parameter revoked: the certificates that are refused. Read when TLS is complete.
    init(
        machine: HandshakeStateMachine, timeout: TimeAmount, revoked: @escaping @Sendable () -> RevokedCertificates,
        outcome: Outcome
    ) {
        self.machine = machine
        self.timeout = timeout
        self.revoked = revoked
        self.outcome = outcome
    }

    func handlerAdded(context: ChannelHandlerContext) {
        let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
        timer = context.eventLoop.scheduleTask(in: timeout) {
            let (handler, context) = bound.value
            handler.perform(handler.machine.timedOut(), context)
        }
    }

    func handlerRemoved(context: ChannelHandlerContext) { timer?.cancel() }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent {
            let certificate = NodeCertificate.ofPeer(context.channel)
            perform(
                machine.secured(
                    certificateName: certificate.flatMap { NodeCertificate.nodeName(of: $0) },
                    isRevoked: certificate.map { revoked().contains($0) } ?? false), context)
        }
        context.fireUserInboundEventTriggered(event)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        guard !isFinished else { return context.fireChannelRead(data) }
        decoder.append(bytes)
        do throws(ApusError) {
            while !isFinished, let frame = try decoder.next() { perform(machine.received(frame), context) }
        } catch {
            fail(error.code == .frameTooLarge ? .oversized : .malformed, error, context)
        }
    }

    func channelInactive(context: ChannelHandlerContext) {
        perform(machine.closed(), context)
        context.fireChannelInactive()
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        let reason: RejectReason =
            switch (error as? TLSError)?.kind {
            case .truncated: .truncated
            case .certificate: .certificate
            case .protocolViolated: .tls
            case nil: error is IOError ? .truncated : .tls
            }
        fail(reason, error, context)
    }

    private func perform(_ actions: [HandshakeStateMachine.Action], _ context: ChannelHandlerContext) {
        for action in actions where !isFinished {
            switch action {
            case .send(let frame):
                var buffer = ByteBuffer()
                frame.encode(into: &buffer)
                context.writeAndFlush(wrapOutboundOut(buffer), promise: nil)
            case .established(let peer):
                handOver(to: peer, context)
            case .reject(let reason, let error):
                fail(reason, error, context)
            }
        }
    }

    private func handOver(to peer: LinkPeer, _ context: ChannelHandlerContext) {
        isFinished = true
        timer?.cancel()
        guard let lane = outcome.established(peer, context.channel) else { return context.close(promise: nil) }
        do {
            try context.pipeline.syncOperations.addHandler(lane, position: .after(self))
        } catch {
            // The pipeline is being removed; `channelInactive` follows.
            return context.close(promise: nil)
        }
        let rest = decoder.takeBuffered()
        if rest.readableBytes > 0 {
            context.fireChannelRead(NIOAny(rest))
            context.fireChannelReadComplete()
        }
        context.pipeline.syncOperations.removeHandler(self, promise: nil)
    }

    private func fail(_ reason: RejectReason, _ error: any Error, _ context: ChannelHandlerContext) {
        guard !isFinished else { return }
        isFinished = true
        timer?.cancel()
        outcome.failed(reason, error)
        context.close(promise: nil)
    }
}

import ApusCore
import ApusWire
import NIOCore
import NIOPosix

extension Transport {
    /// Opens a control lane to the node as a link does, and closes it at once: a node that accepts TCP connections may
    /// still refuse this node's certificate.
    ///
    /// - Parameter timeout: of the TCP connect. The handshake has that of a link.
    package func reach(_ peer: Peer, timeout: Duration) async -> NodeReach {
        let loop = group.next()
        let answered = loop.makePromise(of: NodeReach.self)
        let dial = ClientBootstrap(group: loop)
            .connectTimeout(TimeAmount(timeout))
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture { try self.greet(channel, peer, answered) }
            }
        dial.connect(host: peer.address.host, port: peer.address.port).whenFailure { error in
            answered.succeed(LinkDialer.isRefusal(error) ? .refused : .silent)
        }
        return (try? await answered.futureResult.get()) ?? .silent
    }

    private func greet(
        _ channel: any Channel, _ peer: Peer, _ answered: EventLoopPromise<NodeReach>
    ) throws {
        closeOnExec(channel)
        let outcome = HandshakeHandler.Outcome(
            established: { _, _ in
                answered.succeed(.reached)
                return nil
            },
            failed: { reason, _ in answered.succeed(Self.reach(after: reason)) })
        let machine = HandshakeStateMachine(
            role: .dialer(expecting: peer.id, lane: .control), cluster: cluster, local: identity)
        let handshake = HandshakeHandler(
            machine: machine, timeout: TimeAmount(configuration.handshakeTimeout), revoked: { self.revoked },
            outcome: outcome)
        let tls = try presentSecrets().contexts.makeClientHandler(LaneName(placement: nil))
        try channel.pipeline.syncOperations.addHandlers([tls, handshake])
    }

    private static func reach(after reason: RejectReason) -> NodeReach {
        switch reason {
        // The node may be busy, or its process is ending: another attempt follows.
        case .timeout, .truncated: .silent
        // The hellos were exchanged: the node accepted the certificate.
        case .incarnation: .another
        default: .unwelcome
        }
    }
}

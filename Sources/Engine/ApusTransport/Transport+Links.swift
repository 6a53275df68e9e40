import ApusCore
import ApusWire
import Logging
import CoreMetrics
import NIOCore
import NIOSSL
import Synchronization

// How connections come to be: dialled ones and accepted ones, and what is done with those that
// break the rules.
extension Transport {
    private var controlLimits: ControlLink.Limits {
        ControlLink.Limits(
            inFlightMax: configuration.inFlightMax, frameByteCountMax: configuration.frameByteCountMax,
            outboundByteCountMax: configuration.controlOutboundByteCountMax,
            compressionThreshold: configuration.compressionThreshold,
            deadlineScanInterval: TimeAmount(configuration.deadlineScanInterval))
    }

    private func executor(of loop: any EventLoop) -> LoopTaskExecutor { executors.executor(of: loop) }

    /// The executor of one of the transport's loops: for tasks that mostly ask other nodes, or this one's entities.
    package func nextExecutor() -> LoopTaskExecutor { executor(of: group.next()) }

    /// An executor for actors that run wherever their messages arrive.
    package func makeTurnExecutor() -> TurnExecutor { TurnExecutor(loops: executors, home: nextExecutor()) }

    // MARK: Dialled

    func makeLinks(to peer: Peer) -> PeerLinks {
        var links = PeerLinks(peer: peer, control: [], dialers: [])
        for number in 0..<configuration.controlLaneCount {
            let loop = group.next()
            let link = ControlLink(loop: loop, executor: executor(of: loop), limits: controlLimits, metrics: metrics)
            // The first lane speaks for all of them: they end with the same process.
            let dialer = makeDialer(to: peer, lane: .control, loop: loop, isReported: number == 0) { end, channel in
                link.opened(channel)
                return self.makeHandler(link, end, isInitiator: true)
            }
            links.control.append(link)
            links.dialers.append(dialer)
        }
        let media = makeDialer(to: peer, lane: .media, loop: group.next()) { linkPeer, channel in
            self.makeMediaHandler(linkPeer, channel, isInitiator: true)
        }
        links.dialers.append(media)
        return links
    }

    private func makeDialer(
        to peer: Peer, lane: Lane, loop: any EventLoop, isReported: Bool = true,
        makeLane: @escaping @Sendable (LinkPeer, any Channel) -> any ChannelHandler
    ) -> LinkDialer {
        let facts: Logger.Metadata = [
            LogKey.peer: "\(peer.id)", LogKey.lane: "\(lane)", LogKey.address: "\(peer.address)",
        ]
        let delegate = LinkDialer.Delegate(
            makeTLS: { try self.tlsContexts().makeClientHandler() },
            makeHandshake: {
                HandshakeStateMachine(
                    role: .dialer(expecting: peer.id, lane: lane), cluster: self.cluster, local: self.identity)
            },
            makeLane: makeLane,
            rejected: { reason, error in self.reject(reason, error, facts) },
            report: { action in
                guard isReported else { return }
                switch action {
                case .reportUp:
                    self.logger.debug("A link to a node is up", metadata: facts)
                    self.onEvent(.linkUp(peer.id, lane))
                case .reportLost:
                    self.metrics.linksLost.increment()
                    self.logger.info("A link to a node was lost", metadata: facts)
                    self.onEvent(.linkLost(peer.id, lane))
                case .reportRefused:
                    self.logger.debug("A node's address refuses connections", metadata: facts)
                    self.onEvent(.connectRefused(peer.id))
                case .connect, .retry, .close:
                    break
                }
            })
        return LinkDialer(loop: loop, address: peer.address, configuration: configuration, delegate: delegate)
    }

    // MARK: Accepted

    /// Prepares a connection that was just accepted. On its loop.
    func accept(_ channel: any Channel) throws {
        closeOnExec(channel)
        let id = ObjectIdentifier(channel)
        let isAdmitted = state.withLock { state in
            guard state.phase != .stopped, state.handshakingCount < configuration.handshakingMax else { return false }
            state.handshakingCount += 1
            state.accepted[id] = channel
            return true
        }
        let facts: Logger.Metadata = [LogKey.address: "\(channel.remoteAddress.map { "\($0)" } ?? "unknown")"]
        guard isAdmitted else {
            reject(.crowded, ApusError(.overloaded), facts)
            throw ApusError(.overloaded)
        }
        let outcome = HandshakeHandler.Outcome(
            established: { peer, channel in
                self.handshakeEnded()
                return self.makeAcceptedHandler(peer, channel)
            },
            failed: { reason, error in
                self.handshakeEnded()
                self.reject(reason, error, facts)
            })
        channel.closeFuture.whenComplete { _ in self.acceptedClosed(id) }
        let machine = HandshakeStateMachine(role: .acceptor, cluster: cluster, local: identity)
        let handshake = HandshakeHandler(
            machine: machine, timeout: TimeAmount(configuration.handshakeTimeout), outcome: outcome)
        try channel.pipeline.syncOperations.addHandlers([tlsContexts().makeServerHandler(), handshake])
    }

    private func makeAcceptedHandler(_ peer: LinkPeer, _ channel: any Channel) -> any ChannelHandler {
        switch peer.lane {
        case .media:
            return makeMediaHandler(peer, channel, isInitiator: false)
        case .control:
            let server = ControlServer(
                channel: channel, peer: peer.id, executor: executor(of: channel.eventLoop), limits: controlLimits,
                metrics: metrics, handler: control)
            return makeHandler(server, peer, isInitiator: false)
        }
    }

    /// The connection is through the handshake, or failed there. An older connection of the same peer
    /// is left alone: which of two is the abandoned one is only known by its silence.
    private func handshakeEnded() { state.withLock { $0.handshakingCount -= 1 } }

    private func acceptedClosed(_ id: ObjectIdentifier) { state.withLock { $0.accepted[id] = nil } }

    // MARK: Both

    private func makeMediaHandler(
        _ peer: LinkPeer, _ channel: any Channel, isInitiator: Bool
    ) -> any ChannelHandler {
        let limits = MediaConnection.Limits(
            frameByteCountMax: configuration.frameByteCountMax,
            outboundByteCountMax: configuration.mediaOutboundByteCountMax)
        let connection = MediaConnection(
            channel: channel, peer: peer.id, isInitiator: isInitiator, limits: limits, delegate: media)
        connection.opened()
        return makeHandler(connection, peer, isInitiator: isInitiator)
    }

    private func makeHandler<Session: LaneSession>(
        _ session: Session, _ peer: LinkPeer, isInitiator: Bool
    ) -> any ChannelHandler {
        let limits = LaneHandler<Session>.Limits(
            frameByteCountMax: configuration.frameByteCountMax,
            pingInterval: TimeAmount(configuration.pingInterval),
            heardInterval: TimeAmount(configuration.heardInterval))
        let facts: Logger.Metadata = [LogKey.peer: "\(peer.id)", LogKey.lane: "\(peer.lane)"]
        return LaneHandler(
            session: session, peer: peer, isInitiator: isInitiator, limits: limits,
            heard: { self.onEvent(.heard(peer.id)) },
            faulted: { reason, error in self.reject(reason, error, facts) })
    }

    /// Counts, logs and tells of a link that was refused or closed for a fault of the other side.
    func reject(_ reason: RejectReason, _ error: any Error, _ facts: Logger.Metadata) {
        metrics.countRejected(reason)
        onEvent(.rejected(reason))
        var metadata = facts
        metadata[LogKey.reason] = "\(reason.rawValue)"
        metadata.merge(Logger.facts(of: error)) { $1 }
        // A node that dies or stops leaves half links behind; those are no one's fault.
        let level: Logger.Level = reason == .truncated || reason == .incarnation ? .debug : .warning
        limited.log(level, "A node link was refused", metadata: metadata)
    }

    private func tlsContexts() throws(ApusError) -> TLSContexts {
        guard let contexts = contexts.withLock({ $0 }) else { throw ApusError(.shuttingDown) }
        return contexts
    }
}

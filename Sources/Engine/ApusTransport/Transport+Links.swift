import ApusCore
import ApusWire
import Logging
import CoreMetrics
import NIOCore
import NIOPosix
import Synchronization

// Dialled and accepted connections, and the rejection of those that violate the protocol.
extension Transport {
    private var controlLimits: ControlLink.Limits {
        ControlLink.Limits(
            inFlightMax: configuration.inFlightMax, frameByteCountMax: configuration.frameByteCountMax,
            outboundByteCountMax: configuration.controlOutboundByteCountMax,
            compressionThreshold: configuration.compressionThreshold,
            deadlineScanInterval: TimeAmount(configuration.deadlineScanInterval))
    }

    private func executor(of loop: any EventLoop) -> LoopTaskExecutor { executors.executor(of: loop) }

    /// An executor on one of the transport's loops. For tasks that mostly call other nodes or this node's entities.
    package func nextExecutor() -> LoopTaskExecutor { executor(of: group.next()) }

    /// An executor for actors that run on the thread on which their messages arrive.
    package func makeTurnExecutor() -> TurnExecutor { TurnExecutor(loops: executors, home: nextExecutor()) }

    // MARK: Dialled

    func makeLinks(to peer: Peer) -> PeerLinks {
        var links = PeerLinks(peer: peer, control: [], dialers: [])
        for number in 0..<configuration.controlLaneCount {
            let placement = LanePlacement(
                number, of: configuration.controlLaneCount, from: identity.name, to: peer.id.name,
                loopCount: loops.count)
            let loop = loops[placement.index(of: loops.count)]
            let link = ControlLink(
                loop: loop, peer: peer.id.name, executor: executor(of: loop), limits: controlLimits, metrics: metrics,
                tracer: tracer)
            // The first lane reports for all lanes: they end with the same process.
            let dialer = makeDialer(
                to: peer, lane: .control, loop: loop, placement, isReported: number == 0
            ) { end, channel in
                link.opened(channel)
                self.note(end.version, of: end.id)
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
        to peer: Peer, lane: Lane, loop: any EventLoop, _ placement: LanePlacement? = nil, isReported: Bool = true,
        makeLane: @escaping @Sendable (LinkPeer, any Channel) -> any ChannelHandler
    ) -> LinkDialer {
        let facts: Logger.Metadata = [
            LogKey.peer: "\(peer.id)", LogKey.lane: "\(lane)", LogKey.address: "\(peer.address)",
        ]
        let delegate = LinkDialer.Delegate(
            makeTLS: { isForwarded in
                let secrets = try self.presentSecrets()
                let key = isForwarded ? secrets.forwardingKey : nil
                let name = LaneName(placement: placement, destination: key?.destination(peer.id.name))
                return secrets.contexts.makeClientHandler(name)
            },
            makeHandshake: {
                HandshakeStateMachine(
                    role: .dialer(expecting: peer.id, lane: lane), cluster: self.cluster, local: self.identity)
            },
            revoked: { self.revoked },
            makeLane: makeLane,
            rejected: { reason, error in
                if reason == .revoked { self.onEvent(.revoked(peer.id)) }
                if reason == .refused, (error as? ApusError)?.code == .certificateRevoked {
                    self.onEvent(.refusedAsRevoked(peer.id))
                }
                self.reject(reason, error, facts)
            },
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

    /// Prepares a connection that was just accepted. Call on its loop.
    func accept(_ channel: any Channel) throws {
        closeOnExec(channel)
        let id = ObjectIdentifier(channel)
        let isAdmitted = state.withLock { state in
            guard state.phase != .stopped, state.handshakingCount < configuration.handshakingMax else { return false }
            state.handshakingCount += 1
            state.accepted[id] = Accepted(channel: channel)
            return true
        }
        let facts: Logger.Metadata = [LogKey.address: "\(channel.remoteAddress.map { "\($0)" } ?? "unknown")"]
        guard isAdmitted else {
            reject(.crowded, ApusError(.overloaded), facts)
            throw ApusError(.overloaded)
        }
        channel.closeFuture.whenComplete { _ in self.acceptedClosed(id) }
        let greeting = Greeting(
            ended: { self.state.withLock { $0.handshakingCount -= 1 } },
            rejected: { reason, error in self.reject(reason, error, facts) })
        let placing = LanePlacementHandler(
            timeout: TimeAmount(configuration.handshakeTimeout),
            delegate: LanePlacementHandler.Delegate(
                local: identity.name,
                loop: { placement in self.loops[placement.index(of: self.loops.count)] },
                address: { destination throws(ApusError) in try self.forwardAddress(of: destination) },
                forward: { channel, address, bytes in
                    greeting.succeeded()
                    self.forward(channel, to: address, after: bytes)
                },
                stay: { try self.greet($0, greeting) },
                move: { descriptor, loop, bytes in self.accept(descriptor, on: loop, after: bytes, greeting) },
                failed: { greeting.failed($0, $1) }))
        try placing.add(to: channel)
    }

    /// An accepted connection before its handshake is complete. Its end may be reported several times and counts once.
    /// An older connection of the same peer stays open: only silence tells which of the two was abandoned.
    private final class Greeting: Sendable {
        private let isOver = Mutex(false)
        private let ended: @Sendable () -> Void
        private let rejected: @Sendable (RejectReason, any Error) -> Void

        init(ended: @escaping @Sendable () -> Void, rejected: @escaping @Sendable (RejectReason, any Error) -> Void) {
            (self.ended, self.rejected) = (ended, rejected)
        }

        private func end() -> Bool {
            let isFirst = isOver.withLock { isOver in
                defer { isOver = true }
                return !isOver
            }
            if isFirst { ended() }
            return isFirst
        }

        func succeeded() { _ = end() }

        func failed(_ reason: RejectReason, _ error: any Error) {
            if end() { rejected(reason, error) }
        }
    }

    /// Continues an accepted connection on another event loop, with the bytes that were read from it.
    private func accept(
        _ descriptor: CInt, on loop: any EventLoop, after bytes: ByteBuffer, _ greeting: Greeting
    ) {
        ClientBootstrap(group: loop)
            .channelOption(.autoRead, value: false)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    let id = ObjectIdentifier(channel)
                    let isWanted = self.state.withLock { state in
                        if state.phase != .stopped { state.accepted[id] = Accepted(channel: channel) }
                        return state.phase != .stopped
                    }
                    guard isWanted else { throw ApusError(.shuttingDown) }
                    channel.closeFuture.whenComplete { _ in self.acceptedClosed(id) }
                    try self.greet(channel, greeting)
                }
            }
            .withConnectedSocket(descriptor)
            .whenComplete { result in
                switch result {
                case .success(let channel):
                    channel.pipeline.fireChannelRead(bytes)
                    channel.pipeline.fireChannelReadComplete()
                    channel.setOption(.autoRead, value: true).whenFailure { _ in channel.close(promise: nil) }
                case .failure(let error):
                    greeting.failed(.truncated, error)
                }
            }
    }

    private func greet(_ channel: any Channel, _ greeting: Greeting) throws {
        let outcome = HandshakeHandler.Outcome(
            established: { peer, channel in
                greeting.succeeded()
                return self.makeAcceptedHandler(peer, channel)
            },
            failed: { greeting.failed($0, $1) })
        let machine = HandshakeStateMachine(
            role: .acceptor { peer in self.state.withLock { $0.ended.contains(peer) } }, cluster: cluster,
            local: identity)
        let secrets = try presentSecrets()
        let handshake = HandshakeHandler(
            machine: machine, timeout: TimeAmount(configuration.handshakeTimeout), revoked: { self.revoked },
            outcome: outcome)
        try channel.pipeline.syncOperations.addHandlers([secrets.contexts.makeServerHandler(), handshake])
    }

    /// Nil if the peer's incarnation ended while it was in the handshake.
    private func makeAcceptedHandler(_ peer: LinkPeer, _ channel: any Channel) -> (any ChannelHandler)? {
        let isWanted = state.withLock { state in
            state.accepted[ObjectIdentifier(channel)]?.peer = peer.id
            return !state.ended.contains(peer.id)
        }
        guard isWanted else { return nil }
        if peer.id.name == identity.name, peer.id != identity {
            onEvent(.ownName(peer.id, address: channel.remoteAddress?.ipAddress ?? "an unknown address"))
        }
        switch peer.lane {
        case .media:
            return makeMediaHandler(peer, channel, isInitiator: false)
        case .control:
            let server = ControlServer(
                channel: channel, peer: peer.id, executor: executor(of: channel.eventLoop), limits: controlLimits,
                metrics: metrics, tracer: tracer, handler: control)
            return makeHandler(server, peer, isInitiator: false)
        }
    }

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

    /// Counts, logs and reports a link that was refused or closed because of a fault of the peer.
    func reject(_ reason: RejectReason, _ error: any Error, _ facts: Logger.Metadata) {
        metrics.countRejected(reason)
        onEvent(.rejected(reason))
        var metadata = facts
        metadata[LogKey.reason] = "\(reason.rawValue)"
        metadata.merge(Logger.facts(of: error)) { $1 }
        // A node that dies or stops leaves half-open links behind. They are not a fault.
        let level: Logger.Level = reason == .truncated || reason == .incarnation ? .debug : .warning
        limited.log(level, "A node link was refused", metadata: metadata)
    }

    var revoked: RevokedCertificates { secrets.withLock { $0?.revoked } ?? .none }

    func presentSecrets() throws(ApusError) -> TransportSecrets {
        guard let secrets = secrets.withLock({ $0 }) else { throw ApusError(.shuttingDown) }
        return secrets
    }
}

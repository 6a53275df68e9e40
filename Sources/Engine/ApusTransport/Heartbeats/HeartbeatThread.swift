package import ApusCore
package import ApusWire
import CoreMetrics
package import Logging
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What decides on the heartbeat thread: the failure detector, which lives above the transport.
///
/// Every call comes on the thread; none may block.
package protocol HeartbeatDriver: Sendable {
    /// Comes every ``HeartbeatConfiguration/tickInterval``.
    mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound]
    /// A datagram that is authentic, not a replay, and from a life of a peer.
    mutating func received(_ message: HeartbeatMessage, from sender: NodeID, now: MonotonicTime) -> [HeartbeatOutbound]
}

/// A datagram to send.
package struct HeartbeatOutbound: Sendable, Equatable {
    package var message: HeartbeatMessage
    package var receiver: NodeID

    package init(_ message: HeartbeatMessage, to receiver: NodeID) {
        self.message = message
        self.receiver = receiver
    }
}

package struct HeartbeatConfiguration: Sendable {
    /// Where datagrams are taken: the transport's address and port number, on UDP.
    package var bind: HostPort
    /// How often the driver is ticked.
    package var tickInterval: Duration = .milliseconds(10)
    /// Peers that datagrams go to and come from; more are ignored.
    package var peerCountMax = 64

    package init(bind: HostPort) { self.bind = bind }
}

/// The heartbeat thread: a UDP socket, a clock, and a driver that decides, alone on one OS thread (D4).
///
/// Datagrams are authenticated with ``HeartbeatSeal``. Those of another cluster, forged, replayed, or from a
/// life that is not a peer are counted and have no other effect; nothing is ever sent back to an address that a
/// datagram came from.
///
/// Concurrency model: all state is confined to the thread's loop.
package final class HeartbeatThread<Driver: HeartbeatDriver>: Sendable {
    private struct PeerState {
        var id: NodeID
        var address: HostPort
        /// Nil until its name is resolved.
        var socketAddress: SocketAddress?
        var window = ReplayWindow()
    }

    private struct State {
        var driver: Driver
        var peers: [PeerState] = []
        var channel: (any Channel)?
        var sequence: UInt64 = 0
        var ticks: RepeatedTask?
    }

    private let configuration: HeartbeatConfiguration
    private let identity: NodeID
    private let clusterHash: UInt64
    private let seal: HeartbeatSeal
    private let thread = DedicatedLoop()
    private let state: NIOLoopBoundBox<State>
    private let metrics = HeartbeatMetrics()
    private let logger: Logger

    /// - Parameter identity: The life that this node takes; datagrams say it.
    package init(
        configuration: HeartbeatConfiguration, identity: NodeID, cluster: ClusterID, seal: HeartbeatSeal,
        driver: Driver, logger: Logger
    ) {
        self.configuration = configuration
        self.identity = identity
        clusterHash = StableHash.hash(cluster.rawValue)
        self.seal = seal
        self.logger = logger
        state = .makeBoxSendingValue(State(driver: driver), eventLoop: thread.loop)
    }

    /// Opens the socket and starts the clock.
    ///
    /// - Returns: The address that was bound, with its actual port.
    /// - Throws: 10019 where the address is in use, 10022 where it cannot be bound.
    package func start() async throws(ApusError) -> HostPort {
        let address = configuration.bind
        do {
            let channel = try await DatagramBootstrap(group: thread.loop)
                .channelInitializer { channel in
                    channel.eventLoop.makeCompletedFuture {
                        closeOnExec(channel)
                        try channel.pipeline.syncOperations.addHandler(DatagramHandler { self.received($0) })
                    }
                }
                .bind(host: address.host, port: address.port).get()
            try await thread.loop.submit { self.began(on: channel) }.get()
            return HostPort(host: address.host, port: channel.localAddress?.port ?? address.port)
        } catch let error as IOError where error.errnoCode == EADDRINUSE {
            throw ApusError(.addressInUse, "the heartbeat address \(address) is in use on UDP")
        } catch {
            throw ApusError(.configurationInvalid, "heartbeats cannot be bound to \(address): \(error)")
        }
    }

    /// Makes the peers fit the list. Names are resolved away from the thread; a peer whose name does not resolve gets
    /// no datagrams until the next call. What came from a peer is remembered against replays as long as its
    /// life stays in the list.
    package func setPeers(_ peers: [Peer]) {
        let wanted = peers.filter { $0.id != identity }.prefix(configuration.peerCountMax)
        thread.loop.execute {
            let earlier = self.state.value.peers
            self.state.value.peers = wanted.map { peer in
                if let known = earlier.first(where: { $0.id == peer.id && $0.address == peer.address }) { return known }
                let literal = try? SocketAddress(ipAddress: peer.address.host, port: peer.address.port)
                return PeerState(id: peer.id, address: peer.address, socketAddress: literal)
            }
            for peer in self.state.value.peers where peer.socketAddress == nil { self.resolve(peer.address) }
            self.startOrStopTicks()
        }
    }

    /// Gives the driver something from outside, on the thread; what it returns is sent.
    package func perform(_ body: @escaping @Sendable (inout Driver, MonotonicTime) -> [HeartbeatOutbound]) {
        thread.loop.execute { self.send(body(&self.state.value.driver, .now())) }
    }

    /// As ``perform(_:)``, for a look at the driver.
    package func read<Value: Sendable>(_ body: @escaping @Sendable (Driver) -> Value) async -> Value? {
        try? await thread.loop.submit { body(self.state.value.driver) }.get()
    }

    /// Closes the socket and stops the clock; the thread ends with the last reference.
    package func stop() async {
        let closing = try? await thread.loop.submit { () -> (any Channel)? in
            self.state.value.ticks?.cancel()
            self.state.value.ticks = nil
            defer { self.state.value.channel = nil }
            return self.state.value.channel
        }.get()
        // A channel that is closed already is what is wanted.
        if let channel = closing ?? nil { try? await channel.close() }
    }

    // MARK: On the thread

    private func began(on channel: any Channel) {
        state.value.channel = channel
        startOrStopTicks()
        channel.closeFuture.whenComplete { _ in
            guard self.state.value.channel === channel else { return }
            self.logger.error("The heartbeat socket closed by itself; peers will take this node for dead")
        }
    }

    /// The clock runs while there are peers to watch: a node that is alone costs nothing.
    private func startOrStopTicks() {
        guard state.value.channel != nil, !state.value.peers.isEmpty else {
            state.value.ticks?.cancel()
            state.value.ticks = nil
            return
        }
        guard state.value.ticks == nil else { return }
        state.value.ticks = thread.loop.scheduleRepeatedTask(
            initialDelay: .zero, delay: TimeAmount(configuration.tickInterval)
        ) { _ in
            self.send(self.state.value.driver.tick(now: .now()))
        }
    }

    private func received(_ bytes: ByteBuffer) {
        do throws(HeartbeatFault) {
            let datagram = try seal.open(bytes, receiver: identity, clusterHash: clusterHash)
            guard let index = state.value.peers.firstIndex(where: { $0.id == datagram.sender }) else { throw .sender }
            guard state.value.peers[index].window.admit(datagram.sequence) else { throw .replayed }
            metrics.received.increment()
            send(state.value.driver.received(datagram.message, from: datagram.sender, now: .now()))
        } catch {
            metrics.countIgnored(error)
            logger.trace("A heartbeat datagram was ignored", metadata: [LogKey.reason: "\(error.rawValue)"])
        }
    }

    private func send(_ outbound: [HeartbeatOutbound]) {
        guard let channel = state.value.channel, !outbound.isEmpty else { return }
        for datagram in outbound {
            guard let peer = state.value.peers.first(where: { $0.id == datagram.receiver }),
                let address = peer.socketAddress
            else { continue }
            state.value.sequence += 1
            let bytes = seal.seal(
                HeartbeatDatagram(
                    clusterHash: clusterHash, sequence: state.value.sequence, sender: identity,
                    message: datagram.message), to: datagram.receiver)
            metrics.sent.increment()
            channel.write(AddressedEnvelope(remoteAddress: address, data: bytes), promise: nil)
        }
        channel.flush()
    }

    private func resolve(_ address: HostPort) {
        NIOThreadPool.singleton.runIfActive(eventLoop: thread.loop) {
            try SocketAddress.makeAddressResolvingHost(address.host, port: address.port)
        }.whenComplete { result in
            switch result {
            case .success(let resolved):
                for index in self.state.value.peers.indices where self.state.value.peers[index].address == address {
                    self.state.value.peers[index].socketAddress = resolved
                }
            case .failure(let error):
                self.logger.warning(
                    "A peer's heartbeat address cannot be resolved",
                    metadata: [LogKey.address: "\(address)", LogKey.error: "\(error)"])
            }
        }
    }
}

/// Hands each datagram's bytes on.
private final class DatagramHandler: ChannelInboundHandler {
    typealias InboundIn = AddressedEnvelope<ByteBuffer>

    private let received: (ByteBuffer) -> Void

    init(_ received: @escaping (ByteBuffer) -> Void) { self.received = received }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) { received(unwrapInboundIn(data).data) }

    /// A failed read of one datagram, such as an error that the network reported back, is no end of the socket.
    func errorCaught(context: ChannelHandlerContext, error: any Error) {}
}

/// The heartbeat thread's counters.
private struct HeartbeatMetrics: Sendable {
    let sent = Counter(label: "apus_heartbeat_sent_total")
    let received = Counter(label: "apus_heartbeat_received_total")
    /// Datagrams without effect, by reason.
    private let ignored: [HeartbeatFault: Counter]

    init() {
        ignored = Dictionary(
            uniqueKeysWithValues: HeartbeatFault.allCases.map {
                ($0, Counter(label: "apus_heartbeat_ignored_total", dimensions: [("reason", $0.rawValue)]))
            })
    }

    func countIgnored(_ fault: HeartbeatFault) { ignored[fault]?.increment() }
}

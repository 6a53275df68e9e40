package import ApusCluster
package import ApusCore
package import ApusMedia
package import ApusTransport
package import ApusWire
import CoreMetrics
package import Logging
package import NIOCore
import Synchronization

/// The media channels of a node (D7): the channels of each event loop, and the media links between nodes.
///
/// The path of a frame, camera to viewer: gateway → channel's home loop (number check, ring) → each loop with receivers
/// (one write per receiver) → gateway or media link. It involves no task and no actor.
///
/// Concurrency model: immutable except for counters and the table of links, which locks guard.
package final class ChannelService: Sendable {
    package let configuration: ChannelConfiguration
    package let view: ClusterView
    package let metrics = ChannelMetrics()
    let log: Logger
    private nonisolated(unsafe) var loops: [ChannelLoop] = []  // SAFETY: only `init` writes it, before it is shared.
    private let shared: Mutex<Shared>

    private struct Shared {
        var peers: [NodeID: MediaPeer] = [:]
        var all: [ObjectIdentifier: MediaPeer] = [:]
        /// The channels' home loops. Each hub, and each caller on its way to one, counts as a use.
        var homes: [ChannelID: (loop: ChannelLoop, uses: Int)] = [:]
        var published: ChannelShares
        var watched: ChannelShares
        var ringBytes: AccountShares
        var nextStream: StreamNumber = 1
        var nextIngest: ChannelStateMachine.IngestID = 1
        /// The candidate for the standby of each shard; at most as many as the cluster moves at once.
        var candidates: [ShardID: NodeID] = [:]
    }

    /// - Throws: 10007 if the process has no descriptor left for the clocks of its event loops.
    package init(
        configuration: ChannelConfiguration, view: ClusterView, group: any EventLoopGroup, log: Logger
    ) throws(ApusError) {
        self.configuration = configuration
        shared = Mutex(
            Shared(
                published: ChannelShares(
                    capacity: configuration.channelsMax, sourcesMax: configuration.sourcesMax),
                watched: ChannelShares(
                    capacity: configuration.watchedMax, sourcesMax: configuration.sourcesMax),
                ringBytes: AccountShares(capacity: configuration.ringByteCountTotalMax)))
        self.view = view
        self.log = log
        loops = try group.makeIterator().map { eventLoop throws(ApusError) in
            try ChannelLoop(eventLoop: eventLoop, service: self)
        }
        view.observe { [weak self] _, _ in
            guard let self else { return }
            for loop in loops { loop.eventLoop.execute { loop.mapChanged() } }
        }
    }

    // MARK: - For the gateway

    /// Adds a viewer or a recorder. Called on the sink's event loop; `completion` is called there.
    ///
    /// With a position, the receiver gets every frame after it. Without one, it gets the live picture from the last key
    /// frame.
    ///
    /// - Parameter account: the device's account, according to its owner. The channel uses this account's share.
    package func play(
        _ channel: ChannelID, of account: AccountID? = nil, sink: any FrameSink, after: FramePosition?,
        completion: @escaping @Sendable (Result<Receipt, ApusError>) -> Void
    ) {
        loop(for: sink.eventLoop).join(
            channel, of: account, sink: sink, kind: sink.need == .recorder ? .recorder : .viewer, after: after,
            completion: completion)
    }

    /// Opens a device's stream to its channel's primary. The sink receives the result within
    /// ``ChannelConfiguration/publishTimeout``: 10010 if no primary answered. `completion` receives 10007 if the
    /// account, or the node, has no room for another channel.
    ///
    /// - Parameter account: the device's account. The channel uses this account's share.
    package func publish(
        _ channel: ChannelID, of account: AccountID? = nil, offer: PublishOffer, sink: any PublisherSink,
        completion: @escaping @Sendable (Result<PublishHandle, ApusError>) -> Void
    ) {
        atHome(of: channel, from: sink.eventLoop) { home in
            let result: Result<PublishHandle, ApusError> = home.hub(
                for: channel, of: account, isClaimed: true
            ).flatMap { hub in
                if let previous = hub.endpoint {
                    guard offer.isConfirmed || offer.instance == previous.instance else {
                        return .failure(ApusError(.unavailable, "the device's owner has not confirmed its session yet"))
                    }
                    // A publisher that brings its own epoch, or returns with one, is refused if another has a higher
                    // one. A publisher that asks for a new epoch has just signed in, and the sessions decide which
                    // client may do so.
                    let isBehind = offer.epoch > 0 && offer.epoch < previous.epoch
                    guard !isBehind || previous.instance == offer.instance else {
                        return .failure(ApusError(.stalePublisher))
                    }
                    previous.close()
                    let (old, stream) = (previous.publisher, hub.stream)
                    if old !== sink { old.eventLoop.execute { old.publishFailed(stream, ApusError(.stalePublisher)) } }
                }
                let endpoint = PublisherEndpoint(hub: hub, sink: sink, offer: offer)
                hub.endpoint = endpoint
                return .success(PublishHandle(hub: hub, endpoint: endpoint))
            }
            sink.eventLoop.execute { completion(result) }
            if case .success(let handle) = result {
                home.eventLoop.execute { handle.start() }
            }
        }
    }

    // MARK: - For other parts of this module

    /// Runs work on the channel's home loop. If the channel has none yet, the calling loop becomes its home.
    ///
    /// A camera with few viewers thus has its publisher, its hub and often its viewers on one loop, and a frame wakes
    /// one thread instead of two or three.
    func atHome(
        of channel: ChannelID, from eventLoop: any EventLoop, _ body: @escaping @Sendable (ChannelLoop) -> Void
    ) {
        let asking = loop(for: eventLoop)
        let home = shared.withLock { shared in
            let home = shared.homes[channel]?.loop ?? asking
            shared.homes[channel, default: (home, 0)].uses += 1
            return home
        }
        home.eventLoop.execute { [self] in
            body(home)
            releaseHome(of: channel)
        }
    }

    /// Keeps the channel at its home until ``releaseHome(of:)``, because it has a hub. Call it from
    /// ``atHome(of:from:_:)``.
    func retainHome(of channel: ChannelID) { shared.withLock { $0.homes[channel]?.uses += 1 } }

    func releaseHome(of channel: ChannelID) {
        shared.withLock { shared in
            guard let uses = shared.homes[channel]?.uses else { return }
            if uses > 1 { shared.homes[channel]?.uses = uses - 1 } else { shared.homes[channel] = nil }
        }
    }

    /// The home of a channel that has one.
    func home(of channel: ChannelID) -> ChannelLoop? { shared.withLock { $0.homes[channel]?.loop } }

    /// The loops of the node's channels.
    var allLoops: [ChannelLoop] { loops }

    /// The number of channels with a home: those with a hub, and those to which a caller is on the way.
    package var homeCount: Int { shared.withLock { $0.homes.count } }

    func loop(for eventLoop: any EventLoop) -> ChannelLoop {
        // Node and gateway use the event loop group of this service.
        guard let loop = loops.first(where: { $0.eventLoop === eventLoop }) else {
            preconditionFailure("a socket runs on an event loop that is not the node's")
        }
        return loop
    }

    /// The clock of an event loop.
    package func clock(of eventLoop: any EventLoop) -> LoopClock { loop(for: eventLoop).clock }

    /// A number for a new channel; nil if its owner, its account or the node has no room in the table.
    func takeStreamNumber(
        for channel: ChannelID, _ table: ChannelTable, of account: AccountID?
    ) -> StreamNumber? {
        let stream = shared.withLock { shared -> StreamNumber? in
            let isTaken =
                switch table {
                case .published: shared.published.take(for: channel.owner, of: account)
                case .watched: shared.watched.take(for: channel.owner, of: account)
                }
            guard isTaken else { return nil }
            defer { shared.nextStream &+= 1 }
            return shared.nextStream
        }
        if stream == nil { metrics.refused.increment() } else { meter(of: table).increment() }
        return stream
    }

    func returnStreamNumber(of hub: ChannelHub) {
        shared.withLock { shared in
            switch hub.table {
            case .published: shared.published.give(for: hub.channel.owner, of: hub.account)
            case .watched: shared.watched.give(for: hub.channel.owner, of: hub.account)
            }
        }
        meter(of: hub.table).decrement()
    }

    /// A channel that was only watched is now published here. Returns false if there is no room.
    func claim(_ hub: ChannelHub) -> Bool {
        let isTaken = shared.withLock { shared in
            guard shared.published.take(for: hub.channel.owner, of: hub.account) else { return false }
            shared.watched.give(for: hub.channel.owner, of: hub.account)
            return true
        }
        guard isTaken else {
            metrics.refused.increment()
            return false
        }
        metrics.watched.decrement()
        metrics.channels.increment()
        return true
    }

    private func meter(of table: ChannelTable) -> Meter {
        switch table {
        case .published: metrics.channels
        case .watched: metrics.watched
        }
    }

    /// The frame bytes that the node's channels hold, by their last reports.
    package var ringByteCount: Int { shared.withLock { $0.ringBytes.used } }

    /// A channel's ring changed its size. Returns the limit of the ring and the size that is counted.
    ///
    /// Within the account's share the limit is the configured one. Beyond it, each of the account's channels gets an
    /// equal part of the share, so its largest rings are shortened first.
    func ringChanged(from old: Int, to new: Int, of account: AccountID?) -> (limit: Int, counted: Int) {
        let result = shared.withLock { shared in
            shared.ringBytes.recount(
                from: old, to: new, most: configuration.machine.ring.byteCountMax, of: account,
                holderCount: shared.published.held(by: account) + shared.watched.held(by: account))
        }
        metrics.ringBytes.increment(by: Double(result.counted - old))
        return result
    }

    func takeIngestID() -> ChannelStateMachine.IngestID {
        shared.withLock { shared in
            defer { shared.nextIngest += 1 }
            return shared.nextIngest
        }
    }

    /// The media link from this node to another, if it is up.
    func peer(of node: NodeID) -> MediaPeer? { shared.withLock { $0.peers[node] } }

    // MARK: - Status

    /// The status of all channels. Asks every loop.
    package func status() async -> [ChannelStatus] {
        var result: [ChannelStatus] = []
        for loop in loops {
            let hubs = try? await loop.eventLoop.submit { loop.hubs.values.map { $0.status } }.get()
            for var status in hubs ?? [] {
                for other in loops {
                    let channel = status.channel
                    status.viewers += (try? await other.eventLoop.submit { other.viewerCount(of: channel) }.get()) ?? 0
                }
                result.append(status)
            }
        }
        return result.sorted { $0.channel < $1.channel }
    }

    /// Sets the candidate for the standby of a shard that this node owns; nil: none. The shard's channels are copied to
    /// the candidate as well as to the standby (D5). May be called from any thread; later calls see the change.
    package func setCandidate(_ shard: ShardID, _ node: NodeID?) {
        shared.withLock { $0.candidates[shard] = node }
        for loop in loops {
            loop.eventLoop.execute { loop.setCandidate(node, of: shard) }
        }
    }

    /// The candidate for the shard's standby.
    func candidate(of shard: ShardID) -> NodeID? { shared.withLock { $0.candidates[shard] } }

    /// True if a node has every acknowledged frame of a shard's channels, and later frames are acknowledged only when
    /// it has them. The map may then name it. The node is the standby, or the candidate of ``setCandidate(_:_:)``.
    package func isCopied(_ shard: ShardID, to node: NodeID) async -> Bool {
        for loop in loops {
            let isBehind = try? await loop.eventLoop.submit {
                loop.hubs.values.contains { hub in
                    hub.channel.shard == shard && !hub.machine.isCopied(to: node)
                }
            }.get()
            if isBehind ?? true { return false }
        }
        return true
    }
}

/// The node's limit against which a channel counts.
enum ChannelTable: Sendable {
    /// It is published or copied here.
    case published
    /// Only viewers and other nodes request it here.
    case watched
}

/// A channel in a node's status.
package struct ChannelStatus: Sendable {
    package var channel: ChannelID
    package var role: ChannelStateMachine.Role
    package var primary: NodeID?
    package var standby: NodeID?
    package var term: Epoch
    package var last: FramePosition?
    package var isProtected: Bool
    package var isFed: Bool
    package var viewers: Int
}

extension ChannelHub {
    var status: ChannelStatus {
        ChannelStatus(
            channel: channel, role: machine.role, primary: machine.assignment.owner,
            standby: machine.assignment.standby, term: machine.assignment.term, last: machine.ring.last,
            isProtected: machine.isProtected, isFed: machine.isFed, viewers: 0)
    }
}

/// A device's open stream at this node. Used on the device's event loop.
package final class PublishHandle: Sendable {
    private let hub: ChannelHub
    private let endpoint: PublisherEndpoint

    init(hub: ChannelHub, endpoint: PublisherEndpoint) {
        self.hub = hub
        self.endpoint = endpoint
    }

    /// The number that the stream's frames carry.
    package var stream: StreamNumber { hub.stream }

    fileprivate func start() { endpoint.assign(now: .now()) }

    /// Sends frames of the device, in order: whole link frames whose correlation is ``stream``.
    package func send(_ frames: [RelayFrame]) {
        if hub.loop.eventLoop.inEventLoop { return endpoint.send(frames) }
        hub.loop.eventLoop.execute { [endpoint] in endpoint.send(frames) }
    }

    /// Sends frames of a publisher within this node, in order. Frames that cannot be encoded are left out.
    package func send(_ frames: [MediaFrame]) {
        let relayed: [RelayFrame] = frames.compactMap { frame in
            try? RelayFrame(encoding: frame) { byteCount, buffer in
                LinkFrame.encodeHeader(kind: .media, correlation: stream, payloadByteCount: byteCount, into: &buffer)
            }
        }
        send(relayed)
    }

    /// The owner of the device's identity confirmed its session. The stream may start a new run.
    package func confirm() { hub.loop.eventLoop.execute { [endpoint] in endpoint.confirm(now: .now()) } }

    /// The device ended the stream or disconnected.
    package func close() {
        hub.loop.eventLoop.execute { [hub, endpoint] in
            endpoint.close()
            if hub.endpoint === endpoint { hub.endpoint = nil }
        }
    }
}

// MARK: - The media lane

extension ChannelService: MediaLaneDelegate {
    package func opened(_ connection: MediaConnection) {
        let peer = MediaPeer(connection: connection, service: self)
        shared.withLock { shared in
            shared.all[ObjectIdentifier(connection)] = peer
            if connection.isInitiator { shared.peers[connection.peer] = peer }
        }
        peer.eventLoop.execute { peer.report() }
    }

    package func received(_ frame: LinkFrame, on connection: MediaConnection) { peer(at: connection)?.received(frame) }
    package func readCompleted(_ connection: MediaConnection) { peer(at: connection)?.readCompleted() }
    package func writabilityChanged(_ connection: MediaConnection) { peer(at: connection)?.writabilityChanged() }

    package func closed(_ connection: MediaConnection) {
        let peer = shared.withLock { shared -> MediaPeer? in
            let peer = shared.all.removeValue(forKey: ObjectIdentifier(connection))
            if let peer, shared.peers[connection.peer] === peer { shared.peers[connection.peer] = nil }
            return peer
        }
        peer?.closed()
    }

    private func peer(at connection: MediaConnection) -> MediaPeer? {
        shared.withLock { $0.all[ObjectIdentifier(connection)] }
    }
}

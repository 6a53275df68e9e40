import ApusChannels
import ApusCluster
import ApusCore
import ApusListener
import ApusMediaAccess
import ApusSessions
import ApusTLS
import ApusTransport
import CoreMetrics
import NIOCore

/// The connections of one event loop, and the timer that checks them.
///
/// Concurrency model: confined to ``eventLoop``.
final class GatewayLoop: SendClock, @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    let eventLoop: any EventLoop
    private let index: Int
    unowned let service: Gateway
    /// By slot.
    private var connections: [ClientHandler?] = []
    private(set) var connectionCount = 0
    /// The number of connections that exist only to be refused.
    private var refusingCount = 0
    private var endpoints: [TLSServerHandler] = []
    private var unauthenticated = HandshakePlaces<ClientHandler>()
    private var keepalives: KeepaliveClock
    let clock: LoopClock
    /// The next check of the connections. Not set before the listener opens.
    private lazy var nextLook = clock.deadline { [weak self] in self?.look() }
    private var nextLookAtAll = MonotonicTime.zero
    /// The thread's CPU time at the last check.
    private var used = (time: MonotonicTime.zero, busy: Duration.zero)
    private var busyShare = 0.0
    /// Counts the calls of ``keepAll()``.
    private var keepCount = 0
    /// Runs the work of this loop's connections.
    let executor: LoopTaskExecutor
    private let work: AsyncStream<@Sendable () async -> Void>
    private let workFeed: AsyncStream<@Sendable () async -> Void>.Continuation

    init(eventLoop: any EventLoop, index: Int, service: Gateway) {
        self.eventLoop = eventLoop
        self.index = index
        self.service = service
        clock = service.channels.clock(of: eventLoop)
        executor = LoopTaskExecutor(eventLoop)
        // Bounded: each connection limits the requests that it has in progress.
        (work, workFeed) = AsyncStream.makeStream()
        keepalives = KeepaliveClock(keepalive: service.configuration.streamKeepalive)
    }

    var configuration: GatewayConfiguration { service.configuration }

    // MARK: - Work that waits for other nodes

    /// Starts a piece of a connection's work, on this loop.
    func run(_ piece: @escaping @Sendable () async -> Void) { workFeed.yield(piece) }

    /// Runs the pieces concurrently until ``endWork()``, then waits for those in progress.
    func runWork() async {
        await withDiscardingTaskGroup { group in
            for await piece in work { group.addTask { await piece() } }
        }
    }

    func endWork() { workFeed.finish() }

    // MARK: - Admission

    var timing: ClientConnectionStateMachine.Timing {
        .init(
            handshakeTimeout: configuration.handshakeTimeout, keepalive: configuration.keepalive,
            streamKeepalive: keepalives.silenceMin, idleTimeout: configuration.idleTimeout,
            slowReaderTimeout: configuration.slowReaderTimeout)
    }

    /// The limits are divided evenly by the number of loops, because connections are spread over the loops.
    private var share: Int { max(1, service.loopCount) }
    private var hasRoom: Bool { connectionCount < max(1, configuration.connectionsMax / share) }

    /// The decision about the next connection.
    enum Admission {
        case serve
        /// The connection is accepted, and its hello is answered with a goodbye.
        case refuse(ApusError)
        /// Too many are being refused already.
        case close
    }

    var admission: Admission {
        if hasRoom { return .serve }
        guard refusingCount < max(1, configuration.refusalsMax / share) else { return .close }
        return .refuse(
            ApusError(.tooManyConnections, "this node has reached its limit of connections; connect to another"))
    }

    var counts: (devices: Int, apps: Int, viewers: Int) {
        var counts = (devices: 0, apps: 0, viewers: 0)
        for case let handler? in connections {
            switch handler.session?.role {
            case .device: counts.devices += 1
            case .app: counts.apps += 1
            case .admin, .customer, nil: break
            }
            counts.viewers += handler.media?.played.count ?? 0
        }
        return counts
    }

    /// A TLS handler for a new connection. Handlers are allocated in groups, so that they are adjacent in memory: a
    /// fan-out visits all of them for each frame, and one page per handler would cost a TLB miss each.
    func takeEndpoint(_ tls: TLSServerContext) -> TLSServerHandler {
        // Handlers of a certificate that was replaced meanwhile are dropped.
        if endpoints.isEmpty || endpoints.last?.context !== tls {
            endpoints = (0..<Self.endpointsAtOnce).map { _ in TLSServerHandler(context: tls) }
        }
        return endpoints.removeLast()
    }
    private static let endpointsAtOnce = 32

    func start() { nextLook.set(.now() + Self.lookInterval) }

    func added(_ handler: ClientHandler) {
        handler.slot = keepalives.add(now: .now())
        if handler.slot == connections.count { connections.append(nil) }
        connections[handler.slot] = handler
        service.metrics.accepted.increment()
        service.metrics.connections.increment()
        guard handler.refusal == nil else {
            refusingCount += 1
            return
        }
        connectionCount += 1
        let unauthenticatedMax = max(1, configuration.unauthenticatedMax / share)
        // It is removed first: closing takes time if the peer does not answer.
        if let closed = unauthenticated.add(handler, countMax: unauthenticatedMax, at: .now()) {
            closed.close(ApusError(.tooManyConnections, "too many connections wait for their hello"))
        }
        report()
    }

    /// Notes the account of the connection's client. Returns false if the account already has its share of the
    /// connections.
    func authenticated(_ handler: ClientHandler, as account: AccountID) -> Bool {
        guard service.takePlace(for: account) else { return false }
        unauthenticated.remove(handler)
        report()
        return true
    }

    /// Returns true if the connection was registered.
    func removed(_ handler: ClientHandler) -> Bool {
        guard isHere(handler) else { return false }
        connections[handler.slot] = nil
        if handler.refusal == nil { connectionCount -= 1 } else { refusingCount -= 1 }
        keepalives.remove(handler.slot)
        if let account = handler.session?.account {
            service.givePlace(of: account)
        } else {
            unauthenticated.remove(handler)
        }
        service.metrics.connections.decrement()
        report()
        return true
    }

    /// False before the connection was added and after it was removed.
    private func isHere(_ handler: ClientHandler) -> Bool {
        handler.slot < connections.count && connections[handler.slot] === handler
    }

    func streamsChanged(_ handler: ClientHandler) {
        guard isHere(handler) else { return }
        let isStreaming = handler.machine.streamCount > 0
        keepalives.setStreams(handler.slot, isStreaming: isStreaming, isPlaying: handler.isPlaying)
        let due = MonotonicTime.now() + keepalives.keepalive
        if isStreaming, let next = nextLook.time, next > due { nextLook.set(due) }
    }

    func lastSent(_ slot: Int) -> MonotonicTime { keepalives.lastSent(slot) }

    /// Notes that bytes were sent to a connection. If all playing connections were sent some at this moment, the next
    /// check is postponed, so a stream of frames causes no wake-ups between frames.
    func sent(_ slot: Int, now: MonotonicTime) {
        guard keepalives.sent(slot, now: now) else { return }
        let time = min(keepalives.nextLook(now: now) ?? nextLookAtAll, nextLookAtAll)
        if let next = nextLook.time, next < time { nextLook.set(time) }
    }

    func closeAll(_ error: ApusError) {
        for case let handler? in connections { handler.close(error) }
    }

    /// Asks the clients to connect elsewhere, one after the other, publishers first: each new connection costs its node
    /// a handshake, and the load on the other nodes must stay even.
    func sendAllAway(to endpoints: [String]) {
        let clients = connections.compactMap { $0 }
        let ordered = clients.filter(\.isPublishing) + clients.filter { !$0.isPublishing }
        let spacing = min(Self.sendAwaySpacing, Self.sendAwayDuration / max(1, ordered.count))
        let keepCount = keepCount
        for (number, handler) in ordered.enumerated() {
            eventLoop.assumeIsolated().scheduleTask(in: .nanoseconds((spacing * number).nanoseconds)) { [self] in
                if self.keepCount == keepCount { handler.sendAway(to: endpoints) }
            }
        }
    }

    /// Asks none of the clients that ``sendAllAway(to:)`` has not asked yet.
    func keepAll() { keepCount += 1 }

    private static let sendAwaySpacing = Duration.milliseconds(20)
    /// All clients are asked within this time, whatever their number.
    private static let sendAwayDuration = Duration.seconds(10)

    /// Checks connections with streams as soon as one of them may have been silent for too long, and all connections
    /// once a second.
    private func look() {
        let now = MonotonicTime.now()
        for slot in keepalives.silent(now: now) { connections[slot]?.tick(now: now) }
        if now >= nextLookAtAll {
            nextLookAtAll = now + Self.lookInterval
            let wallSeconds = service.view.clock.wallSeconds()
            for case let handler? in connections {
                handler.tick(now: now)
                handler.wallClockRead(seconds: wallSeconds)
            }
            measure(now: now)
            if index == 0 { service.metrics.reconnectSpread.record(Double(service.reconnectSpreadMs) / 1000) }
        }
        nextLook.set(min(nextLookAtAll, keepalives.nextLook(now: now) ?? nextLookAtAll))
    }
    /// Measures the thread's load since the last check.
    private func measure(now: MonotonicTime) {
        let busy = MonotonicTime.usedByThisThread()
        let passed = now - used.time
        // Smoothed: a second of handshakes does not move new connections to another loop, half a minute of frames does.
        if passed > .zero { busyShare += ((busy - used.busy) / passed - busyShare) * 0.3 }
        used = (now, busy)
        report()
    }

    private func report() {
        service.report(
            .init(
                connectionCount: connectionCount, unauthenticatedCount: unauthenticated.count, busyShare: busyShare,
                isFull: !hasRoom),
            of: index)
    }

    private static let lookInterval = Duration.seconds(1)
}

import ApusChannels
import ApusCluster
import ApusCore
import ApusSessions
import ApusTLS
import ApusTransport
import CoreMetrics
import NIOCore

/// The connections of one event loop, with the clock that watches them.
///
/// Concurrency model: confined to ``eventLoop``.
final class GatewayLoop: SendClock, @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    let eventLoop: any EventLoop
    private let index: Int
    unowned let service: Gateway
    /// By slot.
    private var connections: [ClientHandler?] = []
    private(set) var connectionCount = 0
    /// Connections that are only here to be told that there is no room.
    private var refusingCount = 0
    private var doors: [TLSServerHandler] = []
    /// Connections without a session, oldest first.
    private var strangers: [ClientHandler] = []
    private var keepalives: KeepaliveClock
    let clock: LoopClock
    /// The next look at the connections; not set before the door opens.
    private lazy var nextLook = clock.deadline { [weak self] in self?.look() }
    private var nextLookAtAll = MonotonicTime.zero
    /// What the loop's thread had used at the last look.
    private var used = (time: MonotonicTime.zero, busy: Duration.zero)
    private var busyShare = 0.0
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
        // Bounded by the connections: each has at most one piece of work in here.
        (work, workFeed) = AsyncStream.makeStream()
        keepalives = KeepaliveClock(keepalive: service.configuration.streamKeepalive)
    }

    var configuration: GatewayConfiguration { service.configuration }

    // MARK: - Work that waits for others

    /// Begins a piece of a connection's work, on this loop.
    func run(_ piece: @escaping @Sendable () async -> Void) { workFeed.yield(piece) }

    /// Runs the pieces side by side until ``endWork()``, and waits for those that are under way.
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

    /// The bounds are split evenly over the loops, since connections are.
    private var share: Int { max(1, service.loopCount) }
    private var hasRoom: Bool { connectionCount < max(1, configuration.connectionsMax / share) }

    /// What is done with the next connection.
    enum Admission {
        case serve
        /// It is taken, and its hello is answered with a goodbye.
        case refuse(ApusError)
        /// Too many are being refused already.
        case close
    }

    var admission: Admission {
        if hasRoom { return .serve }
        guard refusingCount < max(1, configuration.refusalsMax / share) else { return .close }
        return .refuse(
            ApusError(.tooManyConnections, "this node has as many connections as it takes; connect to another"))
    }

    var counts: (devices: Int, apps: Int, viewers: Int) {
        var counts = (devices: 0, apps: 0, viewers: 0)
        for case let handler? in connections {
            switch handler.session?.role {
            case .device: counts.devices += 1
            case .app: counts.apps += 1
            case .admin, nil: break
            }
            counts.viewers += handler.played.count
        }
        return counts
    }

    /// A door for a connection that comes. They are made some at a time, so that they lie side by side: a fan-out goes
    /// through all of them for each frame, and each that lies on a page of its own costs looking that page up.
    func takeDoor(_ tls: TLSServerContext) -> TLSServerHandler {
        if doors.isEmpty { doors = (0..<Self.doorsAtOnce).map { _ in TLSServerHandler(context: tls) } }
        return doors.removeLast()
    }
    private static let doorsAtOnce = 32

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
        strangers.append(handler)
        let strangersMax = max(1, configuration.unauthenticatedMax / share)
        if strangers.count > strangersMax {
            // Off the list first: closing takes its time where the other side does not answer.
            strangers.removeFirst().close(ApusError(.tooManyConnections, "too many connections wait for their hello"))
        }
        report()
    }

    /// Its client is of this account from now on; false where the account has its share of the connections.
    func authenticated(_ handler: ClientHandler, as account: AccountID) -> Bool {
        guard service.takePlace(for: account) else { return false }
        strangers.removeAll { $0 === handler }
        report()
        return true
    }

    /// True where the connection was there.
    func removed(_ handler: ClientHandler) -> Bool {
        guard isHere(handler) else { return false }
        connections[handler.slot] = nil
        if handler.refusal == nil { connectionCount -= 1 } else { refusingCount -= 1 }
        keepalives.remove(handler.slot)
        if let account = handler.session?.account {
            service.givePlace(of: account)
        } else {
            strangers.removeAll { $0 === handler }
        }
        service.metrics.connections.decrement()
        report()
        return true
    }

    /// False before it was added and after it was removed.
    private func isHere(_ handler: ClientHandler) -> Bool {
        handler.slot < connections.count && connections[handler.slot] === handler
    }

    func streamsChanged(_ handler: ClientHandler) {
        guard isHere(handler) else { return }
        let isStreaming = handler.machine.streamCount > 0
        keepalives.setStreams(handler.slot, isStreaming: isStreaming, isPlaying: !handler.played.isEmpty)
        let due = MonotonicTime.now() + keepalives.keepalive
        if isStreaming, let next = nextLook.time, next > due { nextLook.set(due) }
    }

    func lastSent(_ slot: Int) -> MonotonicTime { keepalives.lastSent(slot) }

    /// Bytes were sent to a connection. Where all that play got theirs just now, the clock is put off: a stream
    /// of frames costs no waking for the silence between them.
    func sent(_ slot: Int, now: MonotonicTime) {
        guard keepalives.sent(slot, now: now) else { return }
        let time = min(keepalives.nextLook(now: now) ?? nextLookAtAll, nextLookAtAll)
        if let next = nextLook.time, next < time { nextLook.set(time) }
    }

    func closeAll(_ error: ApusError) {
        for case let handler? in connections { handler.close(error) }
    }

    /// Sends the clients away one after the other, those that publish first: a new door costs a handshake, and the
    /// doors that are left should feel no storm.
    func sendAllAway() {
        let clients = connections.compactMap { $0 }
        let ordered = clients.filter { !$0.published.isEmpty } + clients.filter { $0.published.isEmpty }
        let spacing = min(Self.sendAwaySpacing, Self.sendAwayDuration / max(1, ordered.count))
        for (number, handler) in ordered.enumerated() {
            eventLoop.assumeIsolated().scheduleTask(in: .nanoseconds((spacing * number).nanoseconds)) {
                handler.sendAway()
            }
        }
    }
    private static let sendAwaySpacing = Duration.milliseconds(20)
    /// However many they are, they are told within this time.
    private static let sendAwayDuration = Duration.seconds(10)

    /// Connections with streams are looked at as soon as one of them may have been silent for too long, all
    /// connections once a second.
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
        }
        nextLook.set(min(nextLookAtAll, keepalives.nextLook(now: now) ?? nextLookAtAll))
    }
    /// How busy the thread was since the last look.
    private func measure(now: MonotonicTime) {
        let busy = MonotonicTime.usedByThisThread()
        let passed = now - used.time
        // Smoothed: a second of handshakes is no reason to go to another loop, half a minute of frames is.
        if passed > .zero { busyShare += ((busy - used.busy) / passed - busyShare) * 0.3 }
        used = (now, busy)
        report()
    }

    private func report() {
        service.report(
            .init(
                connectionCount: connectionCount, strangerCount: strangers.count, busyShare: busyShare,
                isFull: !hasRoom),
            of: index)
    }

    private static let lookInterval = Duration.seconds(1)
}

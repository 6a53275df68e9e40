import ApusChannels
import ApusCore
import ApusSessions
import CoreMetrics
import NIOCore

/// The connections of one event loop, with the clock that watches them.
///
/// Concurrency model: confined to ``eventLoop``.
final class GatewayLoop: @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    let eventLoop: any EventLoop
    private let index: Int
    unowned let service: Gateway
    /// By slot.
    private var connections: [ClientHandler?] = []
    private(set) var connectionCount = 0
    /// Connections without a session, oldest first.
    private var strangers: [ClientHandler] = []
    private var clock: KeepaliveClock
    /// The next look at the clock; nil before the door opens.
    private var nextTick: (alarm: LoopAlarm?, time: MonotonicTime)?
    private var nextLookAtAll = MonotonicTime.zero
    /// What the loop's thread had used at the last look.
    private var used = (time: MonotonicTime.zero, busy: Duration.zero)
    private var busyShare = 0.0

    init(eventLoop: any EventLoop, index: Int, service: Gateway) {
        self.eventLoop = eventLoop
        self.index = index
        self.service = service
        clock = KeepaliveClock(keepalive: service.configuration.streamKeepalive)
    }

    var configuration: GatewayConfiguration { service.configuration }

    var timing: ClientConnectionStateMachine.Timing {
        .init(
            handshakeTimeout: configuration.handshakeTimeout, keepalive: configuration.keepalive,
            streamKeepalive: configuration.streamKeepalive, idleTimeout: configuration.idleTimeout,
            slowReaderTimeout: configuration.slowReaderTimeout)
    }

    /// The bounds are split evenly over the loops, since connections are.
    private var share: Int { max(1, service.loopCount) }
    var hasRoom: Bool { connectionCount < max(1, configuration.connectionsMax / share) }

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

    func start() { scheduleTick(at: .now() + Self.lookInterval) }

    func added(_ handler: ClientHandler) {
        handler.slot = clock.add(now: .now())
        if handler.slot == connections.count { connections.append(nil) }
        connections[handler.slot] = handler
        connectionCount += 1
        service.metrics.accepted.increment()
        service.metrics.connections.increment()
        strangers.append(handler)
        let strangersMax = max(1, configuration.unauthenticatedMax / share)
        if strangers.count > strangersMax {
            // Off the list first: closing takes its time where the other side does not answer.
            strangers.removeFirst().close(ApusError(.tooManyConnections, "too many connections wait for their hello"))
        }
        report()
    }

    func authenticated(_ handler: ClientHandler) {
        strangers.removeAll { $0 === handler }
        report()
    }

    /// True where the connection was there.
    func removed(_ handler: ClientHandler) -> Bool {
        guard isHere(handler) else { return false }
        connections[handler.slot] = nil
        connectionCount -= 1
        clock.remove(handler.slot)
        if handler.session == nil { strangers.removeAll { $0 === handler } }
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
        clock.setStreams(handler.slot, isStreaming: isStreaming, isPlaying: !handler.played.isEmpty)
        let due = MonotonicTime.now() + clock.keepalive
        if isStreaming, let next = nextTick, next.time > due { scheduleTick(at: due) }
    }

    func lastSent(_ slot: Int) -> MonotonicTime { clock.lastSent(slot) }

    /// Bytes were sent to a connection. Where all that play got theirs just now, the clock is put off: a stream
    /// of frames costs no waking for the silence between them.
    func sent(_ slot: Int, now: MonotonicTime) {
        guard clock.sent(slot, now: now) else { return }
        let time = min(clock.nextLook(now: now) ?? nextLookAtAll, nextLookAtAll)
        if let next = nextTick, next.time < time { scheduleTick(at: time) }
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
            _ = LoopAlarm(on: eventLoop, in: spacing * number) { handler.sendAway() }
        }
    }
    private static let sendAwaySpacing = Duration.milliseconds(20)
    /// However many they are, they are told within this time.
    private static let sendAwayDuration = Duration.seconds(10)

    private func scheduleTick(at time: MonotonicTime) {
        nextTick?.alarm?.cancel()
        nextTick = (LoopAlarm(on: eventLoop, in: time - .now()) { [weak self] in self?.tick() }, time)
    }

    /// Connections with streams are looked at as soon as one of them may have been silent for too long, all
    /// connections once a second.
    private func tick() {
        let now = MonotonicTime.now()
        for slot in clock.silent(now: now) { connections[slot]?.tick(now: now) }
        if now >= nextLookAtAll {
            nextLookAtAll = now + Self.lookInterval
            for case let handler? in connections { handler.tick(now: now) }
            measure(now: now)
        }
        scheduleTick(at: min(nextLookAtAll, clock.nextLook(now: now) ?? nextLookAtAll))
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

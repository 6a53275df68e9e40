import ApusCore
import ApusSessions
import CoreMetrics
import NIOCore

/// The connections of one event loop, with the clock that watches them.
///
/// Concurrency model: confined to ``eventLoop``.
final class GatewayLoop: @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    let eventLoop: any EventLoop
    unowned let service: Gateway
    private var connections: [ObjectIdentifier: ClientHandler] = [:]
    /// Connections without a session, oldest first.
    private var strangers: [ClientHandler] = []
    private var streaming: [ObjectIdentifier: ClientHandler] = [:]
    /// The next look at the clock; nil before the door opens.
    private var nextTick: (task: Scheduled<Void>, time: MonotonicTime)?
    private var nextLookAtAll = MonotonicTime.zero

    init(eventLoop: any EventLoop, service: Gateway) {
        self.eventLoop = eventLoop
        self.service = service
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
    var hasRoom: Bool { connections.count < max(1, configuration.connectionsMax / share) }

    var counts: (devices: Int, apps: Int, viewers: Int) {
        var counts = (devices: 0, apps: 0, viewers: 0)
        for handler in connections.values {
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
        connections[ObjectIdentifier(handler)] = handler
        service.metrics.accepted.increment()
        service.metrics.connections.increment()
        strangers.append(handler)
        let strangersMax = max(1, configuration.unauthenticatedMax / share)
        if strangers.count > strangersMax {
            // Off the list first: closing takes its time where the other side does not answer.
            strangers.removeFirst().close(ApusError(.tooManyConnections, "too many connections wait for their hello"))
        }
    }

    func authenticated(_ handler: ClientHandler) { strangers.removeAll { $0 === handler } }

    /// True where the connection was there.
    func removed(_ handler: ClientHandler) -> Bool {
        guard connections.removeValue(forKey: ObjectIdentifier(handler)) != nil else { return false }
        stopStreaming(handler)
        if handler.session == nil { strangers.removeAll { $0 === handler } }
        service.metrics.connections.decrement()
        return true
    }

    func streamsChanged(_ handler: ClientHandler) {
        guard connections[ObjectIdentifier(handler)] != nil else { return }
        guard handler.machine.streamCount > 0 else { return stopStreaming(handler) }
        streaming[ObjectIdentifier(handler)] = handler
        let due = MonotonicTime.now() + configuration.streamKeepalive
        guard let next = nextTick, next.time > due else { return }
        next.task.cancel()
        scheduleTick(at: due)
    }

    private func stopStreaming(_ handler: ClientHandler) { streaming[ObjectIdentifier(handler)] = nil }

    func closeAll(_ error: ApusError) {
        for handler in Array(connections.values) { handler.close(error) }
    }

    /// Sends the clients away one after the other, so that the other doors are not stormed.
    func sendAllAway() {
        var delay = TimeAmount.nanoseconds(0)
        for handler in Array(connections.values) {
            eventLoop.assumeIsolated().scheduleTask(in: delay) { handler.sendAway() }
            delay = delay + Self.sendAwaySpacing
        }
    }
    private static let sendAwaySpacing = TimeAmount.milliseconds(4)

    private func scheduleTick(at time: MonotonicTime) {
        let delay = TimeAmount.nanoseconds(max(time - .now(), .zero).nanoseconds)
        let task = eventLoop.assumeIsolated().scheduleTask(in: delay) { [weak self] () -> Void in self?.tick() }
        nextTick = (task, time)
    }

    /// Connections with streams are looked at as soon as one of them may have been silent for too long, all
    /// connections once a second.
    private func tick() {
        let now = MonotonicTime.now()
        let keepalive = configuration.streamKeepalive
        let silent = streaming.values.filter { now - $0.door.lastSent >= keepalive }
        for handler in silent { handler.tick(now: now) }
        if now >= nextLookAtAll {
            nextLookAtAll = now + Self.lookInterval
            for handler in Array(connections.values) { handler.tick(now: now) }
        }
        var next = nextLookAtAll
        // One that is behind is not pinged and stays silent; it must not make the clock run hot.
        if let oldest = streaming.values.lazy.map(\.door.lastSent).min() {
            next = min(next, max(oldest + keepalive, now + keepalive / 2))
        }
        scheduleTick(at: next)
    }
    private static let lookInterval = Duration.seconds(1)
}

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
    private var streaming = StreamingRow<ClientHandler>()
    private var ticks = 0

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

    func start() {
        let delay = TimeAmount.nanoseconds(configuration.streamKeepalive.nanoseconds / 2)
        eventLoop.scheduleRepeatedTask(initialDelay: delay, delay: delay) { [weak self] task in
            guard let self else { return task.cancel() }
            tick()
        }
    }

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
        guard handler.streamingSlot == nil else { return }
        handler.streamingSlot = streaming.append(handler, now: .now())
    }

    /// Something was sent on the connection of this slot.
    func sent(_ slot: Int, now: MonotonicTime) { streaming.sent(slot, now: now) }

    private func stopStreaming(_ handler: ClientHandler) {
        guard let slot = handler.streamingSlot else { return }
        handler.streamingSlot = nil
        streaming.remove(slot)?.streamingSlot = slot
    }

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

    /// Connections with streams that were silent are looked at every time, all of them once a second or so.
    private func tick() {
        let now = MonotonicTime.now()
        ticks += 1
        for handler in streaming.silent(for: configuration.streamKeepalive, now: now) { handler.tick(now: now) }
        guard ticks % 40 == 0 else { return }
        for handler in Array(connections.values) { handler.tick(now: now) }
    }
}

import ApusCore
import ApusMedia
import ApusTransport
import CoreMetrics
import NIOCore

/// The channels of one event loop: those whose home is here, and the fan-outs of receivers whose sockets are here.
///
/// Concurrency model: every member is used on ``eventLoop`` only. Loops call each other with `execute`, which keeps the
/// order of one loop's calls to another. All orderings that a channel needs follow from that.
final class ChannelLoop: @unchecked Sendable {  // SAFETY: confined to `eventLoop`; each entry point asserts it.
    let eventLoop: any EventLoop
    unowned let service: ChannelService
    private(set) var hubs: [ChannelID: ChannelHub] = [:]
    private var fanOuts: [ChannelID: FanOut] = [:]
    let clock: LoopClock
    /// The poll interval of channels that only wait for their removal.
    let restTick: Duration
    /// The next poll of all hubs; not set without hubs.
    private lazy var nextLook = clock.deadline { [weak self] in self?.look() }

    init(eventLoop: any EventLoop, service: ChannelService) throws(ApusError) {
        self.eventLoop = eventLoop
        self.service = service
        restTick = max(service.configuration.idleTick, service.configuration.idleTimeout / 60)
        clock = try LoopClock(on: eventLoop)
    }

    // MARK: - Receivers, on this loop

    /// Adds a receiver whose sink is on this loop. `completion` is called on this loop.
    func join(
        _ channel: ChannelID, of account: AccountID?, sink: any FrameSink, kind: FanOutStateMachine.Kind,
        after: FramePosition?,
        completion: @escaping @Sendable (Result<Receipt, ApusError>) -> Void
    ) {
        eventLoop.assertInEventLoop()
        if let fanOut = fanOuts[channel] {
            return completion(.success(fanOut.add(sink, kind: kind, after: after)))
        }
        service.atHome(of: channel, from: eventLoop) { home in
            switch home.hub(for: channel, of: account) {
            case .failure(let error):
                self.eventLoop.execute { completion(.failure(error)) }
            case .success(let hub):
                let (ring, liveFloor) = hub.attach(self, after: after)
                let add = { @Sendable in
                    let fanOut = self.fanOut(for: hub, ring: ring, liveFloor: liveFloor)
                    completion(.success(fanOut.add(sink, kind: kind, after: after)))
                }
                // The home loop passes frames to itself without a hop. The fan-out must exist before the next frame
                // arrives.
                if home === self { add() } else { self.eventLoop.execute(add) }
            }
        }
    }

    /// Accepted frames of a channel, from its home.
    func distribute(_ frames: [RelayFrame], of channel: ChannelID) { fanOuts[channel]?.append(frames) }
    func adopt(_ frame: RelayFrame, of channel: ChannelID) { fanOuts[channel]?.adopt(frame) }
    func limitRing(byteCountMax: Int, of channel: ChannelID) {
        fanOuts[channel]?.limitRing(byteCountMax: byteCountMax)
    }
    func beginLive(at position: FramePosition?, of channel: ChannelID) { fanOuts[channel]?.beginLive(at: position) }
    func announce(_ phase: StreamPhase, of channel: ChannelID) { fanOuts[channel]?.announce(phase) }

    /// Removes the fan-out of a channel that is idle at its home, unless it has receivers. Returns true if no fan-out
    /// remains.
    func release(_ channel: ChannelID) -> Bool {
        guard let fanOut = fanOuts[channel] else { return true }
        guard fanOut.receiverCount == 0 else { return false }
        fanOuts[channel] = nil
        return true
    }

    func receiversChanged(of channel: ChannelID, hasReceivers: Bool, after: FramePosition? = nil) {
        service.atHome(of: channel, from: eventLoop) { home in
            home.hubs[channel]?.receiversChanged(on: self, hasReceivers: hasReceivers, after: after)
        }
    }

    /// The number of a channel's viewers on this loop, without standbys.
    func viewerCount(of channel: ChannelID) -> Int { fanOuts[channel]?.viewerCount ?? 0 }

    private func fanOut(for hub: ChannelHub, ring: FrameRing, liveFloor: FramePosition?) -> FanOut {
        if let fanOut = fanOuts[hub.channel] { return fanOut }
        let fanOut = FanOut(
            channel: hub.channel, stream: hub.stream, ring: ring, liveFloor: liveFloor, loop: self)
        fanOuts[hub.channel] = fanOut
        return fanOut
    }

    // MARK: - Hubs

    /// The channel's hub. A new hub is watched until ``ChannelHub/claim()``.
    ///
    /// - Parameter isClaimed: true if the channel is published or copied here. A new hub is then created as such.
    /// - Returns: the hub, or 10007 if the account, or the node, has no room for another channel.
    func hub(
        for channel: ChannelID, of account: AccountID?, isClaimed: Bool = false
    ) -> Result<ChannelHub, ApusError> {
        eventLoop.assertInEventLoop()
        if let hub = hubs[channel] {
            return isClaimed && !hub.claim() ? .failure(ChannelHub.noRoom) : .success(hub)
        }
        guard
            let stream = service.takeStreamNumber(
                for: channel, isClaimed ? .published : .watched, of: account)
        else {
            return .failure(ChannelHub.noRoom)
        }
        let hub = ChannelHub(
            channel: channel, account: account, table: isClaimed ? .published : .watched, stream: stream, loop: self)
        hubs[channel] = hub
        service.retainHome(of: channel)
        hub.assign()
        look(within: hub.pollInterval)
        return .success(hub)
    }

    func drop(_ hub: ChannelHub) {
        guard hubs[hub.channel] === hub else { return }
        hubs[hub.channel] = nil
        // The number is returned first: a caller that finds the channel without a home may take one at once.
        service.returnStreamNumber(of: hub)
        service.releaseHome(of: hub.channel)
        hub.dropped()
    }

    /// The map changed: every channel looks up its shard again.
    func mapChanged() {
        eventLoop.assertInEventLoop()
        for hub in hubs.values { hub.assign() }
    }

    /// Schedules the next poll of all hubs within this interval.
    func look(within pollInterval: Duration) {
        let time = MonotonicTime.now() + pollInterval
        if nextLook.time.map({ time < $0 }) ?? true { nextLook.set(time) }
    }

    /// Sets or clears the candidate for the shard's standby.
    func setCandidate(_ node: NodeID?, of shard: ShardID) {
        eventLoop.assertInEventLoop()
        for hub in hubs.values where hub.channel.shard == shard { hub.setCandidate(node) }
    }

    private func look() {
        let now = MonotonicTime.now()
        for hub in Array(hubs.values) { hub.tick(now: now) }
        guard let pollInterval = hubs.values.lazy.map(\.pollInterval).min() else { return }
        look(within: pollInterval)
    }
}

import ApusCluster
import ApusCore
import ApusMedia
import ApusTransport
import ApusWire
import CoreMetrics
import Foundation
import Logging
import NIOCore
import SwiftProtobuf

/// A channel at its home loop: the shell of ``ChannelStateMachine``.
///
/// Concurrency model: confined to `loop.eventLoop`. The machine decides. This class calls the fan-outs on other loops,
/// the media links, and the publisher's ``PublisherEndpoint``.
final class ChannelHub: @unchecked Sendable {  // SAFETY: confined to the home loop; entry points assert it.
    let channel: ChannelID
    let stream: StreamNumber
    let loop: ChannelLoop
    /// The account whose share of the node's channels and bytes this uses.
    let account: AccountID?
    /// The node's limit against which the channel counts.
    private(set) var table: ChannelTable
    var machine: ChannelStateMachine
    var endpoint: PublisherEndpoint?
    /// The machine's publishers, each with the receiver of its acknowledgements.
    private var ingests: [ChannelStateMachine.IngestID: any IngestPeer] = [:]
    private var subscriptions: [ChannelStateMachine.SubscriptionID: UpstreamLink] = [:]
    /// The copies at the standby and at the candidate.
    private var copies: [CopyLink] = []
    /// As the standby: the primary that receives this node's confirmations.
    private var copySource: (peer: MediaPeer, stream: StreamNumber, term: Epoch)?
    private var attached: [Attachment] = []
    /// The ring's size in the node's total, and the time of its last update.
    private var ringByteCount = 0
    private var ringCountedAt = MonotonicTime.zero
    private var isDropped = false
    /// When the newest frames came.
    private(set) var arrivals = FrameArrivals()
    /// When the newest publisher opened its stream here; nil: none has one.
    private(set) var publishingSince: MonotonicTime?
    private var idleSince: MonotonicTime?
    private var releasesAwaited = 0
    private var wasFed = false
    /// Audio that waits for the next video frame.
    private var held: [RelayFrame] = []
    /// Sends the held audio if no video frame comes.
    private lazy var holdEnd = loop.clock.deadline { [weak self] in self?.sendHeld() }

    var service: ChannelService { loop.service }
    var log: Logger { service.log }

    private struct Attachment {
        let loop: ChannelLoop
        var hasReceivers = false
        /// True if it was requested since the loops were last asked whether they have receivers.
        var isNew = true
    }

    init(channel: ChannelID, account: AccountID?, table: ChannelTable, stream: StreamNumber, loop: ChannelLoop) {
        self.account = account
        self.table = table
        self.channel = channel
        self.stream = stream
        self.loop = loop
        machine = ChannelStateMachine(
            channel: channel, local: loop.service.view.local, configuration: loop.service.configuration.machine)
    }

    // MARK: - Map and time

    func assign() {
        loop.eventLoop.assertInEventLoop()
        let shard = service.view.lookUp(channel.shard)
        let before = machine.role
        let assignment = ChannelStateMachine.Assignment(
            term: shard.epoch, owner: shard.owner?.id, standby: shard.standby?.id)
        let had = machine.assignment
        run(machine.assign(assignment, now: .now()))
        setCandidate(service.candidate(of: channel.shard))
        if machine.role == .primary, before != .primary, had.term > 0 {
            service.metrics.promotions.increment()
            log.notice(
                "This node became the channel's primary",
                metadata: [LogKey.channel: "\(channel)", LogKey.epoch: "\(shard.epoch)"])
        }
        endpoint?.assign(now: .now())
    }

    /// Sets or clears the candidate for the channel's standby.
    func setCandidate(_ node: NodeID?) { run(machine.setCandidate(node, now: .now())) }

    func tick(now: MonotonicTime) {
        run(machine.tick(now: now))
        if now - ringCountedAt >= Self.ringInterval { countRing(now: now) }
        endpoint?.tick(now: now)
        announceFeed()
        guard machine.isIdle, endpoint == nil, !attached.contains(where: \.hasReceivers) else {
            idleSince = nil
            return
        }
        guard let since = idleSince else {
            idleSince = now
            return
        }
        let timeout = service.configuration.idleTimeout
        if now - since >= (isOnlyWatched ? min(timeout, Self.unwatchedTimeout) : timeout) { releaseWhereIdle() }
    }

    /// The time after which a requested channel without a viewer is removed, for example because the viewer left before
    /// it joined.
    private static let unwatchedTimeout = Duration.seconds(2)

    /// True if the channel is neither published nor copied here. Without viewers it has no state to keep.
    private var isOnlyWatched: Bool { table == .watched }

    private func releaseWhereIdle() {
        guard machine.isIdle, endpoint == nil, !attached.contains(where: \.hasReceivers), releasesAwaited == 0 else {
            return
        }
        run(machine.release())
        release()
    }

    /// Counts the channel as published or copied here. Returns false if its account, or the node, has no room for it.
    func claim() -> Bool {
        guard table == .watched else { return true }
        guard !isDropped, service.claim(self) else { return false }
        table = .published
        return true
    }

    /// Updates the node's total if the ring's size changed enough.
    private func countRing() {
        if abs(machine.ring.heldByteCount - ringByteCount) >= Self.ringStep { countRing(now: .now()) }
    }

    private func countRing(now: MonotonicTime) {
        guard !isDropped else { return }
        ringCountedAt = now
        let limit: Int
        (limit, ringByteCount) = service.ringChanged(
            from: ringByteCount, to: machine.ring.heldByteCount, of: account)
        guard limit != machine.ring.byteCountMax else { return }
        if limit < machine.ring.byteCountMax { service.metrics.ringsShortened.increment() }
        machine.limitRing(byteCountMax: limit)
        let channel = channel
        onEachFanOut { $0.limitRing(byteCountMax: limit, of: channel) }
    }
    /// The most by which the ring's size may differ from the node's total, in bytes.
    private static let ringStep = 32 << 10
    /// The interval at which the limit of an unchanged ring is updated.
    private static let ringInterval = Duration.seconds(1)

    /// The channel is removed. Releases its share of the node's limits.
    func dropped() {
        (_, ringByteCount) = service.ringChanged(from: ringByteCount, to: 0, of: account)
        isDropped = true
    }

    /// Removes the channel once every loop has confirmed that it has no receivers.
    private func release() {
        releasesAwaited = attached.count
        for index in attached.indices { attached[index].isNew = false }
        guard releasesAwaited > 0 else { return loop.drop(self) }
        for entry in attached {
            let other = entry.loop
            other.eventLoop.execute { [self] in
                let isGone = other.release(channel)
                loop.eventLoop.execute { [self] in released(by: other, isGone: isGone) }
            }
        }
    }

    private func released(by other: ChannelLoop, isGone: Bool) {
        releasesAwaited -= 1
        if isGone { attached.removeAll { $0.loop === other && !$0.isNew } }
        guard releasesAwaited == 0 else { return }
        idleSince = nil
        if attached.isEmpty, machine.isIdle, endpoint == nil { loop.drop(self) }
    }

    // MARK: - Fan-outs

    /// Attaches a loop that has receivers. It gets the returned ring and every later frame, and is notified when the
    /// earliest start of live joins changes.
    func attach(_ other: ChannelLoop, after: FramePosition?) -> (ring: FrameRing, liveFloor: FramePosition?) {
        machine.receiverWants(after: after)
        machine.receiverHas(after)
        if let index = attached.firstIndex(where: { $0.loop === other }) {
            attached[index].isNew = true
        } else {
            attached.append(Attachment(loop: other))
        }
        idleSince = nil
        return (machine.ring, machine.liveFloor)
    }

    func receiversChanged(on other: ChannelLoop, hasReceivers: Bool, after: FramePosition?) {
        machine.receiverWants(after: after)
        machine.receiverHas(after)
        guard let index = attached.firstIndex(where: { $0.loop === other }) else { return }
        attached[index].hasReceivers = hasReceivers
        run(machine.receiversChanged(hasReceivers: attached.contains(where: \.hasReceivers), now: .now()))
        if !hasReceivers, isOnlyWatched { releaseWhereIdle() }
    }

    /// Sends frames to the fan-outs.
    ///
    /// Audio alone waits for the next video frame, at most ``ChannelConfiguration/audioHold``. One write per viewer for
    /// both is 2.3 times cheaper than two (D7), and the other loops are woken only once.
    private func distribute(_ frames: [RelayFrame]) {
        let hold = service.configuration.audioHold
        let isAudioOnly = machine.ring.hasVideo && !frames.contains { machine.ring.isVideo(track: $0.track) }
        guard isAudioOnly, hold > .zero, !frames.contains(where: { $0.flags.contains(.configuration) }) else {
            let earlier = takeHeld()
            return send(earlier.isEmpty ? frames : earlier + frames)
        }
        if held.isEmpty { holdEnd.set(.now() + hold) }
        held += frames
    }

    private func takeHeld() -> [RelayFrame] {
        holdEnd.clear()
        defer { held = [] }
        return held
    }

    private func sendHeld() {
        let frames = takeHeld()
        if !frames.isEmpty { send(frames) }
    }

    private func send(_ frames: [RelayFrame]) {
        let channel = channel
        onEachFanOut { $0.distribute(frames, of: channel) }
    }

    private func onEachFanOut(_ body: @escaping @Sendable (ChannelLoop) -> Void) {
        for entry in attached {
            let other = entry.loop
            if other === loop { body(other) } else { other.eventLoop.execute { body(other) } }
        }
    }

    /// Notifies receivers when the channel starts or stops being fed.
    private func announceFeed() {
        let isFed = machine.isFed
        guard isFed != wasFed else { return }
        wasFed = isFed
        sendHeld()
        let channel = channel
        onEachFanOut { $0.announce(isFed ? .live : .waiting, of: channel) }
    }

    // MARK: - The machine's actions

    func run(_ actions: [ChannelStateMachine.Action]) {
        for action in actions { run(action) }
        countRing()
        if !wasFed { announceFeed() }
        lookInTime()
    }

    /// The longest time between two polls of the channel.
    var pollInterval: Duration {
        let configuration = service.configuration
        if machine.isWaiting || endpoint?.isWaiting == true { return configuration.tick }
        // With frames, the standby's confirmations are checked at every frame; without frames, at this interval.
        if machine.hasCopies || machine.isFed != wasFed { return configuration.idleTick }
        return loop.restTick
    }

    /// Schedules the next poll if the channel waits for something.
    func lookInTime() {
        let pollInterval = pollInterval
        if pollInterval <= service.configuration.idleTick { loop.look(within: pollInterval) }
    }

    private func run(_ action: ChannelStateMachine.Action) {
        let channel = channel
        switch action {
        case .distribute(let frames):
            service.metrics.framesIn.increment(by: Int64(frames.count))
            arrivals.note(frames, in: machine.ring, now: .now())
            distribute(frames)
        case .adopt(let frame):
            sendHeld()
            onEachFanOut { $0.adopt(frame, of: channel) }
        case .beginLive(let position):
            sendHeld()
            onEachFanOut { $0.beginLive(at: position, of: channel) }
        case .acknowledge(let id, let epoch, let next):
            ingests[id]?.acknowledged(epoch: epoch, next: next)
        case .resume(let id, let next):
            ingests[id]?.resume(next: next)
        case .endIngest(let id, let error):
            ingests.removeValue(forKey: id)?.ended(error)
            if ingests.isEmpty { publishingSince = nil }
        case .openCopy(let node):
            openCopy(at: node)
        case .closeCopy(let node):
            for copy in copies where copy.node == node { copy.close() }
            copies.removeAll { $0.node == node }
        case .announcePublisher(let node):
            let publisher = machine.publisherIdentity
            for copy in copies where copy.node == node {
                copy.announce(epoch: publisher.epoch, instance: publisher.instance)
            }
        case .refuseCopy:
            if let source = copySource { source.peer.refuseCopy(stream: source.stream, term: source.term) }
            copySource = nil
        case .confirmCopy(let epoch, let next):
            copySource?.peer.confirm(stream: copySource?.stream ?? 0, epoch: epoch, next: next)
        case .subscribe(let id, let node, let after):
            let link = UpstreamLink(id: id, node: node, hub: self)
            subscriptions[id] = link
            link.open(after: after)
        case .unsubscribe(let id):
            subscriptions.removeValue(forKey: id)?.close()
        }
    }

    // MARK: - Publishers, at the primary

    static let noRoom = ApusError(.overloaded, "this node has no room for another channel of the account")

    func openIngest(_ offer: PublishOffer, peer: any IngestPeer) -> ChannelStateMachine.IngestAnswer {
        guard claim() else { return .refused(Self.noRoom) }
        let id = service.takeIngestID()
        let (answer, actions) = machine.openIngest(
            id, offer, wallSeconds: UInt32(clamping: Int(Date().timeIntervalSince1970)), now: .now())
        if case .accepted = answer {
            peer.accepted(as: id)
            ingests[id] = peer
            publishingSince = .now()
        }
        run(actions)
        return answer
    }

    func ingest(_ id: ChannelStateMachine.IngestID, _ frames: [RelayFrame]) {
        loop.eventLoop.assertInEventLoop()
        run(machine.ingest(id, frames, now: .now()))
    }

    func closeIngest(_ id: ChannelStateMachine.IngestID) {
        guard ingests.removeValue(forKey: id) != nil else { return }
        if ingests.isEmpty { publishingSince = nil }
        machine.closeIngest(id)
        lookInTime()
    }

    // MARK: - The copy, at the primary

    private func openCopy(at node: NodeID) {
        let link = CopyLink(node: node, term: machine.assignment.term, hub: self)
        copies.append(link)
        let publisher = machine.publisherIdentity
        link.open(
            ChannelReplicate.with {
                $0.device = channel.owner.wireName
                $0.source = UInt32(channel.source)
                $0.term = link.term
                $0.epoch = publisher.epoch
                $0.instance = publisher.instance
                $0.stream = stream
                if let liveFrom = machine.liveFrom { $0.liveFrom = ChannelPosition(liveFrom) }
                $0.account = account?.rawValue ?? ""
            })
    }

    func copyOpened(_ link: CopyLink, after: FramePosition?) {
        guard copies.contains(where: { $0 === link }) else { return link.close() }
        service.metrics.copiesOpened.increment()
        run(machine.copyOpened(at: link.node, after: after, now: .now()))
    }

    func copyConfirmed(_ link: CopyLink, epoch: UInt32, next: UInt64) {
        guard copies.contains(where: { $0 === link }) else { return }
        run(machine.copyConfirmed(at: link.node, epoch: epoch, next: next, now: .now()))
    }

    func copyFailed(_ link: CopyLink) {
        guard copies.contains(where: { $0 === link }) else { return }
        run(machine.copyFailed(at: link.node, now: .now()))
    }

    // MARK: - The copy, at the standby

    func openCopy(
        _ request: ChannelReplicate, from peer: MediaPeer
    ) -> ChannelStateMachine.CopyAnswer {
        guard claim() else { return .refused(Self.noRoom) }
        let (term, stream) = (request.term, request.stream)
        let (answer, actions) = machine.openCopy(
            term: term, epoch: request.epoch, instance: request.instance,
            liveFrom: request.hasLiveFrom ? FramePosition(request.liveFrom) : nil, now: .now())
        if case .accepted = answer { copySource = (peer, stream, term) }
        run(actions)
        return answer
    }

    func publisherChanged(_ message: ChannelPublisherChanged, term: Epoch) {
        machine.publisherChanged(term: term, epoch: message.epoch, instance: message.instance)
    }

    func copied(_ frames: [RelayFrame], term: Epoch) {
        loop.eventLoop.assertInEventLoop()
        run(machine.copied(frames, term: term))
    }

    func copyClosed(from peer: MediaPeer, term: Epoch) {
        guard let source = copySource, source.peer === peer, source.term == term else { return }
        copySource = nil
        run(machine.copyClosed(term: term, now: .now()))
    }

    // MARK: - Upstream, at an edge

    func subscribed(_ link: UpstreamLink, term: Epoch, liveFrom: FramePosition?) {
        run(machine.subscribed(link.id, term: term, liveFrom: liveFrom, now: .now()))
    }

    func received(_ link: UpstreamLink, _ frames: [RelayFrame]) {
        loop.eventLoop.assertInEventLoop()
        run(machine.received(link.id, frames))
    }

    func subscriptionLost(_ link: UpstreamLink) {
        guard subscriptions.removeValue(forKey: link.id) != nil else { return }
        run(machine.subscriptionLost(link.id, now: .now()))
    }
}

/// The sender of a channel's frames at its primary: a device at this node's endpoint, or another node with the device.
///
/// Isolation: called on the channel's home loop. Implementations hop to their own loop.
protocol IngestPeer: AnyObject, Sendable {
    func accepted(as id: ChannelStateMachine.IngestID)
    func acknowledged(epoch: UInt32, next: UInt64)
    func resume(next: UInt64)
    func ended(_ error: ApusError)
}

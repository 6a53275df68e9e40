import ApusCore
import ApusMedia
import NIOCore

/// A local device's stream to the channel's primary, at this or another node (D7).
///
/// The device keeps every frame that is not acknowledged, so this object keeps none. When the primary changes, this
/// object opens the stream at the new one. The answer names the first frame that the new primary needs, and the device
/// is asked to continue there.
///
/// Concurrency model: confined to the channel's home loop, like its hub.
final class PublisherEndpoint: @unchecked Sendable {  // SAFETY: confined to the home loop; entry points assert it.
    private enum State {
        /// The channel's primary is this node.
        case local(ChannelStateMachine.IngestID)
        case opening(RemoteIngest)
        case remote(RemoteIngest)
        case waiting(until: MonotonicTime)
        /// The same publisher opened a stream through another node. Frames from the device reopen this one.
        case superseded
        case closed
    }

    private unowned let hub: ChannelHub
    private let sink: any PublisherSink
    private var offer: PublishOffer
    private var state = State.waiting(until: .zero)
    private var retries: Backoff
    private var wasOpened = false
    private let since = MonotonicTime.now()

    init(hub: ChannelHub, sink: any PublisherSink, offer: PublishOffer) {
        self.hub = hub
        self.sink = sink
        self.offer = offer
        retries = hub.service.configuration.machine.retries
    }

    var publisher: any PublisherSink { sink }
    /// The publisher's epoch; 0 until the primary assigned one.
    var epoch: UInt32 { offer.epoch }
    var instance: UInt64 { offer.instance }

    /// Opens the stream at the primary, or opens it again after the primary changed.
    func assign(now: MonotonicTime) {
        hub.loop.eventLoop.assertInEventLoop()
        let owner = hub.machine.assignment.owner
        switch state {
        case .closed, .superseded: return
        case .local: if hub.machine.role == .primary { return }
        case .opening(let link), .remote(let link):
            if link.node == owner { return }
            link.close()
        case .waiting(let until): if now < until { return }
        }
        open(now: now)
    }

    /// True if it waits for its next attempt or for its time-out.
    var isWaiting: Bool {
        switch state {
        case .waiting: true
        case .opening: !wasOpened
        case .local, .remote, .superseded, .closed: false
        }
    }

    func tick(now: MonotonicTime) {
        if isWaiting, !wasOpened, now - since >= hub.service.configuration.publishTimeout {
            if case .opening(let link) = state { link.close() }
            return fail(ApusError(.noRoute, "the channel's primary did not answer"))
        }
        if case .waiting(let until) = state, now >= until { open(now: now) }
    }

    /// Sends frames of the device, in order, encoded as this node sends them.
    func send(_ frames: [RelayFrame]) {
        switch state {
        case .local(let id): hub.ingest(id, frames)
        case .remote(let link): link.send(frames)
        case .superseded: open(now: .now())
        case .opening, .waiting, .closed: return
        }
    }

    /// The device's session was confirmed by its owner. A stream that was refused is opened at once.
    func confirm(now: MonotonicTime) {
        guard !offer.isConfirmed else { return }
        offer.isConfirmed = true
        guard case .waiting = state else { return }
        retries.reset()
        open(now: now)
    }

    /// The device disconnected, or ended the stream.
    func close() {
        switch state {
        case .local(let id): hub.closeIngest(id)
        case .opening(let link), .remote(let link): link.close()
        case .waiting, .superseded, .closed: break
        }
        state = .closed
    }

    private func open(now: MonotonicTime) {
        if hub.machine.role == .primary {
            let peer = LocalIngest(endpoint: self, loop: hub.loop)
            switch hub.openIngest(offer, peer: peer) {
            case .accepted(let epoch, let next, let isProtected):
                state = .local(peer.id)
                opened(epoch: epoch, next: next, isProtected: isProtected)
            case .refused(let error): refused(error, now: now)
            }
        } else if let owner = hub.machine.assignment.owner {
            let link = RemoteIngest(node: owner, hub: hub, endpoint: self)
            state = .opening(link)
            link.open(offer)
        } else {
            wait(now: now)
        }
    }

    private func opened(epoch: UInt32, next: UInt64, isProtected: Bool) {
        if offer.takesEpoch { (offer.epoch, offer.resumes) = (epoch, true) }
        retries.reset()
        let (sink, stream, isFirst) = (sink, hub.stream, !wasOpened)
        wasOpened = true
        sink.eventLoop.execute {
            if isFirst {
                sink.publishOpened(stream, epoch: epoch, next: next, isProtected: isProtected)
            } else {
                sink.publishResume(stream, epoch: epoch, next: next)
            }
        }
    }

    private func refused(_ error: ApusError, now: MonotonicTime) {
        // A stream that was accepted before waits for room, as it waits for a primary. Its device keeps the frames.
        guard error.code == .stalePublisher || (error.code == .overloaded && !wasOpened) else { return wait(now: now) }
        fail(error)
    }

    private func fail(_ error: ApusError) {
        state = .closed
        let (sink, stream) = (sink, hub.stream)
        sink.eventLoop.execute { sink.publishFailed(stream, error) }
    }

    private func wait(now: MonotonicTime) {
        state = .waiting(until: now + retries.next())
        hub.loop.look(within: hub.service.configuration.tick)
    }

    // MARK: - From the primary

    func ingestOpened(_ link: RemoteIngest, epoch: UInt32, next: UInt64, isProtected: Bool) {
        guard case .opening(let current) = state, current === link else { return }
        state = .remote(link)
        opened(epoch: epoch, next: next, isProtected: isProtected)
    }

    func ingestLost(_ link: RemoteIngest, _ error: ApusError) {
        switch state {
        case .opening(let current) where current === link: refused(error, now: .now())
        case .remote(let current) where current === link:
            ended(error)
        case .local, .opening, .remote, .waiting, .superseded, .closed: return
        }
    }

    func localIngestEnded(_ id: ChannelStateMachine.IngestID, _ error: ApusError) {
        guard case .local(id) = state else { return }
        ended(error)
    }

    private func ended(_ error: ApusError) {
        switch error.code {
        case .stalePublisher:
            refused(error, now: .now())
        case .kicked:
            state = .superseded
        default:
            state = .waiting(until: .zero)
            assign(now: .now())
        }
    }

    func acknowledged(epoch: UInt32, next: UInt64) {
        let (sink, stream) = (sink, hub.stream)
        sink.eventLoop.execute { sink.publishAcknowledged(stream, epoch: epoch, next: next) }
    }

    func resume(next: UInt64) {
        let (sink, stream, epoch) = (sink, hub.stream, offer.epoch)
        sink.eventLoop.execute { sink.publishResume(stream, epoch: epoch, next: next) }
    }
}

/// A local device whose channel has its primary here. Confined to the home loop.
final class LocalIngest: IngestPeer, @unchecked Sendable {  // SAFETY: confined to the home loop.
    private weak var endpoint: PublisherEndpoint?
    private let loop: ChannelLoop
    private(set) var id: ChannelStateMachine.IngestID = 0

    init(endpoint: PublisherEndpoint, loop: ChannelLoop) {
        self.endpoint = endpoint
        self.loop = loop
    }

    func accepted(as id: ChannelStateMachine.IngestID) { self.id = id }
    func acknowledged(epoch: UInt32, next: UInt64) { endpoint?.acknowledged(epoch: epoch, next: next) }
    func resume(next: UInt64) { endpoint?.resume(next: next) }
    func ended(_ error: ApusError) { endpoint?.localIngestEnded(id, error) }
}

import ApusCore
import ApusMedia
import ApusTransport
import ApusWire
import DequeModule
import NIOCore
import SwiftProtobuf

// The three kinds of streams that a node opens at another node: a local device's frames to the primary, a primary's
// copy to its standby, and an edge's subscription. Each is created on its channel's home loop, runs on its link's loop,
// and notifies the home once that it is open or lost.

/// A local device's stream to the primary at another node.
final class RemoteIngest: @unchecked Sendable {  // SAFETY: `peer` is used on the link's loop only.
    let node: NodeID
    private let hub: ChannelHub
    private let endpoint: PublisherEndpoint
    private let peer: MediaPeer?
    /// Frames that wait for this stream's turn on the link, in order.
    private var waiting: Deque<RelayFrame> = []
    /// The first frame that was dropped for lack of room. The device still holds it.
    private var droppedFrom: UInt64?
    private var isOver = false
    private var isAnswered = false
    private let account: AccountID?

    init(node: NodeID, hub: ChannelHub, endpoint: PublisherEndpoint) {
        self.node = node
        self.hub = hub
        self.endpoint = endpoint
        account = hub.account
        peer = hub.service.peer(of: node)
    }

    func open(_ offer: PublishOffer) {
        guard let peer else { return atHome { $0.ingestLost($1, ApusError(.noRoute)) } }
        let request = ChannelIngest.with {
            $0.device = hub.channel.owner.wireName
            $0.source = UInt32(hub.channel.source)
            $0.epoch = offer.epoch
            $0.instance = offer.instance
            $0.oldest = offer.oldest
            $0.stream = hub.stream
            $0.resumes = offer.resumes
            $0.unconfirmed = !offer.isConfirmed
            $0.account = hub.account?.rawValue ?? ""
        }
        peer.eventLoop.execute { [self] in
            peer.opens(self, stream: hub.stream)
            peer.ask(.ingest, request, as: ChannelIngesting.self) { [self] result in
                switch result {
                case .success(let answer):
                    isAnswered = true
                    guard !isOver else { return sendEnd(to: peer) }
                    peer.register(self, stream: hub.stream)
                    // A node that does not assign epochs used the offered one.
                    let epoch = answer.epoch == 0 ? offer.epoch : answer.epoch
                    atHome { $0.ingestOpened($1, epoch: epoch, next: answer.next, isProtected: answer.protected) }
                case .failure(let error):
                    atHome { $0.ingestLost($1, error) }
                }
            }
        }
    }

    /// Sends frames. If the link is slower, they wait for their turn, up to the account's share. Frames beyond that are
    /// dropped; the device still has them.
    func send(_ frames: [RelayFrame]) {
        guard let peer else { return }
        peer.eventLoop.execute { [self] in
            guard !isOver else { return }
            for frame in frames {
                if let from = droppedFrom {
                    droppedFrom = min(from, frame.position.sequence)
                } else if waiting.isEmpty, peer.isFree {
                    peer.write(frame.encoded)
                } else if peer.holds(frame.encoded.readableBytes, of: account) {
                    waiting.append(frame)
                } else {
                    droppedFrom = frame.position.sequence
                }
            }
            peer.connection.flush()
            if !waiting.isEmpty || droppedFrom != nil { peer.wait(.ingest(hub.stream), of: account) }
        }
    }

    /// It is the stream's turn on the link. Sends some of the waiting frames, then requests dropped ones from the
    /// device.
    ///
    /// - Parameter quantum: the turn ends once this many bytes were sent.
    func takeTurn(_ quantum: Int) -> (byteCount: Int, hasMore: Bool) {
        guard let peer, !isOver else { return (0, false) }
        var byteCount = 0
        while byteCount < quantum, let frame = waiting.popFirst() {
            byteCount += frame.encoded.readableBytes
            peer.write(frame.encoded)
        }
        peer.connection.flush()
        peer.holdsNoMore(byteCount, of: account)
        if waiting.isEmpty, let from = droppedFrom {
            droppedFrom = nil
            resume(next: from)
        }
        return (byteCount, !waiting.isEmpty)
    }

    /// Ends the stream and drops its waiting frames.
    private func end() {
        isOver = true
        guard let peer else { return }
        peer.holdsNoMore(waiting.reduce(0) { $0 + $1.encoded.readableBytes }, of: account)
        waiting.removeAll()
    }

    func close() {
        guard let peer else { return }
        peer.eventLoop.execute { [self] in
            guard !isOver else { return }
            end()
            peer.forget(self, stream: hub.stream)
            // Before the answer the other node may not know the stream yet. The end is then sent after the answer.
            if isAnswered { sendEnd(to: peer) }
        }
    }

    private func sendEnd(to peer: MediaPeer) {
        guard peer.endsNewest(self, stream: hub.stream) else { return }
        peer.send(.tell, .endIngest, ChannelEndIngest.with { $0.stream = hub.stream })
    }

    // Called on the link's loop.
    func acknowledged(epoch: UInt32, next: UInt64) {
        atHome { endpoint, _ in endpoint.acknowledged(epoch: epoch, next: next) }
    }
    func resume(next: UInt64) { atHome { endpoint, _ in endpoint.resume(next: next) } }
    func lost(_ error: ApusError) {
        end()
        atHome { $0.ingestLost($1, error) }
    }

    private func atHome(_ body: @escaping @Sendable (PublisherEndpoint, RemoteIngest) -> Void) {
        hub.loop.eventLoop.execute { [self] in body(endpoint, self) }
    }
}

/// A primary's copy at its standby.
final class CopyLink: @unchecked Sendable {  // SAFETY: mutable state is used on the link's loop only.
    let node: NodeID
    /// The term under which it was opened.
    let term: Epoch
    private let hub: ChannelHub
    private let peer: MediaPeer?
    private var isOver = false
    private var isAnswered = false

    init(node: NodeID, term: Epoch, hub: ChannelHub) {
        self.node = node
        self.term = term
        self.hub = hub
        peer = hub.service.peer(of: node)
    }

    func open(_ request: ChannelReplicate) {
        guard let peer else { return atHome { $0.copyFailed($1) } }
        peer.eventLoop.execute { [self] in
            peer.opens(self, stream: hub.stream)
            peer.ask(.replicate, request, as: ChannelReplicating.self) { [self] result in
                switch result {
                case .success(let answer): start(on: peer, after: answer.hasAfter ? FramePosition(answer.after) : nil)
                case .failure: atHome { $0.copyFailed($1) }
                }
            }
        }
    }

    private func start(on peer: MediaPeer, after: FramePosition?) {
        isAnswered = true
        guard !isOver else { return sendEnd(to: peer) }
        // The machine must be notified of the open copy before the first confirmation can arrive.
        atHome { $0.copyOpened($1, after: after) }
        peer.join(hub.channel, of: hub.account, kind: .standby, after: after, opening: { _ in }) { [self] result in
            switch result {
            case .success(let receipt):
                if isOver { receipt.close() } else { peer.register(self, stream: hub.stream, receipt: receipt) }
            case .failure: atHome { $0.copyFailed($1) }
            }
        }
    }

    func close() {
        guard let peer else { return }
        peer.eventLoop.execute { [self] in
            guard !isOver else { return }
            isOver = true
            peer.forget(self, stream: hub.stream)
            if isAnswered { sendEnd(to: peer) }
        }
    }

    /// Notifies the standby that nothing more follows. It becomes an edge if it has viewers.
    private func sendEnd(to peer: MediaPeer) {
        guard peer.endsNewest(self, stream: hub.stream) else { return }
        peer.send(.tell, .endIngest, ChannelEndIngest.with { $0.stream = hub.stream })
    }

    /// Announces to the standby whose frames follow.
    func announce(epoch: UInt32, instance: UInt64) {
        guard let peer else { return }
        peer.eventLoop.execute { [self] in
            guard !isOver, isAnswered else { return }
            peer.send(
                .tell, .publisherChanged,
                ChannelPublisherChanged.with {
                    $0.stream = hub.stream
                    $0.epoch = epoch
                    $0.instance = instance
                })
        }
    }

    func confirmed(epoch: UInt32, next: UInt64) { atHome { $0.copyConfirmed($1, epoch: epoch, next: next) } }
    /// The other node no longer accepts the copy.
    func refused() {
        guard let peer, !isOver else { return }
        peer.forget(self, stream: hub.stream)
        lost()
    }

    func lost() {
        isOver = true
        atHome { $0.copyFailed($1) }
    }

    private func atHome(_ body: @escaping @Sendable (ChannelHub, CopyLink) -> Void) {
        hub.loop.eventLoop.execute { [self] in body(hub, self) }
    }
}

/// An edge's subscription at the primary or the standby.
final class UpstreamLink: @unchecked Sendable {  // SAFETY: mutable state is used on the link's loop only.
    let id: ChannelStateMachine.SubscriptionID
    let node: NodeID
    let hub: ChannelHub
    private let peer: MediaPeer?
    private var stream: StreamNumber?
    private var isOver = false

    init(id: ChannelStateMachine.SubscriptionID, node: NodeID, hub: ChannelHub) {
        self.id = id
        self.node = node
        self.hub = hub
        peer = hub.service.peer(of: node)
    }

    func open(after: FramePosition?) {
        guard let peer else { return atHome { $0.subscriptionLost($1) } }
        let request = ChannelSubscribe.with {
            $0.device = hub.channel.owner.wireName
            $0.source = UInt32(hub.channel.source)
            $0.epoch = hub.machine.assignment.term
            if let after { $0.after = ChannelPosition(after) }
            $0.account = hub.account?.rawValue ?? ""
        }
        peer.eventLoop.execute { [self] in
            peer.opensUpstream(self, stream: hub.stream)
            peer.ask(.subscribe, request, as: ChannelSubscribed.self) { [self] result in
                switch result {
                case .success(let answer):
                    stream = answer.stream
                    guard !isOver else { return sendUnsubscribe() }
                    peer.register(self, stream: answer.stream)
                    let liveFrom = answer.hasLiveFrom ? FramePosition(answer.liveFrom) : nil
                    atHome { $0.subscribed($1, term: answer.term, liveFrom: liveFrom) }
                case .failure:
                    atHome { $0.subscriptionLost($1) }
                }
            }
        }
    }

    func close() {
        guard let peer else { return }
        peer.eventLoop.execute { [self] in
            guard !isOver else { return }
            isOver = true
            sendUnsubscribe()
        }
    }

    private func sendUnsubscribe() {
        guard let peer, let stream else { return }
        peer.forget(self, stream: stream)
        guard peer.endsNewestUpstream(self, stream: hub.stream) else { return }
        peer.send(.tell, .unsubscribe, ChannelUnsubscribe.with { $0.stream = stream })
    }

    func lost() {
        isOver = true
        atHome { $0.subscriptionLost($1) }
    }

    private func atHome(_ body: @escaping @Sendable (ChannelHub, UpstreamLink) -> Void) {
        hub.loop.eventLoop.execute { [self] in body(hub, self) }
    }
}

extension MediaPeer {
    /// Sends a request to the other node. `completion` is called on the link's loop, in the order of the answers.
    func ask<Answer: BoundedMessage>(
        _ method: MediaMethod, _ request: some Message, as answer: Answer.Type,
        completion: @escaping @Sendable (Result<Answer, ApusError>) -> Void
    ) {
        guard let bytes: [UInt8] = try? request.serializedBytes() else {
            return completion(.failure(ApusError(.internalFailure)))
        }
        connection.request(
            method: method.rawValue, payload: ByteBuffer(bytes: bytes), deadline: service.configuration.answerTimeout
        ) { result in
            switch result {
            case .failure(let failure): completion(.failure(failure.error))
            case .success(let payload):
                guard let message = try? Answer(bounded: payload) else {
                    return completion(.failure(ApusError(.malformed)))
                }
                completion(.success(message))
            }
        }
        connection.flush()
    }
}

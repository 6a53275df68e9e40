import ApusCore
import ApusMedia
import ApusTransport
import ApusWire
import CoreMetrics
import Logging
import NIOCore
import SwiftProtobuf
import Synchronization

/// One media link to another node, with its streams (D7).
///
/// Media frames carry the sender's stream number. Received frames are copied out of the reader's buffer, gathered until
/// the read is complete, and passed to the channel's home loop in one hop.
///
/// Concurrency model: confined to the connection's event loop. Other loops use `execute`.
final class MediaPeer: @unchecked Sendable {  // SAFETY: confined to the connection's event loop.
    /// The kind of frames that arrive under a number.
    enum Inbound {
        case ingest(ChannelHub, ChannelStateMachine.IngestID)
        case copy(ChannelHub, Epoch)
        case upstream(UpstreamLink)
    }

    let connection: MediaConnection
    unowned let service: ChannelService
    private var inbound: [StreamNumber: Inbound] = [:]
    private var ingests: [StreamNumber: RemoteIngest] = [:]
    private var copies: [StreamNumber: CopyLink] = [:]
    private var receipts: [StreamNumber: Receipt] = [:]
    /// The stream that was opened last under each number. Messages of an earlier one are outdated.
    private var newestOutgoing: [StreamNumber: AnyObject] = [:]
    private var newestUpstream: [StreamNumber: AnyObject] = [:]
    /// The link has ended. The effects of later answers must be undone.
    private var isClosed = false
    /// Streams that wait to send more.
    private var turns = LinkTurns<Turn>()
    private var isServing = false
    private var window: LinkWindow
    /// Processed frame bytes from the other node.
    private let processed = Atomic<UInt64>(0)
    /// Waiting frames of publishers; see ``ChannelConfiguration/linkWaitingByteCountMax``.
    private var waitingShares: AccountShares
    private var gathered: [(stream: StreamNumber, frames: [RelayFrame])] = []

    /// A local stream that sends on the link: a channel's frames for the other node, or a publisher's.
    enum Turn: Hashable {
        case receiver(StreamNumber)
        case ingest(StreamNumber)
    }

    init(connection: MediaConnection, service: ChannelService) {
        self.connection = connection
        self.service = service
        waitingShares = AccountShares(capacity: service.configuration.linkWaitingByteCountMax)
        window = LinkWindow(byteCount: service.configuration.linkWindowByteCount)
    }

    var eventLoop: any EventLoop { connection.eventLoop }

    // MARK: - Streams that this side opened

    func register(_ link: RemoteIngest, stream: StreamNumber) { ingests[stream] = link }
    func register(_ link: CopyLink, stream: StreamNumber, receipt: Receipt) {
        copies[stream] = link
        receipts[stream] = receipt
    }
    func register(_ link: UpstreamLink, stream: StreamNumber) { inbound[stream] = .upstream(link) }

    func forget(_ link: RemoteIngest, stream: StreamNumber) {
        if ingests[stream] === link { ingests[stream] = nil }
    }
    func forget(_ link: CopyLink, stream: StreamNumber) {
        guard copies[stream] === link else { return }
        copies[stream] = nil
        receipts.removeValue(forKey: stream)?.close()
    }
    func forget(_ link: UpstreamLink, stream: StreamNumber) {
        if case .upstream(let current) = inbound[stream], current === link { inbound[stream] = nil }
    }

    /// Notes that a stream to the other node is requested. `hub.stream` is its number, there too.
    func opens(_ link: AnyObject, stream: StreamNumber) { newestOutgoing[stream] = link }
    func opensUpstream(_ link: AnyObject, stream: StreamNumber) { newestUpstream[stream] = link }

    /// Returns true, once, if no later stream has the number. Only then may the end of this one be sent, since the
    /// message contains only the number.
    func endsNewest(_ link: AnyObject, stream: StreamNumber) -> Bool {
        guard newestOutgoing[stream] === link else { return false }
        newestOutgoing[stream] = nil
        return true
    }
    func endsNewestUpstream(_ link: AnyObject, stream: StreamNumber) -> Bool {
        guard newestUpstream[stream] === link else { return false }
        newestUpstream[stream] = nil
        return true
    }

    /// Writes one message. A failure shows as a lost link.
    func send(_ kind: FrameKind, _ method: MediaMethod, _ message: some Message, correlation: UInt32 = 0) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        var buffer = ByteBufferAllocator().buffer(capacity: LinkFrame.headerByteCount + bytes.count)
        LinkFrame(kind: kind, method: method.rawValue, correlation: correlation, payload: ByteBuffer(bytes: bytes))
            .encode(into: &buffer)
        connection.write(buffer)
        connection.flush()
    }

    /// Notifies the primary which frames this standby has.
    func confirm(stream: StreamNumber, epoch: UInt32, next: UInt64) {
        eventLoop.execute { [self] in
            send(
                .tell, .replicated,
                ChannelReplicated.with {
                    $0.stream = stream
                    $0.epoch = epoch
                    $0.next = next
                })
        }
    }

    /// Notifies the primary that this node no longer accepts its copy of a term.
    func refuseCopy(stream: StreamNumber, term: Epoch) {
        eventLoop.execute { [self] in
            if case .copy(_, term) = inbound[stream] { inbound[stream] = nil }
            send(
                .tell, .copyRefused,
                ChannelCopyRefused.with {
                    $0.stream = stream
                    $0.term = term
                })
        }
    }

    // MARK: - Events of the link

    func received(_ frame: LinkFrame) {
        switch frame.kind {
        case .media: gather(frame)
        case .request: answer(frame)
        case .tell: heard(frame)
        default: break
        }
    }

    func readCompleted() {
        guard !gathered.isEmpty else { return }
        let batches = gathered
        gathered.removeAll(keepingCapacity: true)
        for batch in batches { deliver(batch.frames, of: batch.stream) }
    }

    // MARK: - Turns

    /// True if frames can be written at once: the link accepts them, and no stream waits.
    var isFree: Bool { isWritable && turns.isEmpty && !isClosed }
    private var isWritable: Bool { connection.isWritable && window.hasRoom }

    /// Writes frames of one stream.
    func write(_ frames: ByteBuffer) {
        if connection.write(frames) { window.sent(frames.readableBytes) }
    }

    /// A stream has frames that the link does not accept now.
    func wait(_ turn: Turn, of account: AccountID?) {
        guard !isClosed else { return }
        turns.wait(turn, of: account)
        // Earlier writes may have completed since the caller's check.
        if isWritable { eventLoop.execute { [self] in writabilityChanged() } }
    }

    /// Reserves room for waiting frames of a publisher. Returns false if its account has used its share.
    func holds(_ byteCount: Int, of account: AccountID?) -> Bool {
        guard waitingShares.take(byteCount, for: account) else { return false }
        service.metrics.linkWaitingBytes.increment(by: Double(byteCount))
        return true
    }

    /// Waiting frames were written or dropped.
    func holdsNoMore(_ byteCount: Int, of account: AccountID?) {
        waitingShares.change(by: -byteCount, of: account)
        service.metrics.linkWaitingBytes.decrement(by: Double(byteCount))
    }

    /// Lets waiting streams send in turn, until the link is full. A write can call this again.
    func writabilityChanged() {
        guard !isServing else { return }
        isServing = true
        defer { isServing = false }
        while isWritable, let (turn, account) = turns.next() {
            let batch: (byteCount: Int, hasMore: Bool)? =
                switch turn {
                case .receiver(let stream): receipts[stream]?.takeTurn()
                case .ingest(let stream): ingests[stream]?.takeTurn(turns.quantum)
                }
            guard let batch else { continue }
            turns.sent(batch.byteCount, of: account)
            if batch.hasMore { turns.wait(turn, of: account) }
        }
    }

    func closed() {
        isClosed = true
        let streams = (inbound, ingests, copies, receipts)
        (inbound, ingests, copies, receipts) = ([:], [:], [:], [:])
        (newestOutgoing, newestUpstream) = ([:], [:])
        for receipt in streams.3.values { receipt.close() }
        for case let link in streams.1.values { link.lost(ApusError(.linkLost)) }
        for case let link in streams.2.values { link.lost() }
        for source in streams.0.values {
            switch source {
            case .ingest(let hub, let id): hub.loop.eventLoop.execute { hub.closeIngest(id) }
            case .copy(let hub, let term): hub.loop.eventLoop.execute { hub.copyClosed(from: self, term: term) }
            case .upstream(let link): link.lost()
            }
        }
    }

    /// Reports how many bytes were processed. The first report also announces that this node sends reports.
    func report() {
        guard !isClosed else { return }
        let byteCount = processed.load(ordering: .relaxed)
        send(.tell, .processed, ChannelProcessed.with { $0.byteCount = byteCount })
    }

    /// Frames were delivered to their channel, on any loop.
    private func worked(off byteCount: Int) {
        let (before, now) = processed.wrappingAdd(UInt64(byteCount), ordering: .relaxed)
        let step = UInt64(max(1, service.configuration.linkWindowByteCount / 16))
        if before / step != now / step { eventLoop.execute { [self] in report() } }
    }

    private func gather(_ frame: LinkFrame) {
        guard let source = inbound[frame.correlation] else {
            return worked(off: LinkFrame.headerByteCount + frame.payload.readableBytes)
        }
        let hub =
            switch source {
            case .ingest(let hub, _), .copy(let hub, _): hub
            case .upstream(let link): link.hub
            }
        do {
            let relayed = try RelayFrame(copying: frame.payload) { byteCount, buffer in
                LinkFrame.encodeHeader(
                    kind: .media, correlation: hub.stream, payloadByteCount: byteCount, into: &buffer)
            }
            if let last = gathered.indices.last, gathered[last].stream == frame.correlation {
                gathered[last].frames.append(relayed)
            } else {
                gathered.append((frame.correlation, [relayed]))
            }
        } catch {
            service.metrics.framesBad.increment()
            service.log.warning(
                "A media link sent a frame that cannot be decoded and is closed",
                metadata: Logger.facts(of: error).merging([LogKey.peer: "\(connection.peer)"]) { $1 })
            connection.close()
        }
    }

    private func deliver(_ frames: [RelayFrame], of stream: StreamNumber) {
        let byteCount = frames.reduce(0) { $0 + $1.encoded.readableBytes }
        switch inbound[stream] {
        case .ingest(let hub, let id):
            hub.loop.eventLoop.execute { [self] in
                hub.ingest(id, frames)
                worked(off: byteCount)
            }
        case .copy(let hub, let term):
            hub.loop.eventLoop.execute { [self] in
                hub.copied(frames, term: term)
                worked(off: byteCount)
            }
        case .upstream(let link):
            link.hub.loop.eventLoop.execute { [self] in
                link.hub.received(link, frames)
                worked(off: byteCount)
            }
        case nil: worked(off: byteCount)
        }
    }

    private func heard(_ frame: LinkFrame) {
        let bytes = frame.payload
        switch MediaMethod(rawValue: frame.method) {
        case .acknowledged:
            guard let message = try? ChannelAcknowledged(bounded: bytes) else {
                return
            }
            ingests[message.stream]?.acknowledged(epoch: message.epoch, next: message.next)
        case .resume:
            guard let message = try? ChannelResume(bounded: bytes) else { return }
            ingests[message.stream]?.resume(next: message.next)
        case .replicated:
            guard let message = try? ChannelReplicated(bounded: bytes) else { return }
            copies[message.stream]?.confirmed(epoch: message.epoch, next: message.next)
        case .ingestEnded:
            guard let message = try? ChannelIngestEnded(bounded: bytes) else { return }
            ingests[message.stream]?.lost(
                ApusError(ErrorCode(number: message.failure.code), UntrustedText.escaped(message.failure.message)))
        case .endIngest:
            guard let message = try? ChannelEndIngest(bounded: bytes) else { return }
            switch inbound.removeValue(forKey: message.stream) {
            case .ingest(let hub, let id): hub.loop.eventLoop.execute { hub.closeIngest(id) }
            case .copy(let hub, let term):
                hub.loop.eventLoop.execute { [self] in hub.copyClosed(from: self, term: term) }
            case .upstream(let link): inbound[message.stream] = .upstream(link)
            case nil: break
            }
        case .copyRefused:
            guard let message = try? ChannelCopyRefused(bounded: bytes),
                let copy = copies[message.stream], copy.term == message.term
            else { return }
            copy.refused()
        case .publisherChanged:
            guard let message = try? ChannelPublisherChanged(bounded: bytes),
                case .copy(let hub, let term) = inbound[message.stream]
            else { return }
            hub.loop.eventLoop.execute { hub.publisherChanged(message, term: term) }
        case .processed:
            guard let message = try? ChannelProcessed(bounded: bytes), window.processed(message.byteCount) else {
                return
            }
            writabilityChanged()
        case .unsubscribe:
            guard let message = try? ChannelUnsubscribe(bounded: bytes) else { return }
            receipts.removeValue(forKey: message.stream)?.close()
        case .subscribe, .ingest, .replicate, nil:
            break
        }
    }
}

/// The messages of the media lane. The numbers are those of `proto/apus/channel.proto`.
package enum MediaMethod: UInt16 {
    case subscribe = 1
    case unsubscribe = 2
    case ingest = 3
    case endIngest = 4
    case acknowledged = 5
    case resume = 6
    case replicate = 7
    case replicated = 8
    case ingestEnded = 9
    case publisherChanged = 10
    case copyRefused = 11
    case processed = 12
}

// MARK: - Requests of the other side

extension MediaPeer {
    private func answer(_ frame: LinkFrame) {
        let bytes = frame.payload
        let call = frame.correlation
        switch MediaMethod(rawValue: frame.method) {
        case .subscribe:
            guard let request = try? ChannelSubscribe(bounded: bytes),
                let channel = ChannelID(wireName: request.device, source: request.source)
            else { return refuse(call, ApusError(.malformed)) }
            subscribe(channel, request, call)
        case .ingest:
            guard let request = try? ChannelIngest(bounded: bytes),
                let channel = ChannelID(wireName: request.device, source: request.source)
            else { return refuse(call, ApusError(.malformed)) }
            ingest(channel, request, call)
        case .replicate:
            guard let request = try? ChannelReplicate(bounded: bytes),
                let channel = ChannelID(wireName: request.device, source: request.source)
            else { return refuse(call, ApusError(.malformed)) }
            replicate(channel, request, call)
        case .unsubscribe, .endIngest, .acknowledged, .resume, .replicated, .ingestEnded, .publisherChanged,
            .copyRefused, .processed, nil:
            refuse(call, ApusError(.methodUnknown))
        }
    }

    private func refuse(_ call: UInt32, _ error: ApusError) {
        connection.fail(LinkFrame(kind: .request, correlation: call), error)
        connection.flush()
    }

    /// Finds the channel's hub at its home and runs the request there. `body` returns what then runs here.
    private func atHub(
        of channel: ChannelID, account: String, isClaimed: Bool, _ call: UInt32,
        _ body: @escaping @Sendable (ChannelHub) -> Result<@Sendable () -> Void, ApusError>
    ) {
        service.atHome(of: channel, from: eventLoop) { [self] home in
            let result = home.hub(
                for: channel, of: AccountID(rawValue: account), isClaimed: isClaimed
            ).flatMap(body)
            eventLoop.execute { [self] in
                switch result {
                case .success(let reply): reply()
                case .failure(let error): refuse(call, error)
                }
            }
        }
    }

    private func subscribe(_ channel: ChannelID, _ request: ChannelSubscribe, _ call: UInt32) {
        let after = request.hasAfter ? FramePosition(request.after) : nil
        atHub(of: channel, account: request.account, isClaimed: false, call) { [self] hub in
            hub.machine.receiverHas(after)
            let term = hub.machine.assignment.term
            guard term >= request.epoch else {
                return .failure(ApusError(.staleEpoch, "this node does not have epoch \(request.epoch) yet"))
            }
            guard hub.machine.role != .edge else {
                return .failure(ApusError(.moved, "this node neither owns the channel nor stands by"))
            }
            let liveFrom = hub.machine.liveFrom
            let account = hub.account
            return .success({ [self] in
                // The stream number is that of the joined channel, because the hub may be removed before the join.
                let answer = { @Sendable [self] (stream: StreamNumber) in
                    send(
                        .response, .subscribe,
                        ChannelSubscribed.with {
                            $0.stream = stream
                            $0.term = term
                            if let liveFrom { $0.liveFrom = ChannelPosition(liveFrom) }
                        }, correlation: call)
                }
                join(channel, of: account, kind: .edge, after: after, opening: answer) { [self] result in
                    if case .failure(let error) = result { refuse(call, error) }
                }
            })
        }
    }

    private func ingest(_ channel: ChannelID, _ request: ChannelIngest, _ call: UInt32) {
        let offer = PublishOffer(
            epoch: request.epoch, instance: request.instance, oldest: request.oldest, resumes: request.resumes,
            isConfirmed: !request.unconfirmed)
        let source = PeerIngest(peer: self, stream: request.stream)
        atHub(of: channel, account: request.account, isClaimed: true, call) { [self] hub in
            switch hub.openIngest(offer, peer: source) {
            case .refused(let error): return .failure(error)
            case .accepted(let epoch, let next, let isProtected):
                return .success({ [self] in
                    guard !isClosed else { return hub.loop.eventLoop.execute { hub.closeIngest(source.id) } }
                    inbound[request.stream] = .ingest(hub, source.id)
                    send(
                        .response, .ingest,
                        ChannelIngesting.with {
                            $0.next = next
                            $0.protected = isProtected
                            $0.epoch = epoch
                        }, correlation: call)
                })
            }
        }
    }

    private func replicate(_ channel: ChannelID, _ request: ChannelReplicate, _ call: UInt32) {
        atHub(of: channel, account: request.account, isClaimed: true, call) { [self] hub in
            switch hub.openCopy(request, from: self) {
            case .refused(let error): return .failure(error)
            case .accepted(let after):
                return .success({ [self] in
                    guard !isClosed else {
                        return hub.loop.eventLoop.execute { hub.copyClosed(from: self, term: request.term) }
                    }
                    inbound[request.stream] = .copy(hub, request.term)
                    send(
                        .response, .replicate,
                        ChannelReplicating.with {
                            if let after { $0.after = ChannelPosition(after) }
                        }, correlation: call)
                })
            }
        }
    }

    /// Adds this link as a receiver of a channel.
    ///
    /// - Parameter opening: called with the stream's number before its first frame is sent.
    func join(
        _ channel: ChannelID, of account: AccountID?, kind: FanOutStateMachine.Kind, after: FramePosition?,
        opening: @escaping @Sendable (StreamNumber) -> Void,
        completion: @escaping @Sendable (Result<Receipt, ApusError>) -> Void
    ) {
        let sink = MediaPeerSink(peer: self, account: account)
        service.loop(for: eventLoop).join(
            channel, of: account, sink: sink, kind: kind, after: after
        ) { [self] result in
            guard !isClosed else {
                if case .success(let receipt) = result { receipt.close() }
                return completion(.failure(ApusError(.linkLost)))
            }
            if case .success(let receipt) = result, let stream = receipt.stream {
                opening(stream)
                receipts.updateValue(receipt, forKey: stream)?.close()
                sink.stream = stream
                receipt.open()
            }
            completion(result)
        }
    }
}

/// A media link as the receiver of one channel.
final class MediaPeerSink: FrameSink, FramePort, @unchecked Sendable {  // SAFETY: confined to the peer's event loop.
    private let peer: MediaPeer
    private let account: AccountID?
    /// Set before the receiver is open.
    var stream: StreamNumber = 0

    init(peer: MediaPeer, account: AccountID?) {
        self.peer = peer
        self.account = account
    }

    var eventLoop: any EventLoop { peer.eventLoop }
    var isWritable: Bool { peer.isFree }
    func fellBehind() { peer.wait(.receiver(stream), of: account) }
    func send(_ bytes: ByteBuffer, now: MonotonicTime) {
        peer.write(bytes)
        peer.connection.flush()
    }
    /// Other nodes detect from their own links whether a channel is fed.
    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {}
}

/// Another node as the publisher of a channel whose primary is here. Confined to the home loop.
final class PeerIngest: IngestPeer, @unchecked Sendable {  // SAFETY: `id` is set on the home loop before it is read.
    private let peer: MediaPeer
    private let stream: StreamNumber
    private(set) var id: ChannelStateMachine.IngestID = 0

    init(peer: MediaPeer, stream: StreamNumber) {
        self.peer = peer
        self.stream = stream
    }

    func accepted(as id: ChannelStateMachine.IngestID) { self.id = id }

    func acknowledged(epoch: UInt32, next: UInt64) {
        peer.eventLoop.execute { [peer, stream] in
            peer.send(
                .tell, .acknowledged,
                ChannelAcknowledged.with {
                    $0.stream = stream
                    $0.epoch = epoch
                    $0.next = next
                })
        }
    }

    func resume(next: UInt64) {
        peer.eventLoop.execute { [peer, stream] in
            peer.send(
                .tell, .resume,
                ChannelResume.with {
                    $0.stream = stream
                    $0.next = next
                })
        }
    }

    func ended(_ error: ApusError) {
        peer.eventLoop.execute { [peer, stream] in
            peer.send(
                .tell, .ingestEnded,
                ChannelIngestEnded.with {
                    $0.stream = stream
                    $0.failure.code = error.code.number
                    $0.failure.message = error.message
                })
        }
    }
}

extension FramePosition {
    init(_ position: ChannelPosition) { self.init(epoch: position.epoch, sequence: position.sequence) }
}

extension ChannelPosition {
    init(_ position: FramePosition) {
        self.init()
        epoch = position.epoch
        sequence = position.sequence
    }
}

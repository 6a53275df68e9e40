import ApusContract
public import ApusCore
public import ApusMedia
import ApusWire
import DequeModule
import Foundation
import Logging
public import NIOCore
import SwiftProtobuf
import Synchronization

/// The limits of the frames that a publisher keeps (D7).
public struct PublisherLimits: Sendable, Hashable {
    /// The most bytes that are kept.
    public var byteCountMax = 16 << 20
    /// The most frames that are kept.
    public var frameCountMax = 2048
    /// The most bytes of frames that wait for the session's event loop, with 256 for each frame. Beyond it frames are
    /// refused: the source sends faster than this machine can. Configurations have as much again.
    public var handOverByteCountMax = 32 << 20
    /// How long a frame is kept although it was acknowledged: the two nodes that have it may be cut off together, and
    /// the others declare them dead within this time. Acknowledged frames take no room from those that are not.
    public var retention: Duration = .seconds(1)
    public init() {}
}

/// Sends a device's frames to its channel, numbers them, and keeps each until two nodes of the cluster have it, and for
/// ``PublisherLimits/retention`` after it was sent (D7).
///
/// The cluster assigns the publisher's epoch with the first answer, so the device's clock does not matter. Earlier
/// frames wait for it.
///
/// When the node or the channel's primary dies, the cluster reports from where it needs frames, and the publisher
/// continues there. Nothing is lost as long as the gap fits ``PublisherLimits``. Beyond them the oldest frames are
/// dropped, and ``framesAbandoned`` counts them.
///
/// Concurrency model: confined to the session's event loop.
/// ``send(track:ptsMicroseconds:dtsDeltaMicroseconds:flags:payload:)`` may be called from one thread at a time, which
/// keeps the frames in order.
public final class Publisher: SessionStream, @unchecked Sendable {  // SAFETY: confined to the session's loop.
    /// Events of a publisher.
    public enum Event: Sendable, Equatable {
        /// The cluster accepts frames; `true` if a standby has them too.
        case open(isProtected: Bool)
        /// The stream was refused permanently (`ErrorCode.endings`).
        case ended(ApusError)
    }

    /// A part of every frame's position; nil until the cluster assigned it. It changes only if no node of the cluster
    /// knows the channel any more and its clock is far behind. Read it on the session's event loop.
    public private(set) var epoch: UInt32?
    private let session: ClientSession
    private let source: UInt16
    /// The session id of a call; empty for a device's channel.
    private let call: String
    private let limits: PublisherLimits
    /// Identifies the run of numbers: a new run has a new instance.
    private var instance: UInt64
    /// Of a call: the last node's grant. With it the stream goes on at another node without a delay.
    private var grant = Data()
    private let onNumbered: @Sendable (MediaFrame) -> Void
    private let onEvent: @Sendable (Event) -> Void
    private var window = Deque<Kept>()
    /// The last configuration of each track, with which a restarted stream begins.
    private var configurations = TrackConfigurations()
    private var windowByteCount = 0
    /// The sequence of the oldest frame in the window.
    private var oldest: UInt64 = 0
    /// Two nodes have had every frame before this sequence.
    private var acknowledged: UInt64 = 0
    private var nextSequence: UInt64 = 0
    /// The next sequence to write on the connection.
    private var cursor: UInt64 = 0
    /// The next sequence number for which ``onNumbered`` is called.
    private var nextAnnounced: UInt64 = 0
    private var place = StreamPlace()
    private var isOver = false
    /// The end frame was sent, and this waits until two nodes have it.
    private var ending: CheckedContinuation<Void, Never>?
    /// Frames that were dropped before they were acknowledged, for lack of room.
    public private(set) var framesAbandoned: UInt64 = 0
    /// Frames that were refused because the event loop is too slow for the source.
    public var framesRefused: UInt64 { refusedCount.load(ordering: .relaxed) }
    private let refusedCount = Atomic<UInt64>(0)
    /// Bytes on their way to the event loop.
    private let handedOver = Atomic<Int>(0)

    private struct Kept {
        var frame: MediaFrame
        var since: NIODeadline
    }

    /// Makes a publisher, which opens its stream once ``start()`` is called.
    ///
    /// - Parameters:
    ///   - session: the session of the device.
    ///   - source: the number of the device's source.
    ///   - limits: the bounds of the frames that wait for their acknowledgement.
    ///   - onNumbered: called on the session's event loop for every frame, once it has its number and its epoch is
    ///     known, before it is sent. Not called for frames that were dropped before.
    ///   - onEvent: called on the session's event loop for everything else.
    public convenience init(
        session: ClientSession, source: UInt16 = 0, limits: PublisherLimits = PublisherLimits(),
        onNumbered: @escaping @Sendable (MediaFrame) -> Void = { _ in },
        onEvent: @escaping @Sendable (Event) -> Void = { _ in }
    ) {
        self.init(
            session: session, source: source, call: "", limits: limits, onNumbered: onNumbered, onEvent: onEvent)
    }

    /// Makes the publisher of this client's side of a call that was accepted (CALL-13). Apps publish as devices do.
    ///
    /// It ends with −2508 when the call does, and with −2522 or 8003 if this client is not, or no longer, one of its
    /// sides.
    ///
    /// - Parameters:
    ///   - session: the session of the device or app.
    ///   - call: the session id of the call.
    ///   - limits: as ``init(session:source:limits:onNumbered:onEvent:)``, and so are the callbacks.
    public convenience init(
        session: ClientSession, call: String, limits: PublisherLimits = PublisherLimits(),
        onNumbered: @escaping @Sendable (MediaFrame) -> Void = { _ in },
        onEvent: @escaping @Sendable (Event) -> Void = { _ in }
    ) {
        self.init(session: session, source: 0, call: call, limits: limits, onNumbered: onNumbered, onEvent: onEvent)
    }

    private init(
        session: ClientSession, source: UInt16, call: String, limits: PublisherLimits,
        onNumbered: @escaping @Sendable (MediaFrame) -> Void, onEvent: @escaping @Sendable (Event) -> Void
    ) {
        self.session = session
        self.source = source
        self.call = call
        self.limits = limits
        self.onNumbered = onNumbered
        self.onEvent = onEvent
        instance = UInt64.random(in: 1...(.max))
    }

    /// Opens the stream, on each connection of the session.
    public func start() { session.eventLoop.execute { [self] in session.add(self) } }

    /// Ends the stream. A last frame without content marks the end. Frames that the connection has not taken yet are
    /// lost; see ``finish(within:)``.
    public func stop() {
        session.eventLoop.execute { [self] in
            guard !isOver else { return }
            if ending == nil { sendEnd() }
            leave()
        }
    }

    /// Ends the stream as ``stop()`` does, once two nodes have every frame.
    ///
    /// - Parameter limit: how long to wait for that, such as while no node is connected.
    public func finish(within limit: Duration = .seconds(2)) async {
        await withCheckedContinuation { continuation in
            session.eventLoop.execute { [self] in
                guard !isOver, ending == nil else { return continuation.resume() }
                ending = continuation
                sendEnd()
                session.eventLoop.assumeIsolated().scheduleTask(in: TimeAmount(limit)) { [self] in
                    if ending != nil { leave() }
                }
            }
        }
    }

    private func sendEnd() {
        let end = MediaHeader(
            position: FramePosition(epoch: epoch ?? 0, sequence: nextSequence),
            ptsMicroseconds: window.last?.frame.header.ptsMicroseconds ?? 0, flags: .endOfEpoch)
        announce()
        nextSequence += 1
        nextAnnounced = nextSequence
        keep(MediaFrame(header: end, payload: ByteBuffer()))
        write()
    }

    private func leave() {
        over()
        let request = ClientUnpublishRequest.with { ($0.source, $0.call) = (requestedSource, call) }
        place.connection?.request(.unpublish, request) { _ in }
    }

    private func over() {
        isOver = true
        session.remove(self)
        ending?.resume()
        ending = nil
    }

    /// Sends one frame. Numbers follow the order of the calls. One of more than ``MediaFrame/payloadByteCountMax``
    /// bytes is sent in parts, with a number for each (``FrameJoiner``). One of more than
    /// ``MediaFrame/joinedByteCountMax`` bytes ends the stream with 21024.
    ///
    /// - Parameter captureMilliseconds: the wall clock at the capture, in Unix milliseconds modulo 2³², from which
    ///   viewers compute the delay; 0 if it is not known.
    public func send(
        track: UInt8, ptsMicroseconds: Int64, dtsDeltaMicroseconds: Int32, captureMilliseconds: UInt32 = 0,
        flags: MediaFlags, payload: ByteBuffer
    ) {
        let byteCount = payload.readableBytes + 256
        let bound = limits.handOverByteCountMax * (flags.contains(.configuration) ? 2 : 1)
        guard handedOver.load(ordering: .relaxed) <= bound else {
            refusedCount.add(1, ordering: .relaxed)
            return
        }
        handedOver.add(byteCount, ordering: .relaxed)
        session.eventLoop.execute { [self] in
            handedOver.subtract(byteCount, ordering: .relaxed)
            guard !isOver, ending == nil else { return }
            guard let parts = FrameJoiner.split(payload) else {
                sendEnd()
                leave()
                return onEvent(
                    .ended(
                        ApusError(
                            .packageTooLarge,
                            "a frame has \(payload.readableBytes) bytes; at most \(MediaFrame.joinedByteCountMax) "
                                + "can be sent")))
            }
            for (index, part) in parts.enumerated() {
                let header = MediaHeader(
                    position: FramePosition(epoch: epoch ?? 0, sequence: nextSequence),
                    ptsMicroseconds: ptsMicroseconds, dtsDeltaMicroseconds: dtsDeltaMicroseconds,
                    captureMilliseconds: captureMilliseconds,
                    flags: FrameJoiner.flags(flags, ofPart: index, of: parts.count), track: track)
                nextSequence += 1
                keep(MediaFrame(header: header, payload: part))
            }
            announce()
            write()
        }
    }

    /// Calls ``onNumbered`` for frames for which it was not called yet.
    private func announce() {
        guard let epoch else { return }
        nextAnnounced = max(nextAnnounced, oldest)
        while nextAnnounced < nextSequence {
            onNumbered(frame(nextAnnounced, in: epoch))
            nextAnnounced += 1
        }
    }

    private func frame(_ sequence: UInt64, in epoch: UInt32) -> MediaFrame {
        var frame = window[Int(sequence - oldest)].frame
        frame.header.position.epoch = epoch
        return frame
    }

    /// The cluster reported the epoch of the frames.
    private func take(epoch: UInt32) {
        // A node of an earlier version does not report it: it uses the requested one.
        self.epoch = epoch == 0 ? self.epoch ?? 0 : epoch
        announce()
    }

    private func keep(_ frame: MediaFrame) {
        configurations.put(frame)
        let now = NIODeadline.now()
        window.append(Kept(frame: frame, since: now))
        windowByteCount += frame.payload.readableBytes
        while windowByteCount > limits.byteCountMax || window.count > limits.frameCountMax, window.count > 1 {
            if oldest >= acknowledged { framesAbandoned += 1 }
            dropOldest()
        }
        dropRetained(now: now)
    }

    /// Drops acknowledged frames that were kept for long enough.
    private func dropRetained(now: NIODeadline) {
        let until = now - TimeAmount(limits.retention)
        while oldest < acknowledged, let first = window.first, first.since <= until { dropOldest() }
    }

    private func dropOldest() {
        windowByteCount -= window.removeFirst().frame.payload.readableBytes
        oldest += 1
        cursor = max(cursor, oldest)
    }

    private func write() {
        guard let (connection, stream) = place.previous ?? place.current, let epoch, cursor < nextSequence else {
            return
        }
        var buffer = ByteBuffer()
        while cursor < nextSequence, connection.isWritable, buffer.readableBytes < Self.writeByteCountMax {
            let frame = frame(cursor, in: epoch)
            LinkFrame.encodeHeader(
                kind: .media, correlation: stream,
                payloadByteCount: MediaHeader.byteCount + frame.payload.readableBytes, into: &buffer)
            frame.encode(into: &buffer)
            cursor += 1
        }
        guard buffer.readableBytes > 0 else { return }
        connection.write(buffer)
        connection.flush()
        if cursor < nextSequence, connection.isWritable { write() }
    }
    /// The wait before a stream that was refused or ended is requested again.
    private static let retryDelay = TimeAmount.milliseconds(100)
    /// The same if another publisher of the device was newer (10024).
    private static let supersededDelay = TimeAmount.seconds(1)
    /// The most bytes of one write.
    private static let writeByteCountMax = 256 << 10

    private var requestedSource: UInt32 { call.isEmpty ? UInt32(source) : ClientPublishRequest.sourceOfCalls }

    // MARK: - SessionStream

    func attach(to connection: ClientConnection, from retiring: ClientConnection?) {
        place.move(to: connection, from: retiring)
        open(on: connection)
    }

    /// Until the next node accepts the stream.
    var isMoving: Bool { place.previous != nil }

    private func leavePrevious() {
        if place.leavePrevious() { session.checkRetired() }
    }

    private func open(on connection: ClientConnection) {
        let request = ClientPublishRequest.with {
            $0.source = requestedSource
            $0.epoch = epoch ?? 0
            $0.resumes = epoch != nil
            $0.instance = instance
            $0.oldest = oldest
            ($0.call, $0.grant) = (call, grant)
        }
        connection.request(.publish, request) { [weak self] result in
            guard let self, connection === place.connection, !isOver else { return }
            switch result {
            case .success(let bytes):
                guard let answer = try? ClientPublishResponse(bounded: bytes) else {
                    return
                }
                leavePrevious()
                place.stream = answer.stream
                grant = answer.grant
                take(epoch: answer.epoch)
                onEvent(.open(isProtected: answer.protected))
                resume(from: answer.next)
            case .failure(let error): refused(error, on: connection)
            }
        }
    }

    private func refused(_ error: ApusError, on connection: ClientConnection) {
        switch error.code {
        case let code where code.ends(.publishing):
            ended(error)
        case .linkLost, .notConnected:
            break  // The session attaches the next connection.
        default:
            // The sessions decide which of two publishers of a device stays (12003). This one's session is valid so
            // far, so it waits for that decision. Otherwise the two would take the channel from each other all the
            // time.
            let isSuperseded = error.code == .stalePublisher
            if isSuperseded {
                leavePrevious()
                beginAnew()
            }
            place.stream = nil
            let delay = isSuperseded ? Self.supersededDelay : Self.retryDelay
            session.eventLoop.assumeIsolated().scheduleTask(in: delay) { [weak self] in
                guard let self, connection === place.connection, place.stream == nil, !isOver else { return }
                open(on: connection)
            }
        }
    }

    /// Numbers the kept frames again, from zero, in an epoch that the cluster has yet to assign, configurations first.
    /// It is a new instance: a position of the previous epoch must not be assigned to another frame.
    private func beginAnew() {
        let kept = window.dropFirst(Int(max(acknowledged, oldest) - oldest)).map(\.frame)
            .filter { !$0.header.flags.contains(.configuration) }
        let first = configurations.all
        instance = UInt64.random(in: 1...(.max))
        epoch = nil
        window.removeAll(keepingCapacity: true)
        windowByteCount = 0
        (oldest, acknowledged, nextSequence, cursor, nextAnnounced) = (0, 0, 0, 0, 0)
        for var frame in first + kept {
            frame.header.position = FramePosition(epoch: 0, sequence: nextSequence)
            nextSequence += 1
            keep(frame)
        }
    }

    private func ended(_ error: ApusError) {
        over()
        onEvent(.ended(error))
    }

    private func resume(from next: UInt64) {
        cursor = min(max(next, oldest), nextSequence)
        write()
    }

    func received(_ frame: LinkFrame, on connection: ClientConnection) {
        guard frame.kind == .tell else { return }
        let bytes = frame.payload
        if let previous = place.previous, connection === previous.connection {
            // What else it says concerns a stream that ends.
            guard frame.method == ClientMethod.publishAck.rawValue else { return }
            return acknowledged(bytes, stream: previous.stream)
        }
        guard connection === place.connection, let stream = place.stream else { return }
        switch ClientMethod(rawValue: frame.method) {
        case .publishAck: acknowledged(bytes, stream: stream)
        case .publishResume:
            guard let message = try? ClientPublishResume(bounded: bytes),
                message.stream == stream
            else { return }
            if message.epoch > 0 { take(epoch: message.epoch) }
            guard message.next >= oldest else {
                // The requested frames were dropped. The cluster accepts a gap only if an offer names it.
                place.stream = nil
                return open(on: connection)
            }
            resume(from: message.next)
        case .streamState:
            guard let state = try? ClientStreamState(bounded: bytes),
                state.stream == stream, state.state == .ended
            else { return }
            refused(ApusError(state.failure), on: connection)
        default:
            break
        }
    }

    private func acknowledged(_ bytes: ByteBuffer, stream: UInt32) {
        guard let ack = try? ClientPublishAck(bounded: bytes), ack.stream == stream, ack.epoch == epoch else { return }
        acknowledged = max(acknowledged, min(ack.next, nextSequence))
        dropRetained(now: .now())
        if ending != nil, acknowledged >= nextSequence { leave() }
    }

    func becameWritable(_ connection: ClientConnection) {
        if connection === (place.previous?.connection ?? place.connection) { write() }
    }
}
